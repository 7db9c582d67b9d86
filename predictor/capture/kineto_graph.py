"""An op graph from calls that ran: replayed nodes placed one after another.

Where the ids of tensors are known (execution graphs), they give storages and dependencies; where
not, every call depends on the one before, as the program ran them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from predictor.capture.kineto import RecordedCall
from predictor.capture.kineto_arguments import TENSOR_LISTS, TORCH_TYPES
from predictor.capture.specs import DTYPE_NAMES
from predictor.graph.ir import DTYPE_BYTES, OpNode, Phase, TensorSpec

OPAQUE = "kineto"
"""Namespace of calls that are not known: `kineto.fbgemm::permute`."""
MEASURED = "measured_us"
"""Attribute of a node: time that its call took in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """A tensor of a call whose storage is known by number."""

    storage: int
    shape: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class GraphWriter:
    """Collects nodes in the order in which their calls were made."""

    nodes: list[OpNode] = field(default_factory=list)
    _next_storage: int = 0
    _storages: dict[int, int] = field(default_factory=dict)
    _writers: dict[int, int] = field(default_factory=dict)

    def add(
        self,
        nodes: Sequence[OpNode],
        phase: Phase,
        *,
        measured_us: float | None = None,
        inputs: Sequence[NamedTensor] | None = None,
        outputs: Sequence[NamedTensor] = (),
    ) -> None:
        """Place a call's nodes.

        Args:
            nodes: as replayed; their storages are their own.
            phase: of the call.
            measured_us: what the call took.
            inputs: its tensors with known storages; None where storages are not known: the call
                then depends on the one before.
            outputs: its results with known storages.
        """
        mapping = self._storage_map(nodes, inputs or (), outputs)
        for place, node in enumerate(nodes):
            moved = replace(
                node, phase=phase, inputs=_moved(node.inputs, mapping),
                outputs=_moved(node.outputs, mapping),
                attrs={**node.attrs, MEASURED: round(measured_us, 3)}
                if measured_us is not None and place == len(nodes) - 1 else node.attrs,
                deps=(),
            )  # fmt: skip
            self.nodes.append(replace(moved, deps=self._deps(moved, chained=inputs is None)))
            self._note_writes(moved)

    def add_time(self, measured_us: float) -> None:
        """More time of the call placed last."""
        last = self.nodes[-1]
        known = last.attrs.get(MEASURED, 0.0)
        assert isinstance(known, float)
        self.nodes[-1] = replace(last, attrs={**last.attrs, MEASURED: known + measured_us})

    def add_opaque(
        self,
        name: str,
        call: RecordedCall | None,
        phase: Phase,
        reason: str,
        measured_us: float | None,
    ) -> bool:
        """Place a call of which only the operands' sizes are known, or not even these.

        Returns:
            Whether operands are known: without any the call takes no time in an estimate.
        """
        node = OpNode(
            op=f"{OPAQUE}.{name}", phase=phase, outputs=(),
            inputs=() if call is None else operand_specs(call),
            attrs={"opaque": True, "reason": reason},
        )  # fmt: skip
        self.add([node], phase, measured_us=measured_us)
        return any(spec.numel for spec in node.inputs)

    def _storage_map(
        self,
        nodes: Sequence[OpNode],
        inputs: Sequence[NamedTensor],
        outputs: Sequence[NamedTensor],
    ) -> dict[int, int]:
        """Storages of the graph by those of a replay; known tensors are matched by their shape."""
        mapping: dict[int, int] = {}
        made: set[int] = set()
        given, results = list(inputs), list(outputs)
        for node in nodes:
            for spec in node.inputs:
                if spec.storage_id not in made:
                    self._match(spec, given, mapping)
            made.update(spec.storage_id for spec in node.outputs)
        for spec in nodes[-1].outputs if nodes else ():
            self._match(spec, results, mapping)
        for node in nodes:
            for spec in (*node.inputs, *node.outputs):
                if spec.storage_id not in mapping:
                    mapping[spec.storage_id] = self._fresh()
        return mapping

    def _match(self, spec: TensorSpec, known: list[NamedTensor], mapping: dict[int, int]) -> None:
        if spec.storage_id in mapping:
            return
        for tensor in known:
            if tensor.shape == spec.shape:
                if tensor.storage not in self._storages:
                    self._storages[tensor.storage] = self._fresh()
                mapping[spec.storage_id] = self._storages[tensor.storage]
                known.remove(tensor)
                return

    def _fresh(self) -> int:
        self._next_storage += 1
        return self._next_storage - 1

    def _deps(self, node: OpNode, *, chained: bool) -> tuple[int, ...]:
        found = {self._writers[s.storage_id] for s in node.inputs if s.storage_id in self._writers}
        if chained and self.nodes:
            found.add(len(self.nodes) - 1)
        return tuple(sorted(found))

    def _note_writes(self, node: OpNode) -> None:
        if node.attrs.get("view"):
            return
        index = len(self.nodes) - 1
        written = node.outputs or (node.inputs if node.attrs.get("inplace") else ())
        for spec in written:
            self._writers[spec.storage_id] = index


def operand_specs(call: RecordedCall) -> tuple[TensorSpec, ...]:
    """Operands of a call by their recorded sizes and types, each a storage of its own."""
    found: list[TensorSpec] = []
    for sizes, kind in zip(call.dims, call.types, strict=False):
        several = kind in TENSOR_LISTS
        if not several and kind not in TORCH_TYPES:
            continue
        told = TENSOR_LISTS[kind] if several else TORCH_TYPES[kind]
        dtype = "fp32" if told is None else DTYPE_NAMES[told]
        for shape in sizes if several else (sizes,):
            if all(isinstance(size, int) for size in shape):
                found.append(_spec(tuple(shape), dtype, len(found)))
    return tuple(found)


def _spec(shape: tuple[int, ...], dtype: str, storage: int) -> TensorSpec:
    size = DTYPE_BYTES[dtype]
    for length in shape:
        size *= length
    return TensorSpec(
        shape=shape, dtype=dtype, storage_id=storage, storage_bytes=int(size),
        touched_bytes=int(size),
    )  # fmt: skip


def _moved(specs: Sequence[TensorSpec], mapping: Mapping[int, int]) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, storage_id=mapping[spec.storage_id]) for spec in specs)
