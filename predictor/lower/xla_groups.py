"""`Group`: the operations of one kernel while fusion puts it together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from predictor.lower.xla_program import Hlo, Val

HEROES = frozenset({"reduce", "rows", "dot", "conv"})
"""Kinds of which a kernel has one (a kernel of several outputs: some), with cheap work around."""
MOST_MEMBERS = 400
"""Operations that a kernel takes at most; a compiler splits larger ones too."""
MOST_ROOTS = 64
"""Results that a kernel writes at most."""


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

    @property
    def reductions(self) -> int:
        """How many reductions it holds."""
        return sum(1 for m in self.members if m.kind == "reduce")

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


def readers_of(hlo: Hlo) -> list[Hlo]:
    """Operations that read a result."""
    return [reader for value in hlo.writes for reader in value.readers]
