"""Which arguments of a lowered program are parameters, optimizer state or data.

A lowered program has one flat list of arguments. Their names tell (`params['w']`,
`opt_state[0].mu`) where the program was lowered in memory; text has none, and use tells: what meets
data as the right factor of a product, as a convolution's kernel, as a table that is gathered from
or as a broadcast bias is a parameter, and what has a parameter's shape and is not, is the
optimizer's state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from predictor.capture.stablehlo.flattening import Flattened
from predictor.capture.stablehlo.records import Argument
from predictor.graph.ir import OpNode, Role, TensorSpec

_PARAMETER = re.compile(r"(params?|parameters|weights?|variables|model|theta)\b")
_STATE = re.compile(r"(opt|optimizer|opt_state|optimizer_state|tx|adam|momentum)\w*\b")
_CARRIES: frozenset[str] = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "slice", "dynamic_slice",
                                     "reverse", "custom_call", "all_gather")
)  # fmt: skip
_FLOATS = ("fp", "bf", "complex")


def roles_of(flat: Flattened, arguments: Sequence[Argument], *, training: bool) -> list[Role]:
    """Role of each argument of the entry function."""
    used = _used_as_parameters(flat)
    named = [_named(argument.name) for argument in arguments]
    found: list[Role] = []
    for spec, name in zip(flat.arguments, named, strict=True):
        floating = spec.dtype.startswith(_FLOATS)
        if name is not None:
            found.append(name)
        elif floating and spec.storage_id in used:
            found.append("parameter")
        else:
            found.append("input")
    if training and "state" not in found:
        shapes = {s.shape for s, r in zip(flat.arguments, found, strict=True) if r == "parameter"}
        found = [
            "state" if role == "input" and spec.shape in shapes and spec.shape
            and spec.dtype.startswith(_FLOATS) else role
            for spec, role in zip(flat.arguments, found, strict=True)
        ]  # fmt: skip
    return found


def updates_parameters(flat: Flattened, roles: Sequence[Role], *, least: int = 2) -> bool:
    """Whether the results hold a tensor of the type of every parameter: a step.

    Args:
        flat: the program.
        roles: of its arguments.
        least: parameters that there must be; one alone may be met by chance.
    """
    results = Counter((ref.spec.shape, ref.spec.dtype) for ref in flat.results)
    held = Counter(
        (spec.shape, spec.dtype)
        for spec, role in zip(flat.arguments, roles, strict=True) if role == "parameter"
    )  # fmt: skip
    return held.total() >= least and held <= results


def _named(name: str) -> Role | None:
    """What an argument's path says of it."""
    path = name.lower().replace("self.", "")
    head = re.split(r"[\[.]", path, maxsplit=1)[0]
    if _STATE.match(head) or ".opt_state" in path:
        return "state"
    if _PARAMETER.match(head) or ".params" in path:
        return "parameter"
    return None


def _used_as_parameters(flat: Flattened) -> set[int]:
    """Storages of arguments that are used as parameters are."""
    origin = {spec.storage_id: spec.storage_id for spec in flat.arguments}
    found: set[int] = set()
    seen: set[int] = set()
    for node in flat.nodes:
        sources = [origin.get(spec.storage_id) for spec in node.inputs]
        for place, source in enumerate(sources):
            if source is None:
                continue
            if _as_parameter(node, place) and source not in seen:
                found.add(source)
            elif node.op not in _CARRIES:
                seen.add(source)
        if node.op in _CARRIES and sources and sources[0] is not None:
            for spec in node.outputs:
                origin[spec.storage_id] = sources[0]
    return found


def _as_parameter(node: OpNode, place: int) -> bool:
    if node.op in ("stablehlo.dot_general", "stablehlo.dot"):
        return place == 1 and len(node.inputs[1].shape) <= 2  # keys of attention have more axes
    if node.op == "stablehlo.convolution":
        return place == 1
    if node.op == "stablehlo.gather":
        return place == 0
    if node.op == "stablehlo.broadcast_in_dim":
        return len(node.inputs[0].shape) == 1
    return False


def with_roles(flat: Flattened, roles: Sequence[Role]) -> Flattened:
    """The same nodes, every tensor on an argument's storage in the argument's role."""
    role = {
        spec.storage_id: role
        for spec, role in zip(flat.arguments, roles, strict=True)
        if role != spec.role
    }

    def turned(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(s, role=role[s.storage_id]) if s.storage_id in role else s for s in specs
        )

    nodes = [
        replace(node, inputs=turned(node.inputs), outputs=turned(node.outputs))
        if any(s.storage_id in role for s in (*node.inputs, *node.outputs)) else node
        for node in flat.nodes
    ]  # fmt: skip
    return Flattened(nodes, list(turned(flat.arguments)), flat.results, flat.warnings)
