"""Capture of an exported program: its records, run in a session like any other program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from predictor.capture.exported.archive import read_description
from predictor.capture.exported.decode import decode
from predictor.capture.exported.interpret import Interpreter
from predictor.capture.exported.live import records_of
from predictor.capture.exported.records import Body, Call, ExportedGraph, Nest
from predictor.capture.exported.symbols import bind
from predictor.capture.exported.tensors import take_inputs
from predictor.capture.losses import Loss
from predictor.capture.session import Session
from predictor.capture.torch import check_options, record_optimizer, record_step
from predictor.errors import CaptureError
from predictor.graph.ir import OpGraph

if TYPE_CHECKING:
    from torch.export import ExportedProgram

MOST_KNOWN = 1 << 24
"""Elements of all values together that are worked out for a program that reads some."""
LEAST_CALLS, CALLS_OF_ONE = 20_000, 64
"""Calls that a program may come to: these, and as many for each one that it names."""
_SAYS_MODE: Mapping[str, tuple[int, str]] = {
    "aten.dropout.default": (2, "train"), "aten.dropout_.default": (2, "train"),
    "aten.feature_dropout.default": (2, "train"), "aten.batch_norm.default": (5, "training"),
}  # fmt: skip
"""Calls that say whether they train, and which argument says it."""


def capture_file(path: str, **options: Any) -> OpGraph:
    """The framework calls of the program in a `.pt2` file; see `capture_exported`.

    No member of the archive is unpickled and no weight is read.

    Raises:
        UnknownTargetError: no such file.
        CaptureError: it is damaged, or cannot be captured as asked.
    """
    return capture_exported(decode(read_description(Path(path)), path), **options)


def capture_program(program: ExportedProgram, **options: Any) -> OpGraph:
    """The framework calls of an `ExportedProgram` in memory; see `capture_exported`."""
    return capture_exported(records_of(program), **options)


def capture_exported(
    graph: ExportedGraph,
    *,
    mode: Literal["infer", "train"] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    optimizer: str | None = "adamw",
    amp: str | None = None,
    dtype: str | None = None,
) -> OpGraph:
    """The framework calls of one step of an exported program.

    The program is taken as it was exported: what it does only in training or only in evaluation
    (dropout, batch norm) stays as it is.

    Args:
        graph: the program.
        mode: `infer` or `train`; see `capture_module`.
        dims: the free sizes, by name.
        batch: the one free dimension 0 of the inputs.
        seq: the one free dimension 1 of the inputs.
        loss: see `capture_module`.
        optimizer: see `capture_module`.
        amp: see `capture_module`.
        dtype: see `capture_module`.

    Raises:
        CaptureError: a size is left open, or the program cannot be captured as asked.
    """
    mode = _mode(graph, mode)
    check_options(mode=mode, optimizer=optimizer, amp=amp, dtype=dtype)
    symbols = bind(graph, dims or {}, batch=batch, seq=seq)
    session = Session(graph.name, amp)
    session.known.most = MOST_KNOWN
    session.recorder.most = LEAST_CALLS + CALLS_OF_ONE * sum(1 for _ in _calls(graph.body))
    interpreter = Interpreter(session, symbols)
    with session.guarded():
        held, given = take_inputs(session, interpreter, graph.inputs, dtype)
    session.watch_module(held)
    session.warnings.extend(_notes(graph, mode))
    if graph.loss_output is not None:
        captured = _record_joint(session, interpreter, graph, held, given, optimizer)
    else:

        def forward() -> Any:
            outputs = interpreter.run(graph.body, given)
            return _nested(graph.structure, [outputs[at] for at in graph.user_outputs])

        captured = record_step(
            session, forward, held,
            mode=mode, loss=loss, optimizer=optimizer if mode == "train" else None,
        )  # fmt: skip
    return captured


def _mode(graph: ExportedGraph, mode: str | None) -> Literal["infer", "train"]:
    """What is captured; a program that holds its own backward is a training step."""
    joint = graph.loss_output is not None
    if joint and mode == "infer":
        raise CaptureError(
            f"{graph.name} was exported with its loss and backward: it is a training step "
            "(mode='train'); export the forward alone for inference"
        )
    if mode == "train" and not joint and graph.dialect != "training":
        raise CaptureError(
            f"{graph.name} was decomposed for inference (run_decompositions): the backward of its "
            "parts is not the backward that PyTorch runs; pass the program of torch.export.export "
            "as it is, or the module itself"
        )
    if mode == "train" or joint:
        return "train"
    return "infer" if mode is None else mode  # type: ignore[return-value]


def _record_joint(
    session: Session,
    interpreter: Interpreter,
    graph: ExportedGraph,
    held: nn.Module,
    given: list[Any],
    optimizer: str | None,
) -> OpGraph:
    """A program that holds its own backward, and the update after it."""
    paths = {one.path: value for one, value in zip(graph.inputs, given, strict=True) if one.path}
    loss = graph.body.outputs[graph.loss_output or 0]
    with session.running(), torch.no_grad(), session.autocast():
        outputs = interpreter.run(graph.body, given, loss=loss)
        session.recorder.differentiating = False
        for at, path in graph.gradients.items():
            if path not in paths or not isinstance(outputs[at], torch.Tensor):
                raise CaptureError(
                    f"the program has a gradient of {path!r}, which it does not have"
                )
            paths[path].grad = outputs[at]
        updated = record_optimizer(session, held, optimizer)
    return session.graph("train", optimizer=optimizer, updated=updated)


def _notes(graph: ExportedGraph, mode: str) -> list[str]:
    if graph.loss_output is not None:
        return [
            "the program holds its backward in decomposed calls: eager PyTorch launches fewer, "
            "larger kernels; pass the program of its forward in mode='train' (--train) for these"
        ]
    flags = set(_training_flags(graph.body))
    if mode == "infer" and True in flags:
        return [
            "the program was exported in train mode: dropout and batch norm run as in training; "
            "export module.eval() for its inference"
        ]
    if mode == "train" and flags == {False}:
        return [
            "the program was exported in eval mode: dropout and batch norm do in this step what "
            "they do in inference; export the module in train mode for its training step"
        ]
    return []


def _training_flags(body: Body) -> Iterator[bool]:
    """What the calls that train or evaluate were exported as."""
    for call in _calls(body):
        at = _SAYS_MODE.get(call.target)
        if at is not None:
            place, name = at
            said = call.kwargs.get(name, call.args[place] if len(call.args) > place else None)
            if isinstance(said, bool):
                yield said


def _calls(body: Body) -> Iterator[Call]:
    """All calls, those of regions too."""
    for call in body.calls:
        yield call
        for inner in (*call.args, *call.kwargs.values()):
            if isinstance(inner, Body):
                yield from _calls(inner)


def _nested(structure: Nest | None, results: list[Any]) -> Any:
    """The results in the containers that the module returns them in."""
    if structure is None:
        return results[0] if len(results) == 1 else tuple(results)
    left = iter(results)

    def build(nest: Nest | None) -> Any:
        if nest is None:
            return next(left, None)
        parts = [build(child) for child in nest.children]
        return tuple(parts) if nest.keys is None else dict(zip(nest.keys, parts, strict=True))

    return build(structure)
