"""Calls taken into one another: who reads what, and the graph after the joining."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.graph.ir import OpNode, TensorSpec

FUSED = "predictor.fused"
"""A call with others in it: attributes name the root call and what it took in."""


class Groups:
    """The calls of a program, and those that became one."""

    def __init__(self, nodes: Sequence[OpNode]) -> None:
        self.all = nodes
        self.writer: dict[int, int] = {}
        """The call that makes each storage."""
        self.readers: dict[int, list[int]] = {}
        """Calls that read each storage, views of it left out."""
        self.views: dict[int, list[int]] = {}
        """Views of each storage."""
        self._gone: set[int] = set()
        self._made: dict[int, OpNode] = {}
        self._place: dict[int, int] = {}
        for number, node in enumerate(nodes):
            if node.attrs.get("view"):
                self.views.setdefault(node.inputs[0].storage_id, []).append(number)
                continue
            for spec in node.inputs:
                held = self.readers.setdefault(spec.storage_id, [])
                if not held or held[-1] != number:
                    held.append(number)
            for spec in node.outputs:
                self.writer[spec.storage_id] = number

    def free(self, number: int) -> bool:
        """Whether a call stands by itself still."""
        return number not in self._gone and number not in self._made

    def only_reader(self, spec: TensorSpec) -> int | None:
        """The one call that reads a tensor, None where there are more, none, or it is taken."""
        found = self.readers.get(spec.storage_id, ())
        return found[0] if len(found) == 1 and self.free(found[0]) else None

    def maker(self, spec: TensorSpec) -> int | None:
        """The call that makes a tensor, None for inputs and what is taken."""
        number = self.writer.get(spec.storage_id)
        return number if number is not None and self.free(number) else None

    def join(self, members: Sequence[int], made: OpNode) -> None:
        """Put `made` at the place of the last member; the others go, with views between them."""
        last = max(members)
        inner = {s.storage_id for m in members for s in self.all[m].outputs}
        inner -= {s.storage_id for s in made.outputs}
        for number in members:
            self._place[number] = last
            if number != last:
                self._gone.add(number)
        for storage in inner:
            for number in self.views.get(storage, ()):
                self._gone.add(number)
                self._place[number] = last
        self._made[last] = made

    def nodes(self) -> tuple[OpNode, ...]:
        """The calls in order, dependencies counted anew."""
        at: dict[int, int] = {}
        kept: list[int] = []
        for number in range(len(self.all)):
            if number not in self._gone:
                at[number] = len(kept)
                kept.append(number)
        members: dict[int, list[int]] = {}
        for number, last in self._place.items():
            members.setdefault(last, []).append(number)
        out = []
        for number in kept:
            node = self._made.get(number, self.all[number])
            deps = {
                self._place.get(dep, dep)
                for member in members.get(number, [number])
                for dep in self.all[member].deps
            } - {number}
            known = sorted(at[dep] for dep in deps if dep in at and at[dep] < at[number])
            out.append(
                OpNode(
                    op=node.op, phase=node.phase, inputs=node.inputs, outputs=node.outputs,
                    attrs=node.attrs, deps=tuple(known), module=node.module,
                )
            )  # fmt: skip
        return tuple(out)


def fused_node(root: OpNode, others: Sequence[OpNode], outputs: Sequence[TensorSpec]) -> OpNode:
    """A call that does the work of `root` and of the others behind it.

    Its inputs are those of the root, then what the others read besides; the root's come first and
    are counted in `own`.
    """
    inner = {s.storage_id for n in (root, *others) for s in n.outputs}
    seen = {s.storage_id for s in root.inputs}
    extra: list[TensorSpec] = []
    for node in others:
        for spec in node.inputs:
            if spec.storage_id not in inner and spec.storage_id not in seen:
                seen.add(spec.storage_id)
                extra.append(spec)
    attrs: dict[str, object] = {
        "root": root.op, "taken": [n.op for n in others], "own": len(root.inputs),
        "root_outputs": len(root.outputs),
        "root_shape": list(root.outputs[0].shape) if root.outputs else [],
        "root_attrs": dict(root.attrs),
    }  # fmt: skip
    return OpNode(
        op=FUSED,
        phase=root.phase,
        inputs=(*root.inputs, *extra),
        outputs=tuple(outputs),
        attrs=attrs,
        module=root.module,
    )
