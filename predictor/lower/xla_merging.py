"""Kernels of fused groups joined further: whole rows, and several outputs of one loop."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.lower.xla_backends import Backend
from predictor.lower.xla_groups import MOST_MEMBERS, MOST_ROOTS, Group, readers_of
from predictor.lower.xla_ops import LOOP
from predictor.lower.xla_program import Hlo, Val

LONGEST_ROW = 131_072
"""Elements of a row that one block of a GPU reduces and uses again; a whole tensor is none."""
MOST_TRIED = 64
"""Kernels that read the same value and are tried as one with another."""


class Merging:
    """Groups while they are joined: who reads each value, and whose result it is."""

    def __init__(self, groups: Sequence[Group], backend: Backend) -> None:
        self.backend = backend
        self.order = sorted(groups, key=lambda g: g.position)
        self.gone: set[int] = set()
        self.maker: dict[int, Group] = {}
        self.reading: dict[int, dict[int, Group]] = {}
        self.before: dict[int, list[Group]] = {}
        """Readers of values that many read, in order, less those that are done with."""
        for group in self.order:
            self.maker.update((id(root), group) for root in group.roots)
            for value in group.reads():
                self.reading.setdefault(id(value), {})[id(group)] = group

    def join(self, group: Group, other: Group, *, writes: bool) -> None:
        """Take `other` into `group`, with its results where they are still written."""
        self.gone.add(id(other))
        before = other.reads()
        group.add(other.members)
        if writes:
            group.roots += other.roots
            self.maker.update((id(root), group) for root in other.roots)
        for value in before:
            holders = self.reading[id(value)]
            holders.pop(id(other), None)
            if not (value.maker is not None and id(value.maker) in group.inside):
                holders[id(group)] = group
        for root in other.roots:
            for value in root.writes:
                self.reading.get(id(value), {}).pop(id(group), None)

    def left(self) -> list[Group]:
        """What is left."""
        found = [g for g in self.order if id(g) not in self.gone]
        for group in found:
            if len(group.roots) > 1:
                read = [root for root in group.roots if _is_read_outside(root, group)]
                group.roots = read or group.roots[:1]
        return found

    def whole_rows(self) -> None:
        """Reductions of rows joined with the one kernel that uses them beside the rows."""
        for group in reversed(self.order):
            if id(group) in self.gone:
                continue
            while (found := self.row_reduction(group)) is not None:
                self.join(group, found, writes=False)

    def row_reduction(self, group: Group) -> Group | None:
        """A reduction that only this kernel reads, over rows that this kernel reads too."""
        if group.root.kind not in LOOP | {"reduce"}:
            return None
        if group.hero is not None and group.hero.kind != "reduce":
            return None
        values = group.reads()
        have = {id(v) for v in values}
        for value in values:
            maker = value.maker
            if maker is None or maker.escapes or maker.loop != group.root.loop:
                continue
            found = self.maker.get(id(maker))
            if found is None or found is group or len(found.roots) != 1:
                continue
            inner = found.hero
            if inner is None or inner.kind != "reduce" or not _along_rows(inner):
                continue
            if inner.node.inputs[0].numel > LONGEST_ROW * max(1, inner.numel):
                continue
            if len(self.reading.get(id(value), {})) != 1 or not _spans(group, inner):
                continue
            large = [v for v in found.reads() if 4 * v.spec.numel >= inner.node.inputs[0].numel]
            if large and all(id(v) in have for v in large):
                return found
        return None

    def several_outputs(self) -> None:
        """Kernels over the same elements that share an input, or feed each other, as one.

        A later kernel takes an earlier one in where everything else that reads the earlier one
        comes after it: the order stays valid.
        """
        for group in reversed(self.order):
            if id(group) in self.gone or not _can_widen(group):
                continue
            tried: set[int] = {id(group)}
            while (found := self.partner(group, tried)) is not None:
                self.join(group, found, writes=True)

    def partner(self, group: Group, tried: set[int]) -> Group | None:
        """An earlier kernel to join, not among those tried."""
        span = _span(group)
        for value in group.reads():
            if 4 * value.spec.numel < span and not self.backend.launch_bytes:
                continue  # what is shared is not worth a kernel with several outputs
            candidates = self.near(group, value)
            if value.maker is not None and id(value.maker) in self.maker:
                candidates.append(self.maker[id(value.maker)])
            for other in candidates:
                if id(other) in tried:
                    continue
                tried.add(id(other))
                if id(other) not in self.gone and _can_widen(other) and self.fits(other, group):
                    return other
        return None

    def near(self, group: Group, value: Val) -> list[Group]:
        """The readers of a value to try: where all of a long program read it, those just before.

        Kernels are tried from the last to the first, so that those after this one are done with.
        """
        readers = self.reading.get(id(value), {})
        if len(readers) <= MOST_TRIED:
            return list(readers.values())
        if id(value) not in self.before:
            self.before[id(value)] = sorted(readers.values(), key=lambda g: g.position)
        left = self.before[id(value)]
        while left and left[-1].position >= group.position:
            left.pop()
        return left[: -MOST_TRIED - 1 : -1]

    def fits(self, early: Group, late: Group) -> bool:
        """Whether the two run over the same elements and joining them leaves an order."""
        if early.root.loop != late.root.loop or early.position > late.position:
            return False
        if _span(early) != _span(late):
            return False
        if len(early.members) + len(late.members) > MOST_MEMBERS:
            return False
        if early.reductions + late.reductions > self.backend.most_reductions:
            return False
        for root in early.roots:
            for value in root.writes:
                for reader in self.reading.get(id(value), {}).values():
                    if reader is late:
                        if root.kind == "reduce" or not _elementwise_reads(late, value):
                            return False
                    elif reader.position <= late.position:
                        return False
        return True


def _along_rows(reduce: Hlo) -> bool:
    """Whether the last axes are reduced."""
    rank = len(reduce.node.inputs[0].shape)
    axes = reduce.node.attrs.get("dimensions")
    found = sorted(int(a) for a in axes) if isinstance(axes, list) else []
    return bool(found) and found == list(range(rank - len(found), rank))


def _spans(group: Group, reduce: Hlo) -> bool:
    """Whether the kernel runs over the elements that are reduced."""
    numel = reduce.node.inputs[0].numel
    return group.root.numel == numel or any(
        m.kind == "reduce" and m.node.inputs[0].numel == numel for m in group.members
    )


def _is_read_outside(root: Hlo, group: Group) -> bool:
    """Whether a result leaves the program or another kernel reads it."""
    return root.escapes or any(id(r) not in group.inside for r in readers_of(root))


def _elementwise_reads(group: Group, value: Val) -> bool:
    """Whether a kernel reads a value element by element, as it would compute it."""
    return all(
        reader.kind in ("elementwise", "expensive") or reader.kind == "reduce"
        for reader in value.readers
        if id(reader) in group.inside
    )


def _can_widen(group: Group) -> bool:
    hero = group.hero
    return (
        group.root.kind in LOOP | {"reduce"}
        and (hero is None or hero.kind == "reduce")
        and len(group.members) < MOST_MEMBERS
        and len(group.roots) < MOST_ROOTS
    )


def _span(group: Group) -> int:
    """Elements that the kernel runs over."""
    lead = group.hero if group.hero is not None else group.root
    return lead.node.inputs[0].numel if lead.kind in ("reduce", "rows", "fold") else lead.numel
