"""A program as the compiler meets it: call by call, from values to loops."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.graph.ir import PHASES, OpGraph, OpNode, Phase, TensorSpec
from predictor.lower.aten_table import packet
from predictor.lower.draft import Draft
from predictor.lower.eager import drafts_of, kernel_of
from predictor.lower.inductor_kinds import NEEDS_STORED, recipe_of
from predictor.lower.inductor_loops import ONE, Access, Loop, Value, inlined, stores_early
from predictor.lower.inductor_rules import (
    HEAVY,
    LIMITS,
    OPS_OF,
    PLAIN_OPS,
    Backend,
    Limits,
    Recipe,
)

Operand = tuple[TensorSpec, Value]


class Program:
    """Values and loops of one graph, while it is lowered."""

    def __init__(self, graph: OpGraph, backend: Backend, *, allow_opaque: bool) -> None:
        self.graph = graph
        self.limits: Limits = LIMITS[backend]
        self.loops: list[Loop] = []
        self.drafts = [drafts_of(node, allow_opaque=allow_opaque) for node in graph.nodes]
        self.recipes: list[Recipe | None] = [
            recipe_of(node, drafts) if drafts else None
            for node, drafts in zip(graph.nodes, self.drafts, strict=True)
        ]
        self._current: dict[int, Value] = {}
        self._users = self._readers()

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
        later = len(own) < len(users)
        kept = later or (primary and not users)
        kept = kept or spec.role in ("parameter", "buffer", "state", "gradient")
        return Value(
            shape=tuple(spec.shape), dtype=spec.dtype, phase=node.phase, layout=spec.layout,
            stored=False, module=node.module, used=own, kept=kept, later=later,
        )  # fmt: skip

    # -- loops ----------------------------------------------------------------------------------

    def pointwise(
        self, number: int, specs: Sequence[TensorSpec | Operand], out: TensorSpec, *,
        ops: int | None = None, primary: bool = True, names: bool = True,
        flops: float | None = None,
    ) -> Value:  # fmt: skip
        """A value computed element by element, stored where a rule says so."""
        node = self.graph.nodes[number]
        name = packet(node.op)
        operands = [s if isinstance(s, tuple) else (s, self.value(s)) for s in specs]
        made = self._made(number, out, primary=primary)
        made.reads = inlined(operands, made.shape)
        behind = [value for _, value in operands if not value.stored]
        made.ops = (OPS_OF.get(name, PLAIN_OPS) if ops is None else ops) + sum(
            v.ops for v in behind
        )
        made.flops = float(made.numel if flops is None else flops)
        made.flops += sum(v.flops * made.numel / max(1, v.numel) for v in behind)
        made.heavy = name in HEAVY or any(v.heavy for v in behind)
        made.names = joined(*(v.names for v in behind), (name,) if names else ())
        needs = any(self.recipes[n] in NEEDS_STORED for n in made.used)
        self._settle(made, needs)
        return made

    def _settle(self, made: Value, needs: bool) -> None:
        """Store a fresh value, keep its sources for backward instead, or leave it."""
        if made.later and made.phase == "forward":
            sources = {id(a.value): a.value for a in made.reads if a.way != ONE}
            extra = sum(v.bytes for v in sources.values() if not (v.free or v.kept))
            if extra <= made.bytes and "native_dropout" not in made.names:
                for value in sources.values():
                    value.kept = True
                made.kept = False
        if (made.kept and not made.used) or stores_early(made, self.limits, needs):
            self.store(made, made.phase)

    def store(self, value: Value, phase: Phase) -> None:
        """Give an expression a loop of its own."""
        if value.stored:
            return
        value.stored, value.loop = True, len(self.loops)
        value.phase = phase
        self.loops.append(
            Loop(
                numel=value.numel, reads=dict(value.reads), writes=[value], phase=phase,
                names=value.names, module=value.module, flops=value.flops,
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
    ) -> list[Value]:  # fmt: skip
        """Results of one reduction over loops of `shape`, `numel` of each."""
        node = self.graph.nodes[number]
        operands = [s if isinstance(s, tuple) else (s, self.value(s)) for s in specs]
        behind = [value for _, value in operands if not value.stored]
        values = [self._made(number, out, primary=primary) for out in outs]
        size = 1
        for length in shape:
            size *= length
        for value in values:
            value.stored, value.loop = True, len(self.loops)
        self.loops.append(
            Loop(
                numel=max(1, numel), rnumel=max(1, size // max(1, numel)), axes=axes,
                reads=inlined(operands, shape), writes=values, phase=node.phase,
                names=joined(*(v.names for v in behind), (packet(node.op),)), module=node.module,
                flops=float(size * len(values)) + sum(v.flops for v in behind),
            )
        )  # fmt: skip
        return values

    def library(self, number: int, drafts: Sequence[Draft], outs: Sequence[TensorSpec]) -> None:
        """A call that stays whole: what it reads is stored first."""
        node = self.graph.nodes[number]
        reads: dict[Access, float] = {}
        for spec, value in self.operands(node.inputs):
            self.store(value, node.phase)
            reads[Access(value, "library")] = float(spec.touched_bytes)
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


def joined(*names: tuple[str, ...]) -> tuple[str, ...]:
    """All names once, in order."""
    return tuple(dict.fromkeys(n for group in names for n in group))


__all__ = ["PHASES", "Operand", "Program", "joined", "written"]
