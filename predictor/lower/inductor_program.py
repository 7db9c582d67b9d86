"""A program as the compiler meets it: call by call, from values to loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.cost.rules import RULES, flop_factor
from predictor.graph.ir import OpGraph, OpNode, Phase, TensorSpec
from predictor.lower.aten_table import packet
from predictor.lower.draft import Draft, arithmetic_dtype, product
from predictor.lower.eager import drafts_of, kernel_of
from predictor.lower.inductor_kinds import NEEDS_STORED, recipe_of
from predictor.lower.inductor_loops import (
    ONE,
    OTHER,
    WHOLE,
    Access,
    Loop,
    Value,
    inlined,
    stores_early,
    stores_for_broadcast,
)
from predictor.lower.inductor_rules import (
    HEAVY,
    LIMITS,
    OPS_OF,
    PLAIN_OPS,
    UNROLLED,
    Backend,
    Limits,
    Recipe,
)
from predictor.lower.inductor_splits import splits

Operand = tuple[TensorSpec, Value]


class Program:
    """Values and loops of one graph, while it is lowered."""

    def __init__(
        self, graph: OpGraph, backend: Backend, *, processors: int, channels_last: bool,
        allow_opaque: bool,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.processors = processors
        self.channels_last = channels_last
        """Whether images and convolutions are turned into that format."""
        self.limits: Limits = LIMITS[backend]
        self.loops: list[Loop] = []
        self.drafts = [drafts_of(node, allow_opaque=allow_opaque) for node in graph.nodes]
        self.recipes: list[Recipe | None] = [
            recipe_of(node, drafts) if drafts else None
            for node, drafts in zip(graph.nodes, self.drafts, strict=True)
        ]
        self._current: dict[int, Value] = {}
        self._masks: dict[Value, Value] = {}
        """In place of an activation's result, where backward asks only for its sign."""
        self._users = self._readers()
        self._work = [sum(map(work_of, drafts)) for drafts in self.drafts]
        """Arithmetic of each call that no loop has yet."""

    # -- readers --------------------------------------------------------------------------------

    def _readers(self) -> dict[tuple[int, int], list[int]]:
        """Calls that read what each call wrote, by writer and storage."""
        writer: dict[int, int] = {}
        found: dict[tuple[int, int], list[int]] = {}
        for number, (node, drafts) in enumerate(zip(self.graph.nodes, self.drafts, strict=True)):
            if not drafts:
                continue
            for storage in dict.fromkeys(spec.storage_id for spec in node.inputs):
                if storage in writer:
                    found.setdefault((writer[storage], storage), []).append(number)
            for spec in written(node):
                writer[spec.storage_id] = number
        return found

    def users(self, number: int, spec: TensorSpec) -> list[int]:
        """Calls that read what call `number` wrote into a storage."""
        return self._users.get((number, spec.storage_id), [])

    # -- values ---------------------------------------------------------------------------------

    def value(self, spec: TensorSpec) -> Value:
        """What stands behind an operand."""
        found = self._current.get(spec.storage_id)
        if found is None:
            free = spec.role in ("parameter", "buffer", "input", "state")
            found = Value(
                shape=tuple(spec.shape), dtype=spec.dtype, phase="forward", layout=spec.layout,
                free=free,
            )  # fmt: skip
            self._current[spec.storage_id] = found
        return found

    def operands(self, specs: Sequence[TensorSpec]) -> list[Operand]:
        """Specs with what stands behind them."""
        return [(spec, self.value(spec)) for spec in specs]

    def _made(self, number: int, spec: TensorSpec, *, primary: bool) -> Value:
        node = self.graph.nodes[number]
        users = self.users(number, spec)
        own = tuple(n for n in users if self.graph.nodes[n].phase == node.phase)
        after = tuple(n for n in users if self.graph.nodes[n].phase != node.phase)
        later = bool(after)
        kept = later or (primary and not users)
        kept = kept or spec.role in ("parameter", "buffer", "state", "gradient")
        return Value(
            shape=tuple(spec.shape), dtype=spec.dtype, phase=node.phase, layout=spec.layout,
            stored=False, module=node.module, used=own, kept=kept, later=later,
            after=after,
        )  # fmt: skip

    # -- loops ----------------------------------------------------------------------------------

    def pointwise(
        self, number: int, specs: Sequence[TensorSpec | Operand], out: TensorSpec, *,
        ops: int | None = None, primary: bool = True, names: bool = True,
        reach: int = 1,
    ) -> Value:  # fmt: skip
        """A value computed element by element, stored where a rule says so."""
        node = self.graph.nodes[number]
        name = packet(node.op)
        operands = [s if isinstance(s, tuple) else (s, self.value(s)) for s in specs]
        made = self._made(number, out, primary=primary)
        for _, value in operands:
            if stores_for_broadcast(value, made.shape, self.limits):
                self.store(value, node.phase)
        made.reads = inlined(operands, made.shape, reach)
        behind = [value for _, value in operands if not value.stored]
        made.ops = (OPS_OF.get(name, PLAIN_OPS) if ops is None else ops) + sum(
            v.ops for v in behind
        )
        made.work = self._work_behind(number, behind)
        made.heavy = name in HEAVY or any(v.heavy for v in behind)
        made.names = joined(*(v.names for v in behind), (name,) if names else ())
        needs = any(self.recipes[n] in NEEDS_STORED for n in made.used)
        self._settle(made, needs)
        return made

    def _work_behind(self, number: int, behind: Sequence[Value]) -> dict[int, float]:
        """Arithmetic by call of a loop with expressions in it; a call's own is its first loop's."""
        found = {number: self._work[number]}
        self._work[number] = 0.0
        for value in behind:
            for call, work in value.work.items():
                found[call] = max(found.get(call, 0.0), work)
        return found

    def _settle(self, made: Value, needs: bool) -> None:
        """Store a fresh value, keep its sources for backward instead, or leave it."""
        if made.later and made.phase == "forward":
            sources = {id(a.value): a.value for a in made.reads if a.way != ONE}
            extra = sum(v.bytes for v in sources.values() if not (v.free or v.kept))
            if self._signs_alone(made):
                made.kept = False
                self._keep_mask(made, extra)
            elif extra < made.bytes and "native_dropout" not in made.names:
                for value in sources.values():
                    value.kept = True
                made.kept = False
        if (made.kept and not made.used) or stores_early(made, self.limits, needs):
            self.store(made, made.phase)

    def _signs_alone(self, made: Value) -> bool:
        return all(packet(self.graph.nodes[n].op) == "threshold_backward" for n in made.after)

    def _keep_mask(self, made: Value, extra: float) -> None:
        """A bool an element for backward, unless what it is made from is kept anyway."""
        mask = replace(made, dtype="bool", used=(), after=(), reads=dict(made.reads))
        if extra >= mask.bytes:
            mask.kept = True
            self.store(mask, made.phase)
            self._masks[made] = mask

    def mask_of(self, value: Value) -> Value:
        """What backward reads of an activation's result."""
        return value if value.stored else self._masks.get(value, value)

    def store(self, value: Value, phase: Phase) -> None:
        """Give an expression a loop of its own."""
        if value.stored:
            return
        value.stored, value.loop = True, len(self.loops)
        value.phase = phase
        self.loops.append(
            Loop(
                numel=value.numel, reads=dict(value.reads), writes=[value], phase=phase,
                names=value.names, module=value.module, work=value.work,
            )
        )  # fmt: skip
        value.reads = {}

    def finish(self) -> None:
        """Store what is left to be a result."""
        for value in list(self._current.values()):
            if not value.stored and value.kept:
                self.store(value, value.phase)

    def bind(self, spec: TensorSpec, value: Value) -> None:
        """From now on `spec`'s storage holds `value`."""
        self._current[spec.storage_id] = value

    def reduce(
        self, number: int, specs: Sequence[TensorSpec | Operand], outs: Sequence[TensorSpec], *,
        shape: tuple[int, ...], numel: int, axes: str = "", primary: bool = True,
        inner: bool | None = None,
    ) -> list[Value]:  # fmt: skip
        """Results of one reduction over loops of `shape`, `numel` of each.

        Args:
            number: the call.
            specs: what it reads.
            outs: one for each kind of result.
            shape: of what is reduced.
            numel: results of a kind.
            axes: empty for the last axes, else a name of those that are reduced.
            primary: whether results that nobody reads are results of the program.
            inner: whether neighbours in memory are added up; where `axes` does not tell.
        """
        node = self.graph.nodes[number]
        operands = [s if isinstance(s, tuple) else (s, self.value(s)) for s in specs]
        behind = [value for _, value in operands if not value.stored]
        size, numel = product(shape), max(1, numel)
        rnumel = max(1, size // numel)
        reads = inlined(operands, shape)
        work = self._work_behind(number, behind)
        names = joined(*(v.names for v in behind), (packet(node.op),))
        values = [self._made(number, out, primary=primary) for out in outs]
        if 1 < rnumel < UNROLLED and numel > 1:
            for value in values:
                value.reads = {Access(a.value, OTHER, a.part): n for a, n in reads.items()}
                value.names, value.ops, value.work = names, 2 * rnumel, work
                self._settle(value, needs=False)
            return values
        parts = 1
        if self.limits.splits and not finds_place(node):
            parts = splits(
                numel, rnumel, self.processors, inner=not axes if inner is None else inner
            )
        if parts > 1:
            partial = [replace(v, shape=(numel * parts,), stored=True, used=(), kept=False,
                               loop=len(self.loops)) for v in values]  # fmt: skip
            self._add(numel * parts, -(-rnumel // parts), f"{axes} in {parts}", reads, partial,
                      node, names, work)  # fmt: skip
            reads = {Access(v, WHOLE): v.bytes for v in partial}
            rnumel, axes, work = parts, "", {number: float(numel * parts)}
        for value in values:
            value.stored, value.loop = True, len(self.loops)
        self._add(numel, rnumel, axes, reads, values, node, names, work)
        return values

    def _add(
        self, numel: int, rnumel: int, axes: str, reads: dict[Access, float],
        writes: list[Value], node: OpNode, names: tuple[str, ...], work: dict[int, float],
    ) -> None:  # fmt: skip
        self.loops.append(
            Loop(
                numel=numel, rnumel=rnumel, axes=axes, reads=reads, writes=writes,
                phase=node.phase, names=names, module=node.module, work=work,
            )
        )  # fmt: skip

    def library(self, number: int, drafts: Sequence[Draft], outs: Sequence[TensorSpec]) -> None:
        """A call that stays whole: what it reads is stored first."""
        node = self.graph.nodes[number]
        reads: dict[Access, float] = {}
        for spec, value in self.operands(node.inputs):
            self.store(value, node.phase)
            for piece in value.parts or (value,):
                whole = piece.bytes if value.parts else float(spec.touched_bytes)
                reads[Access(piece, "library")] = whole
        values = []
        for out in outs:
            made = self._made(number, out, primary=False)
            made.stored, made.loop = True, len(self.loops)
            values.append(made)
        name = ".".join(node.op.split(".")[:2])
        self.loops.append(
            Loop(
                numel=0, reads=reads, writes=values, phase=node.phase, names=(packet(node.op),),
                module=node.module, fusable=False,
                library=tuple(kernel_of(draft, node, draft.name or name) for draft in drafts),
            )
        )  # fmt: skip
        for out, value in zip(outs, values, strict=True):
            self.bind(out, value)


def written(node: OpNode) -> tuple[TensorSpec, ...]:
    """What a call writes: its results, or the operand that it changes."""
    return node.outputs or node.inputs[:1]


def work_of(draft: Draft) -> float:
    """Arithmetic of one eager kernel."""
    if draft.flops is not None:
        return draft.flops
    dtype = draft.dtype or arithmetic_dtype(draft.reads, draft.writes)
    return float(flop_factor(draft.op, dtype) * RULES[draft.op].flops(draft.dims))


def finds_place(node: OpNode) -> bool:
    """Whether a reduction looks for a place, which is never cut in parts."""
    return packet(node.op) in ("argmax", "argmin")


def joined(*names: tuple[str, ...]) -> tuple[str, ...]:
    """All names once, in order."""
    return tuple(dict.fromkeys(n for group in names for n in group))
