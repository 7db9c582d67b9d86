"""An exported program as plain records, the same whether it was in memory or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

Size: TypeAlias = "int | str"
"""A size: a number, or an expression over the program's symbols (`4*s52`)."""
Pattern: TypeAlias = "str | tuple[Pattern, ...] | None"
"""What the results of a call are called: a name, a tuple of them, None for one that is unused."""
InputKind = Literal["parameter", "buffer", "constant", "input"]
Dialect = Literal["training", "inference"]


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is the value of that name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta:
    """A tensor as the export describes it."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of the program's graph."""

    name: str
    kind: InputKind
    meta: TensorMeta | None
    """None for an input that is no tensor."""
    value: Any = None
    """What an input that is no tensor holds: a constant, or a size as an expression."""
    path: str = ""
    """Of a parameter or buffer: where the module keeps it."""
    storage: str | None = None
    """Inputs of one storage name share their memory (tied weights); None: its own."""
    known: torch.Tensor | None = None
    """Values of a constant, where they are at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the program's graph."""

    target: str
    """`aten.linear.default`, `sym.mul`, `getitem`, `higher_order.cond`, `mylib.op.default`."""
    args: tuple[Any, ...]
    """Plain values, `Ref`, `Body`, and lists and tuples of them."""
    kwargs: Mapping[str, Any]
    results: Pattern
    metas: tuple[TensorMeta | None, ...] | None = None
    """The results as the export describes them, None where it does not say."""
    module: str = ""
    """Dotted path of the module that made the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A graph of calls: the program's own, or one that a call is given (a branch, a region)."""

    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Any
    """What it returns: a `Ref`, a plain value, or a tuple of them."""


@dataclass(frozen=True, slots=True)
class Nest:
    """A container of outputs; None among the children is one output."""

    keys: tuple[str, ...] | None
    """Names of the children of a mapping; None for a tuple."""
    children: tuple[Nest | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedGraph:
    """An exported program."""

    name: str
    inputs: tuple[Input, ...]
    body: Body
    dialect: Dialect
    """`training` keeps the calls of PyTorch as the program made them; `inference` was decomposed
    (`run_decompositions`)."""
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Smallest and largest value of each free symbol."""
    hints: Mapping[str, int] = field(default_factory=dict)
    """The value of a symbol in the inputs that the program was exported with."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Symbol of each name that the user gave (`torch.export.Dim`), where it is kept."""
    user_outputs: tuple[int, ...] = ()
    """Positions of the program's own results among the outputs of its graph."""
    loss_output: int | None = None
    """Position of the loss, where the graph holds its own backward."""
    gradients: Mapping[int, str] = field(default_factory=dict)
    """Paths of parameters, by position of their gradient among the outputs."""
    structure: Nest | None = None
    """How the user's outputs nest; None where there is one, or where the export does not say."""
