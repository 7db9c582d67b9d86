"""An `ExportedProgram` in memory as records."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from predictor.capture.exported.records import (
    Body,
    Call,
    ExportedGraph,
    Input,
    InputKind,
    Nest,
    Ref,
    Size,
    TensorMeta,
)
from predictor.capture.exported.symbols import symbols_of
from predictor.errors import CaptureError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec

_KINDS: Mapping[str, InputKind] = {
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
    "USER_INPUT": "input",
}
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def records_of(program: ExportedProgram) -> ExportedGraph:
    """The program as records, called like the module it was made from; nothing of it runs.

    Raises:
        CaptureError: it holds what an estimate cannot be made of.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    storages: dict[int, str] = {}
    inputs = tuple(_input(spec, nodes, program, storages) for spec in signature.input_specs)
    kinds = [spec.kind.name for spec in signature.output_specs]
    loss = kinds.index("LOSS_OUTPUT") if "LOSS_OUTPUT" in kinds else None
    return ExportedGraph(
        name=_name(program),
        inputs=inputs,
        body=_body(program.graph_module),
        dialect="training" if program.dialect == "TRAINING" else "inference",
        ranges={
            str(symbol): (max(_bound(held.lower) or 0, 0), _bound(held.upper))
            for symbol, held in program.range_constraints.items()
        },
        hints=_hints(nodes.values()),
        aliases=_aliases(inputs, nodes),
        user_outputs=tuple(
            at for at, kind in enumerate(kinds) if kind in ("USER_OUTPUT", "LOSS_OUTPUT")
        ),
        loss_output=loss,
        gradients={
            at: str(spec.target)
            for at, spec in enumerate(signature.output_specs)
            if spec.kind.name == "GRADIENT_TO_PARAMETER"
        },
        structure=_nest(program.call_spec.out_spec),
    )


def _name(program: ExportedProgram) -> str:
    """The class of the module that was exported."""
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if path == "":
                return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return "exported program"


def _nest(spec: Any) -> Nest | None:
    """How the outputs nest: mappings keep the names of their members."""
    if spec is None or spec.is_leaf():
        return None
    children = tuple(_nest(child) for child in spec.children())
    keys = spec.context
    named = isinstance(keys, list | tuple) and len(keys) == len(children)
    named = named and all(isinstance(key, str) for key in keys)
    return Nest(tuple(keys) if named and keys else None, children)


def _input(
    spec: InputSpec,
    nodes: Mapping[str, fx.Node],
    program: ExportedProgram,
    storages: dict[int, str],
) -> Input:
    kind = _KINDS.get(spec.kind.name, "constant")
    name = str(getattr(spec.arg, "name", ""))
    value = nodes[name].meta.get("val") if name in nodes else None
    if not isinstance(value, torch.Tensor):
        held = _size(value) if isinstance(value, _SIZES) else getattr(spec.arg, "value", value)
        return Input(name=name, kind=kind, meta=None, value=held)
    path = str(spec.target or "")
    real = program.state_dict.get(path, program.constants.get(path))
    return Input(
        name=name,
        kind=kind,
        meta=_meta(value if real is None else real),
        path=path,
        storage=_storage(real, storages),
        known=real if kind in ("constant", "buffer") and isinstance(real, torch.Tensor) else None,
    )


def _storage(real: Any, storages: dict[int, str]) -> str | None:
    """A name for the memory behind a weight."""
    if not isinstance(real, torch.Tensor) or real.layout is not torch.strided:
        return None
    key = real.untyped_storage()._cdata
    return storages.setdefault(key, f"storage {len(storages)}")


def _bound(value: Any) -> int | None:
    """A bound as a number; None for PyTorch's own infinities."""
    whole = isinstance(value, int) or getattr(value, "is_Integer", False)
    return int(value) if whole else None


def _aliases(inputs: tuple[Input, ...], nodes: Mapping[str, fx.Node]) -> dict[str, str]:
    """Symbols by the names of `torch.export.Dim`, which the shape environment keeps."""
    found: dict[str, str] = {}
    for one in inputs:
        value = nodes[one.name].meta.get("val") if one.name in nodes else None
        if one.kind != "input" or not isinstance(value, torch.Tensor):
            continue
        sizes: Sequence[Any] = value.shape
        for at, size in enumerate(sizes):
            if not isinstance(size, torch.SymInt):
                continue
            names = getattr(size.node.shape_env, "source_name_to_debug_name", {})
            for source, name in names.items():
                if source.endswith(f".size()[{at}]") and f"'{one.name}'" in source:
                    found |= _alias(str(name), str(size.node.expr))
    return found


def _alias(name: str, expression: str) -> dict[str, str]:
    """The symbol by its name, where a dimension is called as its expression is (`2*half`)."""
    names, symbols = symbols_of(name), symbols_of(expression)
    if len(names) != 1 or len(symbols) != 1:
        return {}
    renamed = expression.replace(symbols[0], names[0])
    return {names[0]: symbols[0]} if renamed.replace(" ", "") == name.replace(" ", "") else {}


def _hints(nodes: Any) -> dict[str, int]:
    """The values that symbols had in the inputs of the export."""
    found: dict[str, int] = {}
    for node in nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        sizes: Sequence[Any] = value.shape
        for size in sizes:
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                found[str(size.node.expr)] = int(size.node.hint)
    return found


def _size(value: Any) -> Size:
    if isinstance(value, _SIZES):
        expression = str(value.node.expr)
        return int(expression) if expression.isdecimal() else expression
    return int(value)


def _meta(value: torch.Tensor) -> TensorMeta:
    if value.layout is not torch.strided:
        raise CaptureError(
            "the program holds sparse tensors, which exported programs are not captured with: "
            "capture the module itself"
        )
    return TensorMeta(
        sizes=tuple(_size(s) for s in value.shape),
        strides=tuple(_size(s) for s in value.stride()),
        offset=_size(value.storage_offset()),
        dtype=value.dtype,
        requires_grad=value.requires_grad,
    )


def _body(module: fx.GraphModule) -> Body:
    inputs: list[str] = []
    calls: list[Call] = []
    outputs: Any = ()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            outputs = _argument(node.args[0], module)
        elif node.op == "call_function":
            calls.append(_call(node, module))
        elif node.op != "get_attr":
            raise CaptureError(
                f"the program calls {node.target!r}, which is no operator: export it"
            )
    return Body(inputs=tuple(inputs), calls=tuple(calls), outputs=outputs)


def _call(node: fx.Node, module: fx.GraphModule) -> Call:
    return Call(
        target=_target(node.target),
        args=tuple(_argument(a, module) for a in node.args),
        kwargs={k: _argument(v, module) for k, v in node.kwargs.items()},
        results=node.name,
        metas=tuple(_metas(node.meta.get("val"))),
        module=_module(node),
    )


def _metas(value: Any) -> Iterator[TensorMeta | None]:
    values = value if isinstance(value, list | tuple) else (value,)
    for one in values:
        dense = isinstance(one, torch.Tensor) and one.layout is torch.strided
        yield _meta(one) if dense else None


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("",)) if stack else ("",)
    return str(last[0])


def _target(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return f"sym.{target.__name__}"


def _argument(value: Any, module: fx.GraphModule) -> Any:
    if isinstance(value, fx.Node):
        if value.op != "get_attr":
            return Ref(value.name)
        held = getattr(module, str(value.target), None)
        if isinstance(held, fx.GraphModule):
            return _body(held)
        raise CaptureError(f"the program reads {value.target!r} past its inputs: export it again")
    if isinstance(value, list | tuple):
        return [_argument(v, module) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _argument(v, module) for k, v in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value
