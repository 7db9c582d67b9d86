"""Which loops become one kernel: TorchInductor's scheduler, in short.

Two kernels may be one where they run over the same elements (or one reduces what the other makes)
and where everything that passes between them is read as it was written. Of all pairs that share a
tensor those that save the most traffic are joined first, until no pair is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.lower.inductor_loops import ROW, WHOLE, Access, Loop
from predictor.lower.inductor_rules import FARTHEST, LEAST_SHARED_BYTES, MOST_FUSED

_ROUNDS = 10
_MOST_PAIRS = 64
"""`max_fusion_buffer_group_pairwise_attempts`: neighbours tried for each reader of a tensor."""


@dataclass(slots=True, eq=False)
class Group:
    """Loops of one kernel."""

    members: list[int]
    loops: list[Loop]
    bits: int
    """Its loops as a bit set."""
    before: int
    """Loops that must run first."""
    numel: int
    rnumel: int
    axes: str
    reads: dict[Access, float] = field(default_factory=dict)
    writes: dict[int, float] = field(default_factory=dict)
    """Bytes by identity of the stored value."""
    direct: frozenset[int] = frozenset()
    """Loops whose results it reads."""

    @property
    def fusable(self) -> bool:
        """Whether it may be joined with anything."""
        return all(loop.fusable for loop in self.loops)

    @property
    def reduces(self) -> bool:
        """Whether there is a reduction in it."""
        return self.rnumel > 1


def fused(loops: Sequence[Loop]) -> list[Group]:
    """Kernels of one compiled graph, in an order in which they can run."""
    groups = _alone(loops)
    for _ in range(_ROUNDS):
        joined = _round(groups, loops)
        if len(joined) == len(groups):
            break
        groups = joined
    return _ordered(groups)


def _alone(loops: Sequence[Loop]) -> list[Group]:
    """Every loop as a group of its own."""
    writer: dict[int, int] = {}
    before: list[int] = []
    groups = []
    for number, loop in enumerate(loops):
        bits = 0
        direct = {writer[id(a.value)] for a in loop.reads if id(a.value) in writer}
        for at in direct:
            bits |= before[at] | 1 << at
        before.append(bits)
        for value in loop.writes:
            writer[id(value)] = number
        groups.append(
            Group(
                [number], [loop], 1 << number, bits, loop.numel, loop.rnumel, loop.axes,
                dict(loop.reads), {id(v): v.bytes for v in loop.writes}, frozenset(direct),
            )
        )  # fmt: skip
    return groups


def _round(groups: list[Group], loops: Sequence[Loop]) -> list[Group]:
    """Join the pairs that were possible when the round began, best first."""
    at = {number: group for group in groups for number in group.members}
    pairs = sorted(_pairs(groups), key=lambda pair: pair[0], reverse=True)
    alive = dict.fromkeys(groups)
    for _, first, second in pairs:
        one, other = at[first], at[second]
        if one is other:
            continue
        one, other = sorted((one, other), key=lambda g: g.members[0])
        if _score(one, other, at) is None:
            continue
        union = _union(one, other)
        for number in union.members:
            at[number] = union
        del alive[one], alive[other]
        alive[union] = None
        for group in alive:  # who waits for a part waits for the whole
            if group.before & union.bits:
                group.before |= union.before | union.bits
    return list(alive)


def _pairs(groups: Sequence[Group]) -> list[tuple[tuple[float, ...], int, int]]:
    """Scores of the pairs that may be joined."""
    at = {number: group for group in groups for number in group.members}
    by_tensor: dict[int, list[Group]] = {}
    for group in groups:
        if group.fusable:
            for tensor in dict.fromkeys([*(id(a.value) for a in group.reads), *group.writes]):
                by_tensor.setdefault(tensor, []).append(group)
    seen: set[tuple[int, int]] = set()
    found = []
    for users in by_tensor.values():
        for place, one in enumerate(users):
            for other in users[place + 1 : place + 1 + _MOST_PAIRS]:
                key = (one.members[0], other.members[0])
                if key in seen:
                    continue
                seen.add(key)
                score = _score(one, other, at)
                if score is not None:
                    found.append((score, *key))
    return found


def _score(one: Group, other: Group, at: dict[int, Group]) -> tuple[float, ...] | None:
    """Larger is joined sooner; None where the two cannot be one kernel."""
    if len(one.loops) + len(other.loops) > MOST_FUSED or not _fit(one, other):
        return None
    later = bool(other.before & one.bits)
    sooner = bool(one.before & other.bits)
    if sooner and later:
        return None
    if sooner:
        one, other = other, one
    shared = _shared(one, other)
    if shared <= 0:
        return None
    distance = max(abs(one.members[0] - other.members[-1]), abs(other.members[0] - one.members[-1]))
    if sooner or later:
        if not _matches(one, other) or _between(one, other, at):
            return None
    elif shared < LEAST_SHARED_BYTES or distance > FARTHEST:
        return None
    return (float(one.reduces == other.reduces), shared, -float(distance))


def _fit(one: Group, other: Group) -> bool:
    """Whether they run over the same elements."""
    if one.reduces and other.reduces:
        return (one.numel, one.rnumel, one.axes) == (other.numel, other.rnumel, other.axes)
    if not one.reduces and not other.reduces:
        return one.numel == other.numel
    whole, rows = (other, one) if one.reduces else (one, other)
    return whole.numel == rows.numel or (whole.numel == rows.numel * rows.rnumel and not rows.axes)


def _shared(one: Group, other: Group) -> float:
    """Bytes that both touch in the same way."""
    total = 0.0
    for access, traffic in one.reads.items():
        if access in other.reads and not _crosses(one, other, access):
            total += traffic
    for access, traffic in other.reads.items():
        if id(access.value) in one.writes and access.way in (WHOLE, ROW):
            total += traffic
    return total


def _crosses(one: Group, other: Group, access: Access) -> bool:
    """Whether reads that look alike run in different order: whole rows, and along other axes."""
    return access.way == WHOLE and one.axes != other.axes and access.value.numel != one.numel


def _matches(one: Group, other: Group) -> bool:
    """Whether all that passes from one to the other is read as it was written."""
    for access in other.reads:
        if id(access.value) not in one.writes:
            continue
        if any(loop.mutates for loop in one.loops):
            return False
        if access.way not in (WHOLE, ROW):
            return False
        if access.way == WHOLE and other.axes and access.value.numel != other.numel:
            return False
    return True


def _between(one: Group, other: Group, at: dict[int, Group]) -> bool:
    """Whether something else runs after the one and before the other."""
    producers = {id(at[n]): at[n] for n in other.direct}
    return any(g.before & one.bits for g in producers.values() if g is not one and g is not other)


def _union(one: Group, other: Group) -> Group:
    rows = other if other.reduces else one
    reads = dict(one.reads)
    for access, traffic in other.reads.items():
        reads[access] = max(reads.get(access, 0.0), traffic)
    order = sorted(zip([*one.members, *other.members], [*one.loops, *other.loops], strict=True),
                   key=lambda pair: pair[0])  # fmt: skip
    bits, members = one.bits | other.bits, [n for n, _ in order]
    return Group(
        members, [loop for _, loop in order], bits,
        (one.before | other.before) & ~bits, rows.numel, rows.rnumel, rows.axes, reads,
        {**one.writes, **other.writes}, (one.direct | other.direct) - set(members),
    )  # fmt: skip


def _ordered(groups: Sequence[Group]) -> list[Group]:
    """The groups in an order in which they can run, early ones first."""
    left = sorted(groups, key=lambda g: g.members[0])
    done = 0
    out: list[Group] = []
    while left:
        at = next((i for i, group in enumerate(left) if not group.before & ~done), None)
        assert at is not None, "kernels wait for each other"
        out.append(left.pop(at))
        done |= out[-1].bits
    return out
