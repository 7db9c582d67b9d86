"""A program for many devices, as one of them runs it: tensors cut, collectives put in.

The shapes of an annotated program are of all devices together. Splits go forward from the arguments
through every operation, dimension by dimension; where operands do not fit together, the one that
costs least is gathered, and where a split dimension is summed, the result is reduced over its
devices (to the shard that an argument of its shape has: FSDP's gradients). What a loop carries lies
as its body gives it, or is moved every iteration; results are moved to where the program wants
them. A partitioner such as Shardy searches further, from the results back too: figures are rough
where a program leaves it much to decide. Regions written for one device (`shard_map`) are taken as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from predictor.capture.stablehlo.flattening import Flattened
from predictor.capture.stablehlo.records import Module
from predictor.capture.stablehlo.refs import Carry, Ref
from predictor.capture.stablehlo.sharding import Mesh, Split
from predictor.capture.stablehlo.splits import borders, wanted_of
from predictor.graph.ir import DTYPE_BYTES, OpNode, TensorSpec

RESHARD = "sdy.sharding_constraint"
MOST_ROUNDS = 4
"""Times that a program is cut, until what its loops carry lies as their bodies give it."""
_Key: TypeAlias = tuple[int, tuple[int, ...]]
"""A tensor: its storage and the shape that it is seen in."""
LINEAR: frozenset[str] = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "negate")
)
"""Operations that a sum over devices may wait for."""


def partitioned(flat: Flattened, module: Module) -> Flattened:
    """The nodes on one device, unchanged where no argument is split."""
    mesh = Mesh(module.meshes)
    splits = [
        mesh.split(argument.sharding, len(spec.shape)) or ((),) * len(spec.shape)
        for argument, spec in zip(module.arguments, flat.arguments, strict=True)
    ]
    asked = [
        None if "?" in text else mesh.split(text, len(ref.spec.shape))
        for text, ref in zip(module.result_shardings, flat.results, strict=False)
    ]
    stated = [node for node in flat.nodes if node.op == RESHARD]
    if not stated and not any(axes for split in (*splits, *filter(None, asked)) for axes in split):
        return flat
    taken: dict[_Key, Split] = {}
    for _ in range(MOST_ROUNDS):
        cut = _Cutter(mesh, flat, splits, taken)
        cut.run(flat)
        found = {**taken, **cut.suits}
        if found == taken:
            break
        taken = found
    cut.hand_out(flat.results, asked)
    arguments = [cut.local(spec, split) for spec, split in zip(flat.arguments, splits, strict=True)]
    results = [Ref(ref.spec, ref.node) for ref in flat.results]
    return Flattened(cut.nodes, arguments, results, flat.warnings)


class _Cutter:
    """Places nodes with local tensors."""

    def __init__(
        self, mesh: Mesh, flat: Flattened, splits: Sequence[Split], taken: Mapping[_Key, Split]
    ) -> None:
        self.mesh = mesh
        self.taken = taken
        """Splits of what loops carry, as an earlier round found that they suit their bodies."""
        self.suits: dict[_Key, Split] = {}
        self.nodes: list[OpNode] = []
        self.number: dict[int, int] = {}
        self.split: dict[_Key, Split] = {}
        self.partial: dict[_Key, tuple[str, ...]] = {}
        self.moved: dict[tuple[int, tuple[int, ...], Split], TensorSpec] = {}
        self.shard_of: dict[tuple[int, ...], Split] = {}
        self.made: dict[int, int] = {}
        """Nodes that make a tensor from scalars alone, by storage: they can make any part of it."""
        self.storages = max(
            (s.storage_id for n in flat.nodes for s in (*n.inputs, *n.outputs)), default=0
        )
        for spec, split in zip(flat.arguments, splits, strict=True):
            self.split[spec.storage_id, spec.shape] = split
            if any(split):
                self.shard_of.setdefault(spec.shape, split)
            if any(split[1:]):  # one layer of parameters that a scan stacks
                self.shard_of.setdefault(spec.shape[1:], split[1:])
                self.shard_of.setdefault((1, *spec.shape[1:]), ((), *split[1:]))

    def run(self, flat: Flattened) -> None:
        """Place all nodes, and what loops carry between them."""
        starts: dict[int, list[Carry]] = {}
        ends: dict[int, list[Carry]] = {}
        for carry in flat.carries:
            starts.setdefault(carry.first, []).append(carry)
            ends.setdefault(carry.end, []).append(carry)
        for number, node in enumerate(flat.nodes):
            for carry in starts.get(number, ()):
                self.enter(carry)
            self.place(number, node)
            for carry in ends.get(number + 1, ()):
                if carry.first < carry.end:
                    self.next_trip(carry, node)

    def enter(self, carry: Carry) -> None:
        """A whole tensor goes into a loop as the loop's body gives it: cutting it costs nothing."""
        key = (carry.before.storage_id, carry.before.shape)
        split = self.taken.get(key)
        if split is not None:
            self.cut_back(carry.before, split)
            self.split[key] = split

    def next_trip(self, carry: Carry, node: OpNode) -> None:
        """A tensor that the body gives in another split than it takes is moved every time."""
        node = replace(node, attrs=carry.place.marks)
        deps = {len(self.nodes) - 1} if self.nodes else set()
        self.reduce(carry.after, node, deps)
        mine, want = self.split_of(carry.after), self.split_of(carry.before)
        if carry.before.storage_id == carry.after.storage_id:
            return
        used = {axis for axes in want for axis in axes}
        suits = tuple(
            old or (new if used.isdisjoint(new) else ())
            for old, new in zip(want, mine, strict=True)
        )
        if suits != want:
            self.suits[carry.before.storage_id, carry.before.shape] = suits
        self.moved_to(carry.after, want, node, deps)

    def hand_out(self, results: Sequence[Ref], asked: Sequence[Split | None]) -> None:
        """The results as the program says that they are to lie."""
        if not self.nodes:
            return
        node = replace(self.nodes[-1], attrs={})
        for ref, split in zip(results, asked, strict=False):
            if split is not None:
                deps = {len(self.nodes) - 1}
                self.reduce(ref.spec, node, deps, to=split)
                self.moved_to(ref.spec, split, node, deps)

    def local(self, spec: TensorSpec, split: Split) -> TensorSpec:
        """A tensor as one device holds it."""
        shape = tuple(
            math.ceil(size / self.mesh.count(axes))
            for size, axes in zip(spec.shape, split, strict=True)
        )
        if shape == spec.shape:
            return spec
        share = math.prod(shape) / max(1, spec.numel)
        return replace(
            spec, shape=shape, storage_bytes=math.ceil(spec.storage_bytes * share),
            touched_bytes=math.ceil(spec.touched_bytes * share),
        )  # fmt: skip

    def split_of(self, spec: TensorSpec) -> Split:
        """How a tensor is split here; whole where nothing was said."""
        return self.split.get((spec.storage_id, spec.shape), ((),) * len(spec.shape))

    def place(self, number: int, node: OpNode) -> None:
        """One node, with what its operands need before it."""
        deps = {self.number[d] for d in node.deps if d in self.number}
        if node.op == RESHARD:
            self.reshard(number, node)
            return
        waiting = self.waits(node)
        inputs: list[TensorSpec] = []
        if not waiting:
            for spec in node.inputs:
                self.reduce(spec, node, deps)
        wanted = wanted_of(node, [self.split_of(s) for s in node.inputs], self.mesh)
        for spec, split in zip(node.inputs, wanted.inputs, strict=True):
            inputs.append(self.moved_to(spec, split, node, deps))
        for dim, places in borders(node, wanted.inputs[0]) if inputs else ():
            shape = tuple(places if i == dim else n for i, n in enumerate(inputs[0].shape))
            self.storages += 1
            size = int(math.prod(shape) * DTYPE_BYTES[inputs[0].dtype])
            edge = TensorSpec(
                shape=shape, dtype=inputs[0].dtype, storage_id=self.storages, storage_bytes=size,
                touched_bytes=size,
            )  # fmt: skip
            self.collective("collective_permute", edge, edge, wanted.inputs[0][dim], node, deps)
        outputs = []
        for spec, split in zip(node.outputs, wanted.outputs, strict=True):
            self.split[spec.storage_id, spec.shape] = split
            outputs.append(self.local(spec, split))
            key = (spec.storage_id, spec.shape)
            self.partial.pop(key, None)
            summed = wanted.summed or (waiting or ())
            if summed:
                self.partial[key] = summed
        if self.from_scalars(node):
            self.made.update((spec.storage_id, len(self.nodes)) for spec in node.outputs)
        self.number[number] = len(self.nodes)
        self.nodes.append(
            replace(
                node, inputs=tuple(inputs), outputs=tuple(outputs), deps=tuple(sorted(deps)),
                attrs=_local_attrs(node, inputs, outputs),
            )
        )  # fmt: skip
        if node.attrs.get("escapes"):
            for spec in node.outputs:
                self.reduce(spec, node, set())

    def from_scalars(self, node: OpNode) -> bool:
        """Whether a tensor is filled, counted up, or computed element by element from such."""
        return not node.attrs.get("in_place") and not node.attrs.get("view") and all(
            spec.numel == 1 or spec.storage_bytes == 0
            or (spec.storage_id in self.made and spec.shape == node.outputs[0].shape)
            for spec in node.inputs
        ) and bool(node.outputs)  # fmt: skip

    def cut_back(self, spec: TensorSpec, split: Split) -> None:
        """Make no more of a tensor than what is asked for, where its maker can."""
        place = self.made.get(spec.storage_id)
        key = (spec.storage_id, spec.shape)
        if place is None or key not in self.split or any(self.split[key]):
            return
        node = self.nodes[place]
        whole = [s for s in node.outputs if s.storage_id == spec.storage_id]
        if len(whole) != 1 or whole[0].shape != spec.shape:
            return
        self.split[key] = split
        for given in node.inputs:
            if given.storage_id in self.made and given.shape == spec.shape:
                self.cut_back(given, split)
        cut = tuple(self.local(s, split) if s.shape == spec.shape else s for s in node.outputs)
        inputs = tuple(self.local(s, split) if s.shape == spec.shape else s for s in node.inputs)
        self.nodes[place] = replace(node, inputs=inputs, outputs=cut)

    def waits(self, node: OpNode) -> tuple[str, ...] | None:
        """Axes that an operand is still to be summed over, where the operation may go first."""
        if node.op not in LINEAR or not node.inputs or node.attrs.get("escapes"):
            return None
        spec = node.inputs[0]
        return self.partial.get((spec.storage_id, spec.shape))

    def reshard(self, number: int, node: OpNode) -> None:
        """A constraint of the program on a value."""
        spec = node.inputs[0]
        split = self.mesh.split(str(node.attrs.get("sharding", "")), len(spec.shape))
        deps: set[int] = {self.number[d] for d in node.deps if d in self.number}
        if split is not None:
            self.reduce(spec, node, deps, to=split)
            mine = self.split_of(spec)
            if any(set(old) - set(new) for old, new in zip(mine, split, strict=True)):
                self.moved_to(spec, split, node, deps)
            self.split[spec.storage_id, spec.shape] = split
        self.number[number] = max(deps, default=0)

    def reduce(
        self, spec: TensorSpec, node: OpNode, deps: set[int], *, to: Split | None = None
    ) -> None:
        """Sum a value over the devices that hold parts of the sum, once."""
        key = (spec.storage_id, spec.shape)
        axes = self.partial.pop(key, None)
        if not axes:
            return
        split = self.split_of(spec)
        target = to or self.shard_of.get(spec.shape)
        if target is not None and {a for dim in target for a in dim} >= set(axes):
            self.split[key] = target
            given, result = self.local(spec, split), self.local(spec, target)
            self.collective("reduce_scatter", given, replace(result), axes, node, deps)
        else:
            given = self.local(spec, split)
            self.collective("all_reduce", given, given, axes, node, deps)

    def moved_to(self, spec: TensorSpec, split: Split, node: OpNode, deps: set[int]) -> TensorSpec:
        """The operand in the split that an operation wants, gathered where it must be."""
        if any(split):
            self.cut_back(spec, split)
        mine = self.split_of(spec)
        lost = {a for old, new in zip(mine, split, strict=True) for a in set(old) - set(new)}
        if not lost:
            return self.local(spec, split)
        key = (spec.storage_id, spec.shape, split)
        if key not in self.moved:
            given, result = self.local(spec, mine), self.local(spec, split)
            self.storages += 1
            fresh = replace(
                result, storage_id=self.storages, role="activation",
                storage_bytes=max(result.touched_bytes, result.storage_bytes),
            )  # fmt: skip
            elsewhere = {a for dim in split for a in dim}
            op = "all_to_all" if lost <= elsewhere else "all_gather"
            self.collective(op, given, fresh, tuple(sorted(lost)), node, deps)
            self.moved[key] = fresh
        return self.moved[key]

    def collective(
        self, op: str, given: TensorSpec, result: TensorSpec, axes: Sequence[str], node: OpNode,
        deps: set[int],
    ) -> None:  # fmt: skip
        """Put an exchange in before a node."""
        attrs: dict[str, object] = {"replica_groups": [1, self.mesh.count(axes)], "body": ["add"]}
        attrs |= {name: node.attrs[name] for name in ("trips", "loop") if name in node.attrs}
        self.nodes.append(
            OpNode(
                op=f"stablehlo.{op}", phase=node.phase, inputs=(given,), outputs=(result,),
                attrs=attrs, deps=tuple(sorted(deps)), module=node.module,
            )
        )  # fmt: skip
        deps.add(len(self.nodes) - 1)


def _local_attrs(
    node: OpNode, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Mapping[str, object]:
    """Attributes that hold sizes, cut like the tensors."""
    if node.op == "stablehlo.dynamic_slice" and outputs:
        return {**node.attrs, "slice_sizes": list(outputs[0].shape)}
    return node.attrs
