"""From a module's records to the nodes of an `OpGraph`: calls inlined, loops opened once.

A loop's body appears once; its nodes say how often it runs (`trips`) and in which loop they stand
(`loop`). A value that leaves its region (results of the program, what a loop hands on) marks its
node `escapes`: a compiler has to write it to memory. Dead operations are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from predictor.capture.stablehlo.loops import carried_through, trip_count
from predictor.capture.stablehlo.records import TOKEN, Body, Instr, Module, TensorType, Value
from predictor.capture.stablehlo.refs import (
    EFFECTS,
    IN_PLACE,
    VIEWS,
    Carry,
    Place,
    Ref,
    captured,
    folded,
    is_sharding,
    module,
    retyped,
)
from predictor.errors import CaptureError
from predictor.graph.ir import OpNode, Phase, Role, TensorSpec

MAX_NODES = 1_000_000
"""Operations after inlining: more is a program that calls itself out of all bounds."""
MAX_CALLS = 100
"""Depth of calls and regions."""
MAX_TRIPS = 10**15
"""Runs of a loop's body, those of the loops around it multiplied: years on any device."""
PASS: frozenset[str] = frozenset({
    "stablehlo.optimization_barrier", "sdy.propagation_barrier", "stablehlo.after_all",
    "stablehlo.create_token",
})  # fmt: skip
"""Operations that hand their operands on and launch nothing."""
CONSTRAINTS: frozenset[str] = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
"""Operations that say how a value is split over devices."""
SPREADS: frozenset[str] = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
"""Operations whose result has the operand's elements only."""
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")


@dataclass(slots=True)
class Flattened:
    """The nodes of a program."""

    nodes: list[OpNode]
    arguments: list[TensorSpec]
    results: list[Ref]
    warnings: list[str] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)


def flatten(
    module: Module, roles: Sequence[Role], *, trips: int | None = None,
    local: Callable[[int, TensorType], TensorType] | None = None,
) -> Flattened:  # fmt: skip
    """Nodes of the whole program in order.

    Args:
        module: what was read.
        roles: of the entry function's arguments.
        trips: iterations of loops whose number the program does not fix.
        local: not needed by most callers; gives an argument another type than the module's.

    Raises:
        CaptureError: a loop without a fixed number of iterations and no `trips`, `trips` without
            such a loop, a call of an unknown function or of itself, or more than `MAX_NODES`
            operations.
    """
    walk = _Walk(module, trips)
    env: dict[Value, Ref] = {}
    specs = []
    for i, (value, role) in enumerate(zip(module.main.args, roles, strict=True)):
        kind = value.type if local is None else local(i, value.type)
        spec = walk.spec(kind, role=role)
        specs.append(spec)
        env[value] = Ref(spec, None, owned=module.arguments[i].updated)
    results = walk.body(module.main, env, Place())
    if trips is not None and not walk.asked:
        raise CaptureError(
            f"{module.name}: the program fixes how often each of its loops runs: leave trips "
            "(--dim trips) out"
        )
    walk.escape(results)
    warnings = list(dict.fromkeys(walk.warnings))
    return Flattened(walk.finished(), specs, results, warnings, walk.carries)


class _Walk:
    """Places instructions one after the other."""

    def __init__(self, module: Module, trips: int | None) -> None:
        self.module = module
        self.trips = trips
        self.ops: list[Instr] = []
        self.inputs: list[list[TensorSpec]] = []
        self.outputs: list[tuple[TensorSpec, ...]] = []
        self.attrs: list[dict[str, object]] = []
        self.deps: list[tuple[int, ...]] = []
        self.phases: list[Phase] = []
        self.warnings: list[str] = []
        self.carries: list[Carry] = []
        self.asked = False
        """Whether a loop took the iterations that were given."""
        self._storages = 0
        self._placed = 0
        self._live: dict[int, list[Instr]] = {}
        self._last: dict[int, frozenset[Value]] = {}
        """Operands that nothing after an instruction of a region needs, by its identity."""
        self._weights: dict[int, float] = {}

    def spec(self, kind: TensorType, *, role: Role = "activation") -> TensorSpec:
        """A tensor with storage of its own."""
        self._storages += 1
        size = kind.size_bytes
        return TensorSpec(
            shape=kind.shape, dtype="bool" if kind.dtype == TOKEN else kind.dtype,
            storage_id=self._storages, storage_bytes=size, touched_bytes=size, role=role,
        )  # fmt: skip

    def body(self, body: Body, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """Place a region's instructions; what it returns."""
        if place.depth > MAX_CALLS:
            raise CaptureError(
                f"{self.module.name}: calls nest more than {MAX_CALLS} deep; a function that calls "
                "itself cannot be estimated"
            )
        live = self.live(body)
        self._placed += len(live)
        if self._placed > MAX_NODES:
            raise CaptureError(
                f"{self.module.name} has more than {MAX_NODES:,} operations after inlining"
            )
        for instr in live:
            handler = _HANDLERS.get(instr.op)
            if handler is not None:
                found = handler(self, instr, env, place)
            elif instr.op in CONSTRAINTS or instr.attrs.get("target") == "Sharding":
                self.constraint(instr, env, place)
                found = [env[instr.operands[0]]]
            elif instr.op in PASS or is_sharding(instr):
                found = [env[v] for v in instr.operands]
                found = [retyped(ref, r.type) for ref, r in zip(found, instr.results, strict=False)]
                found += [Ref(self.spec(r.type), None) for r in instr.results[len(found) :]]
            else:
                found = self.node(instr, env, place)
            env.update(zip(instr.results, found, strict=True))
        return [env[v] for v in body.results]

    def live(self, body: Body) -> list[Instr]:
        """Instructions that a result or an effect needs, in order."""
        key = id(body)
        if key not in self._live:
            needed = set(body.results)
            kept: list[Instr] = []
            for instr in reversed(body.instrs):
                if instr.op in EFFECTS or any(r in needed for r in instr.results):
                    kept.append(instr)
                    read = {*instr.operands, *(v for b in instr.bodies for v in captured(b))}
                    self._last[id(instr)] = frozenset(read - needed)
                    needed |= read
            self._live[key] = kept[::-1]
        return self._live[key]

    def node(self, instr: Instr, env: Mapping[Value, Ref], place: Place) -> list[Ref]:
        """One node; its results."""
        refs = [env[v] for v in instr.operands]
        if instr.op == "stablehlo.multiply" and (refs[0].one or refs[1].one):
            return [refs[0] if refs[1].one else refs[1]]  # as every compiler simplifies it
        attrs = {**instr.attrs, **place.marks}
        if instr.bodies:
            attrs["body"] = [i.op.split(".")[-1] for b in instr.bodies for i in b.instrs]
        outputs = self.results(instr, refs, attrs)
        number = self.add(instr, refs, outputs, attrs, place)
        known = folded(instr, refs)
        one = instr.op in SPREADS and refs[0].one
        return [Ref(spec, number, known, one) for spec in outputs]

    def add(
        self, instr: Instr, refs: Sequence[Ref], outputs: Sequence[TensorSpec],
        attrs: dict[str, object], place: Place,
    ) -> int:  # fmt: skip
        """Put a node at the end; its number."""
        deps = tuple(dict.fromkeys(r.node for r in refs if r.node is not None))
        self.ops.append(instr)
        self.inputs.append([ref.spec for ref in refs])
        self.outputs.append(tuple(outputs))
        self.attrs.append(attrs)
        self.deps.append(deps)
        self.phases.append(self.phase(f"{place.where}/{instr.where}", deps))
        return len(self.ops) - 1

    def constraint(self, instr: Instr, env: Mapping[Value, Ref], place: Place) -> None:
        """A node that says how a value is split from here on; the partitioner takes it out."""
        ref = env[instr.operands[0]]
        text = str(instr.attrs.get("sharding") or instr.attrs.get("mhlo.sharding") or "")
        node = Instr("sdy.sharding_constraint", [], [], {}, [], instr.where)
        self.add(node, [ref], (), {"sharding": text, "view": True, **place.marks}, place)

    def results(
        self, instr: Instr, refs: Sequence[Ref], attrs: dict[str, object]
    ) -> list[TensorSpec]:
        """Result tensors: views and updates in place share their operand's storage."""
        if instr.op in VIEWS and refs and len(instr.results) == 1:
            attrs["view"] = True
            return [retyped(refs[0], instr.results[0].type).spec]
        made = [self.spec(r.type) for r in instr.results]
        if instr.op in IN_PLACE and refs[0].owned and instr.operands[0] in self._last[id(instr)]:
            attrs["in_place"] = True
            made[0] = refs[0].spec
        return made

    def phase(self, where: str, deps: Sequence[int]) -> Phase:
        """From the name stack: what is transposed is backward, what follows it the optimizer."""
        if "transpose(" in where:
            return "backward"
        if "jvp(" in where:
            return "forward"
        later = any(self.phases[d] != "forward" for d in deps)
        return "optimizer" if later else "forward"

    def escape(self, refs: Sequence[Ref]) -> None:
        """Mark the makers of values that leave their region."""
        for ref in refs:
            if ref.node is not None:
                self.attrs[ref.node]["escapes"] = True

    def finished(self) -> list[OpNode]:
        return [
            OpNode(
                op=instr.op, phase=phase, inputs=tuple(inputs), outputs=outputs, attrs=attrs,
                deps=deps, module=module(instr.where),
            )
            for instr, phase, inputs, outputs, attrs, deps in zip(
                self.ops, self.phases, self.inputs, self.outputs, self.attrs, self.deps,
                strict=True,
            )
        ]  # fmt: skip

    # structured operations

    def constant(self, instr: Instr, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """A constant launches nothing; equal elements are no memory either."""
        spec = self.spec(instr.results[0].type, role="buffer")
        if instr.attrs.get("splat"):
            spec = TensorSpec(
                shape=spec.shape, dtype=spec.dtype, storage_id=spec.storage_id, storage_bytes=0,
                touched_bytes=0, role="buffer",
            )  # fmt: skip
        held = instr.attrs.get("value")
        known = held if isinstance(held, int) else None
        return [Ref(spec, None, known, bool(instr.attrs.get("one")), owned=False)]

    def call(self, instr: Instr, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """A function's body in place of its call."""
        name = str(instr.attrs.get("callee", instr.attrs.get("decomposition")))
        target = self.module.functions.get(name)
        if target is None:
            raise CaptureError(f"{self.module.name} calls @{name}, which it does not hold")
        return self.inlined(target, self.given(instr, env), {}, place.inside(instr))

    def given(self, instr: Instr, env: Mapping[Value, Ref]) -> list[Ref]:
        """What an instruction hands to a region: memory to write again where it is the last."""
        last = self._last[id(instr)]
        found = [env[v] for v in instr.operands]
        return [
            replace(ref, owned=ref.owned and v in last and instr.operands.count(v) == 1)
            for v, ref in zip(instr.operands, found, strict=True)
        ]  # fmt: skip

    def inlined(
        self, body: Body, given: Sequence[Ref], env: Mapping[Value, Ref], place: Place
    ) -> list[Ref]:
        """A region's results for these arguments."""
        if len(given) != len(body.args):
            raise CaptureError(
                f"{self.module.name}: a call gives {len(given)} values to a region of "
                f"{len(body.args)} arguments"
            )
        inner = dict(env)
        inner.update(zip(body.args, given, strict=True))
        return self.body(body, inner, place)

    def loop(self, instr: Instr, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """The body once, its nodes marked with the number of iterations."""
        condition, body = instr.bodies
        given = self.given(instr, env)
        start = {arg: ref.known for arg, ref in zip(condition.args, given, strict=True)}
        outer = {v: r.known for v, r in env.items() if r.known is not None}
        count = trip_count(condition, body, lambda v: start.get(v, outer.get(v)))
        if count is None:
            count, self.asked = self.trips, True
        if count is None:
            at = f" at {instr.where!r}" if instr.where else ""
            raise CaptureError(
                f"{self.module.name}: the program does not fix how often the loop{at} runs; say it "
                "with trips=N (--dim trips=N), which then holds for all such loops"
            )
        if count == 0:
            return given
        if count * place.trips > MAX_TRIPS:
            raise CaptureError(
                f"{self.module.name}: loops inside each other run their body "
                f"{float(count * place.trips):.3g} times: check the sizes that the program was "
                "lowered with"
            )
        name = f"{place.loop}/{len(self.ops)}"
        inner = {value: replace(ref, owned=False) for value, ref in env.items()}
        through = [carried_through(body, i) for i in range(len(given))]
        held = [ref.known if same else None for ref, same in zip(given, through, strict=True)]
        carried = [
            replace(ref, owned=False) if same else self.copied(instr, ref, place)
            for ref, same in zip(given, through, strict=True)
        ]
        for arg, ref, known in zip(body.args, carried, held, strict=True):
            inner[arg] = replace(ref, known=known, one=False)
        self.escape(carried)
        first, inside = len(self.ops), place.inside(instr, loop=name, trips=count)
        found = self.body(body, inner, inside)
        self.escape(found)
        self.carries += [
            Carry(before.spec, after.spec, first, len(self.ops), inside)
            for before, after, same in zip(carried, found, through, strict=True)
            if not same and before.spec.numel > 1
        ]
        return [
            replace(before if same else ref, known=known, one=False)
            for before, ref, same, known in zip(given, found, through, held, strict=True)
        ]

    def copied(self, instr: Instr, ref: Ref, place: Place) -> Ref:
        """What a loop changes lies in memory of its own: a copy of what it must not write on."""
        if ref.owned or ref.spec.numel <= 1:
            return replace(ref, owned=True)
        made = self.spec(TensorType(ref.spec.shape, ref.spec.dtype), role=ref.spec.role)
        node = Instr("stablehlo.copy", [], [], {}, [], instr.where)
        return Ref(made, self.add(node, [ref], [made], dict(place.marks), place))

    def branch(self, instr: Instr, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """The branch with the most work: which one runs is not known."""
        weights = [self.weight(body, 0) for body in instr.bodies]
        body = instr.bodies[weights.index(max(weights))]
        if max(weights) > 1:
            self.warnings.append("the program branches on a value: its longest branch is taken")
        last = self._last[id(instr)]
        outer = {v: replace(ref, owned=ref.owned and v in last) for v, ref in env.items()}
        given = self.given(instr, env)[1:]
        found = self.inlined(body, given[: len(body.args)], outer, place.inside(instr))
        self.escape(found)
        return found

    def weight(self, body: Body, depth: int) -> float:
        """Work of a region, roughly: elements that it makes, products that it sums."""
        key = id(body)
        if key not in self._weights:
            self._weights[key] = 0.0  # of a region that calls itself
            total = 0.0
            for instr in body.instrs if depth < MAX_CALLS else ():
                total += sum(r.type.numel for r in instr.results)
                if instr.op in _PRODUCTS:
                    sides = (*instr.operands[:2], *instr.results)
                    total += math.sqrt(math.prod(v.type.numel for v in sides))
                callee = self.module.functions.get(str(instr.attrs.get("callee", "")))
                inner = [*instr.bodies, *([callee] if callee is not None else [])]
                total += sum(self.weight(b, depth + 1) for b in inner)
            self._weights[key] = total
        return self._weights[key]

    def manual(self, instr: Instr, env: dict[Value, Ref], place: Place) -> list[Ref]:
        """A region written for one device: its own types are what a device holds."""
        (body,) = instr.bodies
        given = [
            retyped(ref, arg.type)
            for ref, arg in zip(self.given(instr, env), body.args, strict=True)
        ]
        return self.inlined(body, given, env, place.inside(instr))


_Handler = Callable[[_Walk, Instr, dict[Value, Ref], Place], list[Ref]]
_HANDLERS: Mapping[str, _Handler] = {
    "stablehlo.constant": _Walk.constant,
    "func.call": _Walk.call,
    "stablehlo.composite": _Walk.call,
    "stablehlo.while": _Walk.loop,
    "stablehlo.case": _Walk.branch,
    "stablehlo.if": _Walk.branch,
    "sdy.manual_computation": _Walk.manual,
}
"""Operations that are more than one node, or none."""
