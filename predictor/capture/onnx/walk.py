"""The walk through a model: operators in order, each by its rule, its body or its name alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from onnx import FunctionProto, GraphProto, TensorProto

from predictor.capture.onnx import known, schemas
from predictor.capture.onnx.call import Call, UnknownValuesError
from predictor.capture.onnx.checks import check_operators
from predictor.capture.onnx.dims import Sizes, declared_shape
from predictor.capture.onnx.node import Attributes, Node, read_nodes, statistics_of, value_of
from predictor.capture.onnx.patterns.recognise import recognise
from predictor.capture.onnx.reading import opsets, shape_of, values_of
from predictor.capture.onnx.rules.table import HOST, NARROW, RULES
from predictor.capture.onnx.rules.training import PHASE_OF
from predictor.capture.onnx.scope import Scope, module_of
from predictor.capture.onnx.tape import Tape
from predictor.capture.onnx.values import (
    FLOATING,
    KNOWN_LIMIT,
    Array,
    Item,
    MisfitError,
    Value,
    dtype_of,
    numel_of,
)
from predictor.errors import CaptureError
from predictor.graph.ir import Role

NONE: Attributes = {}
DEEPEST = 24
"""Levels of subgraphs and functions inside each other."""
MOST_OPERATORS = 300_000
"""Operators that one capture translates at most, trips of loops and calls of functions counted."""


class Walk:
    """One capture of a model."""

    def __init__(
        self,
        sizes: Sizes,
        functions: Mapping[tuple[str, str, str], FunctionProto],
        hints: Mapping[str, int],
        *,
        lightest: bool = False,
    ) -> None:
        self.tape = Tape()
        self.sizes = sizes
        self.functions = functions
        self.hints = hints
        """What the user says of values that only a run has, by tensor name."""
        self.scope = Scope()
        self.notes: dict[str, None] = {}
        self.unruled: dict[str, int] = {}
        """Operators without a rule or a body, by name."""
        self.branches: list[str] = []
        self.lightest = lightest
        """Whether branches take their cheaper side."""
        self.statistics: frozenset[str] = frozenset()
        self._read: dict[int, tuple[GraphProto | FunctionProto, list[Node]]] = {}
        self._depth = 0
        self._operators = 0

    # -- graphs ---------------------------------------------------------------------------------

    def stored(self, tensor: TensorProto, role: Role | None = None) -> Value:
        """A tensor that the model brings."""
        where = f"tensor {tensor.name!r}"
        shape = shape_of(tensor, where)
        dtype, width = dtype_of(tensor.data_type, where)
        if role is None:
            weight = dtype in FLOATING and shape and tensor.name not in self.statistics
            role = "parameter" if weight else "buffer"
        self.tape.where = where
        value = self.tape.fresh(shape, dtype, role=role, element_bytes=width)
        value.constant = True
        if numel_of(shape) <= KNOWN_LIMIT:
            value.known = values_of(tensor, where)
        return value

    def host(self, array: Array, dtype: str | None = None) -> Value:
        """A small tensor that the host works out: no call of the device."""
        value = self.tape.fresh(array.shape, dtype or _NAMES[array.dtype.name], role="buffer")
        value.known, value.constant = array, True
        return value

    @contextmanager
    def inside(self, versions: Mapping[str, int] | None = None, *, sees: bool) -> Iterator[Scope]:
        """A scope of its own; a subgraph `sees` the names around it, a function does not.

        Raises:
            CaptureError: too deep.
        """
        self._depth += 1
        if self._depth > DEEPEST:
            raise CaptureError(f"{self.tape.where}: more than {DEEPEST} levels of subgraphs")
        before = self.scope
        self.scope = Scope(
            outer=before if sees else None,
            versions=before.versions if versions is None else versions,
        )
        try:
            yield self.scope
        finally:
            self.scope = before
            self._depth -= 1

    def subgraph(self, graph: GraphProto, inputs: Sequence[Item]) -> list[Item]:
        """Results of a subgraph that is given its inputs.

        Raises:
            CaptureError: it cannot be captured.
        """
        with self.inside(sees=True) as scope:
            for info, item in zip(graph.input, inputs, strict=False):
                scope.names[info.name] = item
            return self.run(graph)

    def run(self, graph: GraphProto) -> list[Item]:
        """Walk a graph whose inputs are in the scope; its results.

        Raises:
            CaptureError: it cannot be captured.
        """
        scope = self.scope
        self.statistics |= statistics_of(graph)
        for tensor in graph.initializer:
            scope.names.setdefault(tensor.name, self.stored(tensor))
        for sparse in graph.sparse_initializer:
            whole = TensorProto(dims=sparse.dims, data_type=sparse.values.data_type)
            whole.name = sparse.values.name
            scope.names.setdefault(whole.name, self.stored(whole))
        for info in (*graph.value_info, *graph.output):
            if info.type.HasField("tensor_type"):
                scope.types[info.name] = info.type.tensor_type
        self.nodes(self.read(graph, [o.name for o in graph.output]))
        return [self.named(o.name, "the graph's results") for o in graph.output]

    def named(self, name: str, where: str) -> Item:
        """What a name stands for.

        Raises:
            CaptureError: nothing before this point.
        """
        try:
            item = self.scope.find(name)
        except KeyError:
            raise CaptureError(
                f"{where} use(s) {name!r}, which nothing before it makes: the graph has a cycle, "
                "is out of order or is cut off"
            ) from None
        return item

    def read(
        self, body: GraphProto | FunctionProto, results: Sequence[str], given: Attributes = NONE
    ) -> list[Node]:
        """The operators of a graph or function body; read once where it runs often."""
        found = self._read.get(id(body))
        if found is not None and not given:
            return found[1]
        read = read_nodes(body.node, given)
        check_operators(read, self.scope.versions)
        nodes = recognise(read, results, self.lookup)
        if not given:
            self._read[id(body)] = (body, nodes)
        return nodes

    def lookup(self, name: str) -> object:
        """What a name stands for by now, None for nothing."""
        try:
            return self.scope.find(name)
        except KeyError:
            return None

    def nodes(self, nodes: Sequence[Node]) -> None:
        """Translate operators in order.

        Raises:
            CaptureError: one of them cannot be.
        """
        for node in nodes:
            self.node(node)

    # -- operators ------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """Translate one operator.

        Raises:
            CaptureError: it cannot be.
        """
        self._operators += 1
        if self._operators > MOST_OPERATORS:
            raise CaptureError(
                f"{node.title}: more than {MOST_OPERATORS:,} operators, trips of loops counted: "
                "give smaller trip counts, or capture a part of the model"
            )
        scope = self.scope
        items: list[Item] = []
        for name in node.inputs:
            if not name:
                items.append(None)
                continue
            found = scope.names.get(name)
            items.append(self.named(name, node.title) if found is None else found)
        while items and items[-1] is None:
            items.pop()
        self.tape.where = node.title
        later = PHASE_OF.get((node.domain, node.op))
        if later is not None:
            self.tape.phase = later
        self.tape.module = module_of(node.name)
        call = Call(node, items, self.version(node.domain), self)
        try:
            results = self.results(call)
        except MisfitError as error:
            raise CaptureError(
                f"{node.title}: its operands or attributes do not fit ({error})"
            ) from error
        for name, item in zip(node.outputs, results, strict=False):
            if name:
                scope.names[name] = self.hinted(name, item)
        for name in node.outputs[len(results) :]:
            if name:
                raise CaptureError(f"{node.title} has no result {name!r}")

    def hinted(self, name: str, item: Item) -> Item:
        """A scalar whose value the user gave."""
        there = name in self.hints and isinstance(item, Value)
        if there and isinstance(item, Value) and item.known is None and item.numel == 1:
            self.sizes.used.add(name)
            item.known = np.full(item.shape, self.hints[name])
        return item

    def version(self, domain: str) -> int:
        """Version of an operator set in this scope."""
        return self.scope.versions.get(domain, 1)

    def results(self, call: Call) -> Sequence[Item]:
        """Results of a call: worked out, by its rule, by its body, or by its shapes alone.

        Raises:
            CaptureError: none of them can be told.
        """
        node = call.node
        key = (node.domain, node.op)
        local = self.functions.get((node.domain, node.op, node.overload))
        if local is not None:
            return self.function(call, local)
        tensors = [item for item in call.items if isinstance(item, Value)]
        if tensors and key in HOST:
            return RULES[key](call)
        if all(t.known is not None for t in tensors):
            found = known.evaluate(call)
            if found is not None:
                return [self.host(array, _kept(call, array)) for array in found]
        rule = RULES.get(key)
        if rule is not None and key not in NARROW:
            for tensor in tensors:
                if tensor.pending:
                    self.tape.realised(tensor)
        constant = (
            bool(call.items)
            and key not in NARROW
            and all(
                item is None or (isinstance(item, Value) and item.constant) for item in call.items
            )
        )
        if rule is None:
            return self.without_rule(call)
        if not constant or key in _NEVER_FOLDED:
            try:
                return rule(call)
            except UnknownValuesError:
                return self.as_declared(call)
        with self.tape.muted():
            results = rule(call)
        role: Role = "parameter" if any(t.spec.role == "parameter" for t in tensors) else "buffer"
        for item in results:
            if isinstance(item, Value):
                item.constant = True
                item.node = -1
                if item.spec.role == "activation":  # weights put together before the run
                    item.spec = replace(item.spec, role=role)
        return results

    def as_declared(self, call: Call) -> Sequence[Item]:
        """Results of a call that needs values of a run, where the file says their shapes.

        Raises:
            UnknownValuesError: it does not.
        """
        results = [call.declared(i) for i in range(len(call.node.outputs))]
        found = [r for r in results if r is not None]
        if len(found) != len(results):
            raise
        tensors = [item for item in call.items if isinstance(item, Value)]
        op = FALLBACK.get(call.node.op, "aten.clone")
        if call.node.op.startswith("Reduce"):
            op = "aten.sum"
        return self.tape.call(op, tensors[:1], found)

    def function(self, call: Call, body: FunctionProto) -> list[Item]:
        """Results of a function of the model: its body, in place.

        Raises:
            CaptureError: it cannot be captured.
        """
        given = dict(call.node.attrs)
        for default in body.attribute_proto:
            given.setdefault(default.name, value_of(default))
        versions = opsets(body) if len(body.opset_import) else {}
        with self.inside({**self.scope.versions, **versions}, sees=False) as scope:
            for i, name in enumerate(body.input):
                scope.names[name] = call.items[i] if i < len(call.items) else None
            for info in body.value_info:
                if info.type.HasField("tensor_type"):
                    scope.types[info.name] = info.type.tensor_type
            self.nodes(self.read(body, list(body.output), given))
            return [scope.names.get(name) for name in body.output]

    def without_rule(self, call: Call) -> Sequence[Item]:
        """An operator without a rule: its own body where it has one, else by name, and listed.

        Lowering refuses it, as any call without a cost rule, unless opaque kernels are allowed.

        Raises:
            CaptureError: the shapes of its results cannot be told.
        """
        body = schemas.body_of(call)
        if body is not None:
            return self.function(call, body)
        for item in call.items:
            if isinstance(item, Value):
                self.tape.realised(item)
        node = call.node
        results = schemas.results_of(call)
        if results is None:
            raise CaptureError(
                f"{node.title} is unknown here and the file does not say what shape its results "
                "have: run onnx.shape_inference on the model, or replace the operator"
            )
        kind = f"{node.domain}.{node.op}" if node.domain else node.op
        self.unruled[kind] = self.unruled.get(kind, 0) + 1
        tensors = [item for item in call.items if isinstance(item, Value)]
        return self.tape.call(f"onnx.{kind}", tensors, results)

    def declared(self, name: str) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype that the file declares for a tensor, None where they are open."""
        found = self.scope.types.get(name)
        if found is None:
            return None
        shape = declared_shape(found, self.sizes)
        if shape is None or not found.elem_type:
            return None
        return shape, dtype_of(found.elem_type, f"tensor {name!r}")[0]

    def note(self, text: str) -> None:
        """Something the user should know."""
        self.notes[text] = None


_NAMES: Mapping[str, str] = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "int64": "int64", "int32": "int32",
    "int16": "int16", "int8": "int8", "uint8": "uint8", "bool": "bool", "uint16": "int16",
    "uint32": "int32", "uint64": "int64",
}  # fmt: skip
FALLBACK: Mapping[str, str] = {"TopK": "aten.topk", "OneHot": "aten.full", "Pad": "aten.repeat"}
"""What a call whose shape is declared alone is recorded as; a reduction as a sum, else a copy."""
_NEVER_FOLDED: frozenset[tuple[str, str]] = frozenset({
    ("", "RandomNormalLike"), ("", "RandomUniformLike"), ("", "Bernoulli"), ("", "Multinomial"),
    ("", "If"), ("", "Loop"), ("", "Scan"), ("", "QuantizeLinear"),
})  # fmt: skip


def _kept(call: Call, array: Array) -> str | None:
    """Dtype of a worked-out result where NumPy has none (bf16 is worked out in fp32)."""
    first = next((i for i in call.items if isinstance(i, Value)), None)
    if array.dtype.name == "float32" and call.node.op == "Cast":
        return dtype_of(call.integer("to", 1), call.node.title)[0]
    if array.dtype.name == "float32" and first is not None and first.dtype == "bf16":
        return "bf16"
    return None
