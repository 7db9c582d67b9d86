"""A program with real weights and inputs on the device at hand, run one step at a time.

Weights are random: times do not depend on them, as long as none is a NaN or a denormal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from predictor import zoo
from predictor.capture import timm_models
from predictor.capture.failures import PROGRAM_ERRORS, first_line, program_line
from predictor.capture.losses import step_loss
from predictor.capture.metacopy import uncompiled
from predictor.capture.specs import TORCH_DTYPES, dtype_name
from predictor.capture.target import DTYPES, load_program
from predictor.capture.torch import capture_module
from predictor.errors import CaptureError, PredictorError
from predictor.graph.ir import HALVES, OpGraph, autocast_of
from predictor.traces.measure.real_values import real_inputs, set_weights

Mode = Literal["infer", "train"]
Mark = Callable[[str], AbstractContextManager[Any]]
"""Makes a context around a phase of a step."""
SEED = 0
LEARNING_RATE = 1e-6


@dataclass(slots=True)
class RealProgram:
    """A module that can be run and captured.

    Args:
        name: what rows call it.
        module: on the device, in the mode that it runs in.
        inputs: keyword inputs, on the device.
        args: positional inputs, on the device.
        mode: `infer` or `train`.
        dtype: `fp32`, `bf16`, `fp16`, `amp-bf16` or `amp-fp16`; module and inputs are in it.
        optimizer: `adamw`, `sgd`; training only.
        facts: sizes that rows tell: `batch`, `seq`, `size`.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    mode: Mode = "infer"
    dtype: str = "fp32"
    optimizer: str | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    _updater: torch.optim.Optimizer | None = None
    _targets: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    _run: Callable[..., Any] | None = None

    @property
    def key(self) -> str:
        """What tells the step from all others."""
        sizes = " ".join(f"{n}={v:g}" for n, v in self.facts.items())
        compiled = "compiled" if self.compiled else ""
        words = (self.name, self.mode, self.dtype, self.optimizer or "", sizes, compiled)
        return " ".join(word for word in words if word)

    def graph(self) -> OpGraph:
        """The captured step."""
        amp = autocast_of(self.dtype)
        return capture_module(
            self.module, self.args, self.inputs, mode=self.mode, amp=amp, name=self.name,
            optimizer=self.optimizer if self.mode == "train" else None,
        )  # fmt: skip

    def compile(self) -> None:
        """Run the module through `torch.compile` from now on."""
        self._run = torch.compile(self.module)

    @property
    def compiled(self) -> bool:
        """Whether it runs under `torch.compile`, by `compile` or as it came, or a part of it."""
        return self._run is not None or any(_is_compiled(m) for m in self.module.modules())

    def step(self, mark: Mark = lambda phase: nullcontext()) -> None:
        """One step, each phase in a context that `mark` makes of its name.

        Raises:
            CaptureError: the program fails; its own error is the cause.
        """
        try:
            self._step(mark)
        except PROGRAM_ERRORS as error:
            raise run_failure(self.name, error) from error

    def _step(self, mark: Mark) -> None:
        if self.mode == "infer":
            with mark("forward"), torch.no_grad(), self._autocast():
                self._forward()
            return
        updater = self._updater_of()
        with mark("forward"):
            updater.zero_grad(set_to_none=True)
            with self._autocast():
                loss, _ = step_loss(
                    self._forward(), None, token_shape=self._token_shape(),
                    make_target=self._target,
                )  # fmt: skip
        with mark("backward"):
            loss.backward()
        with mark("optimizer"):
            updater.step()

    def _forward(self) -> Any:
        run = self.module if self._run is None else self._run
        return run(*self.args, **self.inputs)

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.dtype.startswith("amp-"):
            return nullcontext()
        kind = TORCH_DTYPES[self.dtype.removeprefix("amp-")]
        return torch.autocast(self._device().type, dtype=kind)

    def _updater_of(self) -> torch.optim.Optimizer:
        if self._updater is None:
            parameters = [p for p in self.module.parameters() if p.requires_grad]
            kind = torch.optim.SGD if self.optimizer == "sgd" else torch.optim.AdamW
            self._updater = kind(parameters, lr=LEARNING_RATE)
        return self._updater

    def _token_shape(self) -> tuple[int, ...] | None:
        for value in (*self.args, *self.inputs.values()):
            if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
                return tuple(value.shape)
        return None

    def _target(self, shape: tuple[int, ...]) -> Tensor:
        """Class labels of a loss that the program did not bring: made once."""
        if shape not in self._targets:
            self._targets[shape] = torch.zeros(shape, dtype=torch.long, device=self._device())
        return self._targets[shape]

    def _device(self) -> torch.device:
        """Where the program's tensors are; a module may have no parameters."""
        tensors = (*self.module.parameters(), *self.args, *self.inputs.values())
        found = (v.device for v in tensors if isinstance(v, Tensor))
        return next(found, torch.device("cpu"))


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module is the wrapper of `torch.compile`, or was compiled in place."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or uncompiled(module) is not module


def run_failure(name: str, error: BaseException) -> PredictorError:
    """The error to raise for a program that fails when it is made or run.

    Args:
        name: of the program.
        error: what it raised.
    """
    if isinstance(error, PredictorError):
        return error
    line = program_line(error.__traceback__)
    place = f" in {line}" if line else ""
    return CaptureError(
        f"{name} fails when it runs{place}: {type(error).__name__}: {first_line(error)}; "
        "run its step with PyTorch to see more"
    )


def real_program(
    target: str,
    *,
    device: str,
    mode: Mode = "infer",
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
) -> RealProgram:
    """A named target with real weights.

    Args:
        target: a zoo name, `timm:NAME[@PIXELS]` or `file.py:function`.
        device: `cpu` or `cuda`.
        mode: `infer` or `train`.
        batch: batch size.
        seq: sequence length.
        dtype: as `predictor estimate --dtype`; as its weights are when not given.
        optimizer: `adamw` (when not given) or `sgd`, training only.

    Raises:
        UnknownTargetError, CaptureError: as `predictor capture`; so for a dtype that does not work
            and an optimizer without a training step.
    """
    if dtype is not None and dtype not in DTYPES:
        raise CaptureError(f"dtype {dtype!r} cannot be measured; one of: {', '.join(DTYPES)}")
    if optimizer is not None and mode != "train":
        raise CaptureError(f"optimizer {optimizer!r} needs a training step: mode='train' (--train)")
    facts: dict[str, float] = {}
    name = target
    args: tuple[Any, ...] = ()
    inputs: Mapping[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if target in zoo.ZOO:
            wanted = zoo.build(target, mode=mode, batch=batch, seq=seq).inputs
            with torch.device(device):
                module = zoo.ZOO[target].build()
            inputs = real_inputs(wanted, module, device)
            entry = zoo.ZOO[target]
            facts["batch"] = batch or entry.batch
            if entry.seq is not None:
                facts["seq"] = seq or entry.seq
        elif target.startswith(timm_models.PREFIX):
            shape = timm_models.program(target, batch=batch, seq=seq)[1].shape
            module = _timm_module(target).to(device)
            args = (torch.randn(shape, device=device),)
            facts |= {"batch": shape[0], "size": shape[-1]}
        else:
            module, args, inputs = _own_program(target, device, batch=batch, seq=seq)
            first = next((v for v in (*args, *inputs.values()) if isinstance(v, Tensor)), None)
            facts["batch"] = batch or (first.shape[0] if first is not None and first.dim() else 1)
            facts |= {} if seq is None else {"seq": seq}
            file, _, function = target.rpartition(":")
            name = f"{Path(file).name}:{function}"
    program = RealProgram(
        name, module, inputs, args, mode=mode,
        dtype=dtype or _held_dtype((*module.parameters(), *args, *inputs.values())),
        optimizer=(optimizer or "adamw") if mode == "train" else None, facts=facts,
    )  # fmt: skip
    return prepared(program, cast=dtype in HALVES)


def _held_dtype(values: Iterable[Any]) -> str:
    """Dtype of the first floating-point tensor; fp32 where there is none."""
    tensors = (v for v in values if isinstance(v, Tensor) and v.is_floating_point())
    first = next(tensors, None)
    return "fp32" if first is None else dtype_name(first.dtype)


def _own_program(
    target: str, device: str, *, batch: int | None, seq: int | None
) -> tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]:
    """Module, positional and keyword inputs of `file.py:function`, on the device."""
    module, given = load_program(target, batch=batch, seq=seq)
    if any(t.is_meta for t in (*module.parameters(), *module.buffers())):
        raise CaptureError(f"{target}: a module on the meta device cannot be run")
    try:
        module = module.to(device)
        moved = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, given)
    except PROGRAM_ERRORS as error:
        raise run_failure(target, error) from error
    if isinstance(moved, Mapping):
        return module, (), moved
    return module, tuple(moved) if isinstance(moved, (tuple, list)) else (moved,), {}


def _timm_module(target: str) -> nn.Module:
    """A timm model in memory, sized where its constructor takes a size."""
    name, size = timm_models.split_target(target)
    return timm_models.create_module(timm_models.load_timm(), name, size, device="cpu")


def prepared(program: RealProgram, *, cast: bool = True) -> RealProgram:
    """The program with sound weights, in its mode.

    Args:
        program: as it was built.
        cast: whether weights and inputs are brought to its dtype, where that is a half precision.

    Raises:
        CaptureError: the module cannot be brought there; its own error is the cause.
    """
    try:
        return _prepared(program, cast=cast)
    except PROGRAM_ERRORS as error:
        raise run_failure(program.name, error) from error


def _prepared(program: RealProgram, *, cast: bool) -> RealProgram:
    set_weights(program.module)
    program.module.train(program.mode == "train")
    if cast and program.dtype in HALVES:
        to = TORCH_DTYPES[program.dtype]

        def moved(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(to) if floating else value

        program.module.to(to)
        program.inputs = {name: moved(value) for name, value in program.inputs.items()}
        program.args = tuple(moved(value) for value in program.args)
    return program
