"""One capture: the modes in force, what must be restored afterwards, and the resulting graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from predictor.capture import sparse
from predictor.capture.autocast import CastPolicy, honoured
from predictor.capture.dispatch import RecordDispatch
from predictor.capture.environment import as_on_device
from predictor.capture.failures import PROGRAM_ERRORS, capture_failure
from predictor.capture.functions import RouteFunctions
from predictor.capture.known import KnownValues
from predictor.capture.metacopy import MetaCopy
from predictor.capture.recorder import Recorder
from predictor.capture.specs import TORCH_DTYPES
from predictor.capture.workload import describe, size_bytes, token_shape
from predictor.errors import CaptureError, PredictorError
from predictor.graph.ir import OpGraph

_lock = threading.RLock()


class Session:
    """Holds the copy of the program and the recorder while its step runs.

    Args:
        name: what is being captured, for messages and the graph.
        amp: `fp16` or `bf16` for autocast, None for none.
    """

    def __init__(self, name: str, amp: str | None) -> None:
        self.name = name
        self.amp = None if amp is None else TORCH_DTYPES[amp]
        self.recorder = Recorder()
        self.known = KnownValues(self.recorder)
        self.policy = CastPolicy(self.amp)
        self.copy = MetaCopy()
        self.warnings = self.recorder.notes
        self._inputs: list[torch.Tensor] = []
        self._states: list[torch.Tensor] = []
        self._stepping = False
        self._modules: list[nn.Module] = []

    # -- taking the program in ------------------------------------------------------------------

    def take_module(self, module: nn.Module) -> nn.Module:
        """A meta copy of a module, watched: its parameters, buffers and calls are known."""
        with self.guarded():
            twin: nn.Module = self.copy(module)
        self.watch_module(twin)
        return twin

    def watch_module(self, twin: nn.Module) -> None:
        """Know a copied module's parameters and buffers, and follow its calls."""
        self._modules.append(twin)
        for path, child in twin.named_modules():
            _follow(self.recorder, child, path)

    def take_inputs(self, value: Any) -> Any:
        """A meta copy of the inputs (any pytree or object that holds tensors)."""
        before, sparse_before = len(self.copy.tensors), len(self.copy.sparse)
        with self.guarded():
            twin = self.copy(value)
        self._inputs.extend(self.copy.tensors[before:])
        self._inputs.extend(self.copy.sparse[sparse_before:])
        return twin

    def take_step(self, value: Any) -> Any:
        """A meta copy of a step's arguments: modules, optimizers and tensors together."""
        self._stepping = True
        with self.guarded():
            twin = self.copy(value)
        modules = self.copy.copies(nn.Module)
        inner = {id(child) for module in modules for child in module.children()}
        for module in modules:
            if id(module) not in inner:
                self.watch_module(module)
        held = {id(t) for module in modules for t in (*module.parameters(), *module.buffers())}
        states = {
            id(t)
            for optimizer in self.copy.copies(torch.optim.Optimizer)
            for state in optimizer.state.values()
            for t in state.values()
            if isinstance(t, torch.Tensor)
        }
        self._states = [t for t in self.copy.tensors if id(t) in states]
        taken = (*self.copy.tensors, *self.copy.sparse)
        self._inputs.extend(t for t in taken if id(t) not in held | states)
        return twin

    def has_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter got a gradient, dense or sparse."""
        return parameter.grad is not None or self.recorder.sparse_gradient_rows(parameter) > 0

    def add_input(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        strides: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """A device tensor that the step reads and the program did not make (labels)."""
        with self.recorder.pause():
            made = torch.empty(shape, dtype=dtype, device="meta")
            if strides is not None:
                made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        self.recorder.tensors.set_role(made, "input")
        self._inputs.append(made)
        return made

    def cast(self, dtype: str, value: Any) -> Any:
        """Floating-point tensors of a copied pytree in another dtype."""
        to = TORCH_DTYPES[dtype]
        if isinstance(value, nn.Module):
            return value.to(to)
        swapped: dict[int, torch.Tensor] = {}

        def one(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                return tensor
            if id(tensor) not in swapped:
                cast = sparse.cast if sparse.is_sparse(tensor) else torch.Tensor.to
                swapped[id(tensor)] = cast(tensor.detach(), to).requires_grad_(tensor.requires_grad)
            return swapped[id(tensor)]

        result = torch.utils._pytree.tree_map(one, value)
        self._inputs = [swapped.get(id(t), t) for t in self._inputs]
        return result

    # -- running --------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """The modes in force; random states, flags and library state return to what they were."""
        self._mark_roles()
        with self.guarded(), _lock, ExitStack() as stack:
            stack.enter_context(as_on_device())
            stack.enter_context(honoured(self.policy))
            stack.enter_context(RecordDispatch(self.recorder, self.known))
            stack.enter_context(RouteFunctions(self.recorder, self.policy, self.known))
            yield

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast region of the step."""
        if self.amp is None:
            return nullcontext()
        return torch.autocast("cuda", dtype=self.amp)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Failures inside become a `CaptureError` that says where."""
        try:
            yield
        except PredictorError as error:
            if getattr(error, "placed", False):
                raise
            raise self._placed(error) from error
        except PROGRAM_ERRORS as error:
            raise self._placed(error) from error

    def _placed(self, error: BaseException) -> CaptureError:
        stack = self.recorder.module_stack
        failure = capture_failure(self.name, stack[-1] if stack else "", error)
        failure.placed = True  # type: ignore[attr-defined]
        return failure

    def _mark_roles(self) -> None:
        for module in self._modules:
            for parameter in module.parameters():
                self.recorder.tensors.set_role(parameter, "parameter")
            for buffer in module.buffers():
                self.recorder.tensors.set_role(buffer, "buffer")
        for tensor in self._inputs:
            self.recorder.tensors.set_role(tensor, "input")
        for tensor in self._states:
            self.recorder.tensors.set_role(tensor, "state")
        parameters = {id(p) for p in self.parameters()}
        for twin, real in self.copy.pairs():
            if id(twin) not in parameters:
                self.known.learn(twin, real)

    # -- result ---------------------------------------------------------------------------------

    @property
    def token_shape(self) -> tuple[int, ...] | None:
        """Shape of the token ids among the inputs."""
        return token_shape(self._inputs)

    def parameters(self) -> list[torch.Tensor]:
        """Distinct parameters of all modules taken in."""
        found = {id(p): p for module in self._modules for p in module.parameters()}
        return list(found.values())

    def graph(
        self,
        mode: Literal["infer", "train"],
        *,
        optimizer: str | None = None,
        updated: Sequence[torch.Tensor] = (),
    ) -> OpGraph:
        """The captured graph.

        Raises:
            CaptureError: nothing ran on the device tensors.
        """
        for parameter in self.parameters():
            if parameter.grad is not None:
                self.recorder.tensors.set_role(parameter.grad, "gradient")
        if self.recorder.op_count == 0 and (self.parameters() or self._stepping):
            raise CaptureError(
                f"cannot capture {self.name}: no call on its tensors was seen; pass the module "
                "and the tensors that the program uses as arguments, not through globals"
            )
        if self.copy.compiled:
            self.warnings.append("torch.compile is left out: the program is taken as eager PyTorch")
        given_reads = self.known.reads - self.known.assumed_reads
        if given_reads:
            self.warnings.append(
                "the program reads tensor values (`.item()`, branches, masks), taken from the "
                f"inputs as given; reads: {given_reads}; on a device the host waits there, "
                "which is not counted"
            )
        if self.known.assumed_reads:
            self.warnings.append(
                "the program reads which experts its router picks (`topk`): taken as balanced, "
                f"every expert gets the same share; reads: {self.known.assumed_reads}; on a device "
                "the host waits there, which is not counted"
            )
        buffers = {id(b): b for module in self._modules for b in module.buffers()}
        workload = describe(
            name=self.name,
            mode=mode,
            parameters=self.parameters(),
            buffers=buffers.values(),
            inputs=self._inputs,
            amp=self.amp,
            optimizer=optimizer,
            gradient_bytes=sum(self._gradient_bytes(p) for p in updated),
            warnings=self.warnings,
        )
        return OpGraph(workload=workload, nodes=self.recorder.nodes())

    def _gradient_bytes(self, parameter: torch.Tensor) -> int:
        rows = self.recorder.sparse_gradient_rows(parameter)
        whole = size_bytes(parameter)
        return rows * whole // parameter.shape[0] if rows else whole


def _follow(recorder: Recorder, module: nn.Module, path: str) -> None:
    """Hooks on a copied module that keep the stack of running modules."""
    depths: list[int] = []
    stack = recorder.module_stack

    def enter(_module: nn.Module, _args: Any) -> None:
        depths.append(len(stack))
        stack.append(path)
        recorder.mark_module()

    def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
        del stack[depths.pop() :]
        recorder.mark_module()

    module.register_forward_pre_hook(enter, prepend=True)
    module.register_forward_hook(leave)
