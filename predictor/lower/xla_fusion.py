"""Fusion as XLA does it: producers join the kernels of all their consumers where it saves memory.

Operations are visited from the last to the first. One joins the groups that read it when all of
them can take it and computing it there moves fewer bytes than writing and reading it back; else it
roots a group of its own. Afterwards kernels over the same elements become one with several outputs,
and rows that are reduced and used again become one kernel, on backends that do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from predictor.cost.hlo import numbers
from predictor.lower.xla_backends import Backend
from predictor.lower.xla_groups import HEROES, MOST_MEMBERS, Group, readers_of
from predictor.lower.xla_merging import Merging
from predictor.lower.xla_ops import CHEAP, LOOP
from predictor.lower.xla_program import Hlo, Val

_EPILOGUE_READS = 2
"""Further tensors of the product's size that an epilogue may read."""


MOST_REPEATED = 128
"""Operations of a kernel from which no more are computed again in it for the sake of a launch."""


def fuse(program: Sequence[Hlo], backend: Backend) -> list[Group]:
    """The kernels of a program, in an order in which they can run."""
    for hlo in program:
        if hlo.kind == "reduce" and hlo.node.inputs[0].numel < backend.folded * hlo.numel:
            hlo.kind = "fold"
    homes: dict[int, list[Group]] = {}
    groups: list[Group] = []
    for hlo in reversed(program):
        readers = readers_of(hlo)
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
    merging = Merging(groups, backend)
    if backend.whole_rows:
        merging.whole_rows()
    if backend.multi_output:
        merging.several_outputs()
    return sorted(merging.left(), key=lambda g: g.position)


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
    written = _written_bytes(hlo, targets)
    repeated = _repeated_bytes(hlo, targets)
    if repeated <= written:
        return True
    grown = hlo.kind != "broadcast" and any(len(g.members) >= MOST_REPEATED for g in targets)
    return not grown and repeated <= written + backend.launch_bytes


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
    return hlo.kind != "expensive" or all(
        not _reuses(r, hlo) or r.numel <= backend.repeated_elements for r in mine
    )


def _feeds(member: Hlo, hero: Hlo, group: Group) -> bool:
    """Whether a member lies on the way to the hero of its group."""
    todo, seen = [member], set[int]()
    while todo:
        one = todo.pop()
        if one is hero:
            return True
        for reader in readers_of(one):
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
        for reader in readers_of(todo.pop()):
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
