"""Fusion as XLA does it: producers join the kernels of all their consumers where it saves memory.

Operations are visited from the last to the first. One joins the groups that read it when all of
them can take it and computing it there moves fewer bytes than writing and reading it back; else it
roots a group of its own. Afterwards kernels over the same elements become one with several outputs,
and rows that are reduced and used again become one kernel, on backends that do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from predictor.cost.hlo import numbers
from predictor.lower.xla_backends import Backend
from predictor.lower.xla_ops import CHEAP, LOOP
from predictor.lower.xla_program import Hlo, Val

HEROES = frozenset({"reduce", "rows", "dot", "conv"})
"""Kinds of which a kernel has one (a kernel of several outputs: some), with cheap work around."""
MOST_MEMBERS = 400
"""Operations that a kernel takes at most; a compiler splits larger ones too."""
MOST_READS = 64
_EPILOGUE_READS = 2
"""Further tensors of the product's size that an epilogue may read."""


@dataclass(slots=True, eq=False)
class Group:
    """Operations of one kernel: `roots` are what it writes."""

    roots: list[Hlo]
    members: list[Hlo] = field(default_factory=list)
    hero: Hlo | None = None
    """The reduction or product inside."""
    read: set[int] = field(default_factory=set)
    """Identities of all values that members read."""
    inside: set[int] = field(default_factory=set)
    """Identities of the members."""

    @property
    def root(self) -> Hlo:
        """The operation that the others joined."""
        return self.roots[0]

    @property
    def position(self) -> int:
        """Place in the program: that of the last result."""
        return max(root.index for root in self.roots)

    def add(self, members: Iterable[Hlo]) -> None:
        """Take operations in; those it has stay as they are."""
        for hlo in members:
            if id(hlo) in self.inside:
                continue
            self.members.append(hlo)
            self.inside.add(id(hlo))
            self.read.update(id(v) for v in hlo.reads)
            if self.hero is None and hlo.kind in HEROES:
                self.hero = hlo

    def reads(self) -> list[Val]:
        """Values from outside that need memory, each once."""
        found = {
            id(v): v for m in self.members for v in m.reads
            if not v.free and (v.maker is None or id(v.maker) not in self.inside)
        }  # fmt: skip
        return list(found.values())

    def writes(self) -> list[Val]:
        """Values that others read, or that leave the program."""
        return [v for root in self.roots for v in root.writes]


def fuse(program: Sequence[Hlo], backend: Backend) -> list[Group]:
    """The kernels of a program, in an order in which they can run."""
    homes: dict[int, list[Group]] = {}
    groups: list[Group] = []
    for hlo in reversed(program):
        readers = _readers(hlo)
        found: dict[int, tuple[Group, list[Hlo]]] = {}
        for reader in readers:
            for group in homes[id(reader)]:
                found.setdefault(id(group), (group, []))[1].append(reader)
        targets = [group for group, _ in found.values()]
        if not targets and not hlo.escapes and hlo.kind not in ("library", "update"):
            homes[id(hlo)] = []  # all that used it was merged away
            continue
        if targets and _joins(hlo, list(found.values()), backend):
            for group in targets:
                group.add((hlo,))
            homes[id(hlo)] = targets
        else:
            own = Group([hlo])
            own.add((hlo,))
            groups.append(own)
            homes[id(hlo)] = [own]
    groups.reverse()
    merging = _Merging(groups)
    if backend.whole_rows:
        merging.whole_rows()
    if backend.multi_output:
        merging.several_outputs()
    return sorted(merging.left(), key=lambda g: g.position)


def _readers(hlo: Hlo) -> list[Hlo]:
    return [reader for value in hlo.writes for reader in value.readers]


def _joins(hlo: Hlo, found: Sequence[tuple[Group, Sequence[Hlo]]], backend: Backend) -> bool:
    """Whether an operation is computed inside all the groups that read it (with their readers)."""
    targets = [group for group, _ in found]
    if hlo.escapes or any(g.root.loop != hlo.loop for g in targets):
        return False
    if hlo.writes and hlo.writes[0].free and hlo.kind in LOOP:
        return all(_takes_free(g) for g in targets)
    if any(len(g.members) >= MOST_MEMBERS for g in targets):
        return False
    if not all(_accepts(g, hlo, mine, backend) for g, mine in found):
        return False
    if len(targets) == 1:
        return True
    if hlo.kind not in CHEAP and not (hlo.kind == "expensive" and backend.repeats_expensive):
        return False
    return _repeated_bytes(hlo, targets) <= _written_bytes(hlo, targets)


def _takes_free(group: Group) -> bool:
    """A constant tensor is not written for loops; libraries want it in memory."""
    return group.root.kind not in ("library",)


def _written_bytes(hlo: Hlo, targets: Sequence[Group]) -> float:
    """Traffic when the result is written once and read by every group."""
    size = sum(v.spec.storage_bytes for v in hlo.writes)
    return size * (1 + len(targets)) + _input_bytes(hlo)


def _repeated_bytes(hlo: Hlo, targets: Sequence[Group]) -> float:
    """Traffic when every group computes it from its inputs, less those it reads anyway."""
    total = 0.0
    for group in targets:
        total += sum(_touched(hlo, v) for v in _inputs(hlo) if id(v) not in group.read)
    return total


def _inputs(hlo: Hlo) -> Iterable[Val]:
    return {id(v): v for v in hlo.reads if not v.free}.values()


def _touched(hlo: Hlo, value: Val) -> float:
    size = float(value.spec.storage_bytes)
    if hlo.kind in ("slice", "gather") and hlo.reads[0] is value:
        return min(size, float(sum(v.spec.storage_bytes for v in hlo.writes)))
    return size


def _input_bytes(hlo: Hlo) -> float:
    return sum(_touched(hlo, v) for v in _inputs(hlo))


def _accepts(group: Group, hlo: Hlo, mine: Sequence[Hlo], backend: Backend) -> bool:
    """Whether a kernel can compute an operation that its members `mine` read."""
    root, hero = group.root, group.hero
    if root.kind == "library":
        return False
    if hlo.kind in HEROES:
        return _takes_hero(group, hlo, backend)
    if hlo.kind not in LOOP:
        return False
    if hero is not None and hero.kind in ("dot", "conv"):
        before = any(r is hero or _feeds(r, hero, group) for r in mine)
        if before:
            return _prologue(hlo, hero, backend)
    return not (hlo.kind == "expensive" and any(_reuses(r, hlo) for r in mine))


def _feeds(member: Hlo, hero: Hlo, group: Group) -> bool:
    """Whether a member lies on the way to the hero of its group."""
    todo, seen = [member], set[int]()
    while todo:
        one = todo.pop()
        if one is hero:
            return True
        for reader in _readers(one):
            if id(reader) in group.inside and id(reader) not in seen:
                seen.add(id(reader))
                todo.append(reader)
    return False


def _prologue(hlo: Hlo, hero: Hlo, backend: Backend) -> bool:
    """Conversions and reorderings of one tensor while a product reads it.

    A matrix is taken transposed by every library.
    """
    if hlo.kind == "transpose" and hero.kind == "dot" and not numbers(hero.node, "lhs_batch"):
        return True
    if not backend.prologue or hlo.kind not in ("elementwise", "transpose", "broadcast", "slice"):
        return False
    heavy = list(_inputs(hlo))
    mine = sum(v.spec.storage_bytes for v in hlo.writes)
    return len(heavy) <= 1 and sum(_touched(hlo, v) for v in heavy) <= 2 * mine


def _reuses(reader: Hlo, hlo: Hlo) -> bool:
    """Whether an element is computed several times because a reader spreads it out."""
    return reader.kind == "broadcast" and reader.numel > hlo.numel


def _takes_hero(group: Group, hlo: Hlo, backend: Backend) -> bool:
    """Whether a reduction or product ends in this kernel, with elementwise work after it."""
    if group.hero is not None or group.root.kind not in LOOP:
        return False
    turned = hlo.kind == "dot" and not numbers(hlo.node, "lhs_batch")
    if turned and all(m.kind == "transpose" for m in group.members):
        return True  # the factors change places
    if hlo.kind not in ("reduce", "rows") and not backend.epilogue:
        return False
    todo, after = [hlo], {id(hlo)}
    while todo:
        for reader in _readers(todo.pop()):
            if id(reader) not in group.inside or id(reader) in after:
                continue
            if reader.numel != hlo.numel:
                return False
            if reader.kind not in ("elementwise", "expensive") and not (
                turned and reader.kind == "transpose"
            ):
                return False
            after.add(id(reader))
            todo.append(reader)
    others = [
        v for v in group.reads()
        if v.maker is not hlo and 2 * v.spec.numel >= hlo.numel and hlo.numel > 1
    ]  # fmt: skip
    return hlo.kind in ("reduce", "rows") or len(others) <= _EPILOGUE_READS


class _Merging:
    """Groups while they are joined: who reads each value, and whose result it is."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.order = sorted(groups, key=lambda g: g.position)
        self.gone: set[int] = set()
        self.maker: dict[int, Group] = {}
        self.reading: dict[int, dict[int, Group]] = {}
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
            if 4 * value.spec.numel < span:
                continue
            candidates = list(self.reading.get(id(value), {}).values())
            if value.maker is not None and id(value.maker) in self.maker:
                candidates.append(self.maker[id(value.maker)])
            for other in candidates:
                if id(other) in tried:
                    continue
                tried.add(id(other))
                if id(other) not in self.gone and _can_widen(other) and self.fits(other, group):
                    return other
        return None

    def fits(self, early: Group, late: Group) -> bool:
        """Whether the two run over the same elements and joining them leaves an order."""
        if early.root.loop != late.root.loop or early.position > late.position:
            return False
        if _span(early) != _span(late):
            return False
        if len(early.members) + len(late.members) > MOST_MEMBERS:
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
    return root.escapes or any(id(r) not in group.inside for r in _readers(root))


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
        and len(group.roots) < MOST_READS
    )


def _span(group: Group) -> int:
    """Elements that the kernel runs over."""
    hero = group.hero
    return hero.node.inputs[0].numel if hero is not None else group.root.numel
