"""A StableHLO module as an `OpGraph`: nodes, and the facts of the workload that it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from predictor.capture.stablehlo.flattening import Flattened, flatten
from predictor.capture.stablehlo.partition import partitioned
from predictor.capture.stablehlo.records import Module
from predictor.capture.stablehlo.roles import roles_of, updates_parameters, with_roles
from predictor.errors import CaptureError
from predictor.graph.ir import OpGraph, Role, TensorSpec, Workload

CAPTURED_OPTIMIZER = "captured"
"""Name of an optimizer that is part of the program: which one is not told."""
_MANY_DEVICES = 2


def graph_of_module(
    module: Module, *, name: str, mode: Literal["infer", "train"] | None = None,
    trips: int | None = None,
) -> OpGraph:  # fmt: skip
    """The operations of one step of a lowered program, on one of its devices.

    Args:
        module: what was read.
        name: what the user called it.
        mode: whether the program is a training step; found from its name stack when not given
            (text that was written without debug information has none).
        trips: iterations of loops whose number the program does not fix.

    Raises:
        CaptureError: a loop without a fixed number of iterations and no `trips`, a call that
            cannot be inlined, or inference asked of a program that differentiates.
    """
    if trips is not None and trips < 1:
        raise CaptureError(f"trips {trips} is no number of iterations: 1 or more")
    flat = flatten(module, ["input"] * len(module.main.args), trips=trips)
    _mark_kept(flat, module)
    flat = partitioned(flat, module)
    backward = any(node.phase == "backward" for node in flat.nodes)
    if mode == "infer" and backward:
        raise CaptureError(
            f"{name} is a training step (it differentiates): leave the mode out, or lower the "
            "forward function"
        )
    training = backward or mode == "train"
    roles = roles_of(flat, module.arguments, training=training)
    if not training and mode is None and updates_parameters(flat, roles):
        training = True
        roles = roles_of(flat, module.arguments, training=True)
    flat = with_roles(flat, roles)
    updates = any(node.phase == "optimizer" for node in flat.nodes) or "state" in roles
    return OpGraph(
        workload=_workload(
            flat, roles, name, training=training, updates=updates and training,
            devices=module.partitions * module.replicas, mapped=module.replicas > 1,
        ),
        nodes=tuple(flat.nodes),
    )  # fmt: skip


def _mark_kept(flat: Flattened, module: Module) -> None:
    """Mark the makers of results that need memory of their own to the end of the step.

    A result may take the memory of a donated argument of its type.
    """
    donated = Counter(
        (spec.shape, spec.dtype)
        for spec, argument in zip(flat.arguments, module.arguments, strict=True)
        if argument.updated
    )
    for ref in flat.results:
        kind = ref.spec.shape, ref.spec.dtype
        if donated[kind] > 0:
            donated[kind] -= 1
        elif ref.node is not None:
            node = flat.nodes[ref.node]
            flat.nodes[ref.node] = replace(node, attrs={**node.attrs, "kept": True})


def _workload(
    flat: Flattened, roles: Sequence[Role], name: str, *, training: bool, updates: bool,
    devices: int, mapped: bool,
) -> Workload:  # fmt: skip
    by_role: dict[str, list[TensorSpec]] = {}
    for spec, role in zip(flat.arguments, roles, strict=True):
        by_role.setdefault(role, []).append(spec)
    parameters, data = by_role.get("parameter", []), by_role.get("input", [])
    ids = next(
        (s for s in data if s.dtype.startswith("int") and len(_own_shape(s, mapped=mapped)) == 2),
        None,
    )
    size = sum(s.storage_bytes for s in parameters)
    warnings = list(flat.warnings)
    if devices >= _MANY_DEVICES:
        warnings.append(f"the program runs on {devices} devices: the figures are of one of them")
    count = sum(s.numel for s in parameters)
    return Workload(
        name=name,
        mode="train" if training else "infer",
        parameters=count,
        trainable_parameters=count if training else 0,
        parameters_bytes=size,
        buffers_bytes=0,
        inputs_bytes=sum(s.storage_bytes for s in data),
        batch=_batch(data, mapped=mapped),
        tokens=None if ids is None else ids.numel,
        dtype=_dtype(parameters or flat.arguments),
        optimizer=CAPTURED_OPTIMIZER if updates else None,
        source="stablehlo",
        trainable_bytes=size if training else 0,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _batch(data: Sequence[TensorSpec], *, mapped: bool) -> int | None:
    """The first axis of the largest input, behind the one that `pmap` puts before it."""
    largest = sorted(data, key=lambda s: -s.numel)
    shapes = (_own_shape(s, mapped=mapped) for s in largest)
    return next((shape[0] for shape in shapes if shape), None)


def _own_shape(spec: TensorSpec, *, mapped: bool) -> tuple[int, ...]:
    """A shape without the axis of 1 that `pmap` puts before the others."""
    return spec.shape[1:] if mapped and spec.shape[:1] == (1,) else spec.shape


def _dtype(specs: Sequence[TensorSpec]) -> str:
    """Dtype of most floating-point elements."""
    counts: dict[str, int] = {}
    for spec in specs:
        if spec.dtype.startswith(("fp", "bf")):
            counts[spec.dtype] = counts.get(spec.dtype, 0) + spec.numel
    return max(counts, key=lambda dtype: counts[dtype]) if counts else "fp32"
