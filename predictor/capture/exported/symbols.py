"""Free sizes of an exported program: their names, what may be asked of them, their expressions."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from predictor.capture.exported.records import ExportedGraph, Input, Size
from predictor.errors import CaptureError

LARGEST = 1 << 62
"""Beyond this a size is refused: it would not fit the counters of a tensor."""
_LONGEST = 1_024
"""Characters of the longest expression that is read."""
_MOST_POWER = 64

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: power(a, b),
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Max": max,
    "Min": min,
    "floor": math.floor,
    "FloorToInt": math.floor,
    "ceiling": math.ceil,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "ToFloat": float,
    "Abs": abs,
    "PowByNatural": lambda a, b: power(a, b),
}
"""The functions that sizes are written with (`torch.utils._sympy.functions`, by meaning)."""


def power(base: Any, exponent: Any) -> Any:
    """A power that cannot grow without bound."""
    if abs(exponent) > _MOST_POWER:
        raise CaptureError(f"a size is raised to the power {exponent}: the program is damaged")
    return bounded(base**exponent)


def bounded(value: Any) -> Any:
    """A number that a tensor's size can be worked out with."""
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise CaptureError(f"a size of the program is {value:.3g}: take smaller sizes (--dim)")
    return value


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number that a size stands for; never runs it as code.

    Raises:
        CaptureError: it holds a symbol without a value, or is no arithmetic.
    """
    if isinstance(size, int):
        return size
    try:
        found = _value(_parsed(size), values)
    except (ArithmeticError, TypeError, RecursionError) as error:
        raise CaptureError(f"the size {size!r} cannot be worked out: {error}") from error
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int):
        raise CaptureError(f"the size {size!r} is {found}, not a whole number: set other sizes")
    return found


def as_written(text: str) -> str:
    """An expression of a file as a person writes it: `4 * s52`.

    Files hold them by their parts: `Mul(Integer(4), Symbol('s52', integer=True))`.
    """
    try:
        return ast.unparse(_Plain().visit(_parsed(text)))
    except RecursionError as error:
        raise CaptureError(f"the size {text[:80]!r} nests too deeply: it is damaged") from error


class _Plain(ast.NodeTransformer):
    """Calls that stand for symbols, numbers and arithmetic, as these."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """One call."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
                if not name.isidentifier():
                    raise CaptureError(f"a size is called {name[:80]!r}: the program is damaged")
                return ast.Name(id=name)
            case ast.Call(func=ast.Name(id="Integer"), args=[inner]):
                return inner
            case ast.Call(func=ast.Name(id="Add" | "Mul" as name), args=[first, *others]):
                op: ast.operator = ast.Add() if name == "Add" else ast.Mult()
                return reduce(lambda left, right: ast.BinOp(left, op, right), others, first)
            case ast.Call(func=ast.Name(id="Pow"), args=[left, right]):
                return ast.BinOp(left, ast.Pow(), right)
            case ast.Call(func=ast.Name(id="Rational"), args=[left, right]):
                return ast.BinOp(left, ast.Div(), right)
        return node


def symbols_of(size: Size) -> tuple[str, ...]:
    """The symbols in a size."""
    if isinstance(size, int):
        return ()
    names = [n.id for n in ast.walk(_parsed(size)) if isinstance(n, ast.Name)]
    return tuple(dict.fromkeys(name for name in names if name not in _FUNCTIONS))


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise CaptureError(f"a size of {len(text):,} characters: the program is damaged")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CaptureError(f"the size {text[:80]!r} is no arithmetic expression") from error


def _value(node: ast.expr, values: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return bounded(number)
        case ast.Name(id=name):
            if name not in values:
                raise CaptureError(f"the size {name} has no value: set it with --dim {name}=N")
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            work = _ARITHMETIC[type(op)]
            return bounded(work(_value(left, values), _value(right, values)))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return bounded(_FUNCTIONS[name](*[_value(a, values) for a in args]))
    raise CaptureError(
        f"a size holds {ast.unparse(node)[:80]!r}, which is no arithmetic that capture knows"
    )


def bind(
    graph: ExportedGraph, dims: Mapping[str, int], *, batch: int | None, seq: int | None
) -> dict[str, int]:
    """The value of every free symbol.

    Args:
        graph: the program.
        dims: sizes by symbol, by the name that the user gave (`torch.export.Dim`), or by place
            (`tokens.0`: dimension 0 of the input `tokens`).
        batch: size of the one free dimension 0 of the inputs.
        seq: size of the one free dimension 1 of the inputs.

    Raises:
        CaptureError: a size is unknown, out of its range, given twice, or left open; the message
            lists the free ones.
    """
    free = free_symbols(graph)
    values: dict[str, int] = {}
    asked = [(name, size) for name, size in dims.items()]
    asked += [
        (_only(graph, at, flag, size), size)
        for at, flag, size in ((0, "batch", batch), (1, "seq", seq))
        if size is not None
    ]
    places = {
        f"{one.name}.{at}": size
        for one in graph.inputs
        if one.kind == "input" and one.meta is not None
        for at, size in enumerate(one.meta.sizes)
    }
    places |= {o.name: o.value for o in graph.inputs if o.kind == "input" and o.meta is None}
    for name, size in asked:
        symbol = places.get(name, graph.aliases.get(name, name))
        if symbol not in free:
            listed = "; ".join(described(graph, free)) or "none: every size is fixed by the export"
            raise CaptureError(f"{graph.name} has no free size {name!r}; free sizes: {listed}")
        if values.get(str(symbol), size) != size:
            raise CaptureError(f"{name}={size}: {symbol} is {values[str(symbol)]} already")
        low, high = graph.ranges.get(str(symbol), (0, None))
        if size < low or (high is not None and size > high):
            raise CaptureError(
                f"{name}={size} is outside of what {graph.name} was exported for: "
                f"{_range(low, high)}"
            )
        values[str(symbol)] = size
    missing = [s for s in free if s not in values]
    if missing:
        listed = "; ".join(described(graph, missing))
        first = next((n for n, s in graph.aliases.items() if s == missing[0]), missing[0])
        raise CaptureError(
            f"{graph.name} leaves sizes free: {listed}; set each with --dim, as in "
            f"--dim {first}=N (dims={{{first!r}: N}} in Python)"
        )
    return values


def free_symbols(graph: ExportedGraph) -> tuple[str, ...]:
    """The symbols in the sizes of the program's inputs."""
    found: dict[str, None] = {}
    for one in graph.inputs:
        sizes: Sequence[Size] = () if one.meta is None else one.meta.sizes
        if one.meta is None and isinstance(one.value, str) and one.kind == "input":
            sizes = (one.value,)
        for size in sizes:
            found.update(dict.fromkeys(symbols_of(size)))
    return tuple(found)


def described(graph: ExportedGraph, symbols: Sequence[str]) -> list[str]:
    """What a user needs to know of each symbol."""
    lines = []
    for symbol in symbols:
        named = [name for name, of in graph.aliases.items() if of == symbol]
        where = next(
            (place for one in graph.inputs for place in _places(one, symbol)), "no input's own size"
        )
        facts = [where, _range(*graph.ranges.get(symbol, (0, None)))]
        if symbol in graph.hints:
            facts.append(f"exported with {graph.hints[symbol]}")
        lines.append(f"{named[0] if named else symbol} ({', '.join(facts)})")
    return lines


def _places(one: Input, symbol: str) -> list[str]:
    if one.meta is None:
        return [f"the number {one.name}"] if one.value == symbol else []
    return [
        f"dimension {at} of {one.name}" for at, size in enumerate(one.meta.sizes) if size == symbol
    ]


def _only(graph: ExportedGraph, at: int, flag: str, size: int) -> str:
    """The one free symbol that is dimension `at` of the inputs."""
    found = {
        one.meta.sizes[at]: None
        for one in graph.inputs
        if one.kind == "input" and one.meta is not None and len(one.meta.sizes) > at
        if not isinstance(one.meta.sizes[at], int)
    }
    if len(found) != 1:
        listed = "; ".join(described(graph, free_symbols(graph)))
        why = f"free sizes: {listed}" if listed else "every size is fixed by the export"
        raise CaptureError(
            f"--{flag} {size}: {graph.name} has {len(found) or 'no'} free dimension {at} among its "
            f"inputs ({why}); export it with dynamic_shapes, or name the size with --dim"
        )
    return str(next(iter(found)))


def _range(low: int, high: int | None) -> str:
    return f"{low} to {high}" if high is not None else f"from {low}"
