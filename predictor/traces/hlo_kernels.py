"""Kernel rows of lowered kernels, and the kernel that a compiled HLO module of one is.

Work follows the rules by which StableHLO programs are lowered (`predictor.lower.xla_kernels`);
traffic is that of the parameters and results as the compiler laid them out, tiles filled up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from predictor.errors import DataError
from predictor.graph.ir import DTYPE_BYTES, Kernel, OpNode, TensorSpec
from predictor.graph.ops import DIM_NAMES
from predictor.lower.xla_backends import Backend
from predictor.lower.xla_groups import Group
from predictor.lower.xla_kernels import kernel_of
from predictor.lower.xla_ops import kind_of
from predictor.lower.xla_program import program_of
from predictor.traces.hlo_text import Instruction, Module, Shape
from predictor.traces.schema import filled

if TYPE_CHECKING:
    import pandas as pd

_NAMES: Mapping[str, str] = {
    "and": "and", "broadcast": "broadcast_in_dim", "count-leading-zeros": "clz", "dot": "dot",
    "exponential-minus-one": "exponential_minus_one", "log-plus-one": "log_plus_one",
    "round-nearest-afz": "round_nearest_afz", "round-nearest-even": "round_nearest_even",
}  # fmt: skip
"""StableHLO's name of an opcode where it is not the same with underscores."""
_LEADS = ("conv", "dot", "library", "reduce")
"""Kinds of operation that say what a kernel is, the first that is there."""
_FREE = ("bitcast", "get-tuple-element")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_SIZE = re.compile(r"size=([\dx]+)")


def rows_of_kernels(kernels: Sequence[Kernel], values: Mapping[str, Any]) -> pd.DataFrame:
    """Kernel rows with the op, dimensions, work and traffic of lowered kernels.

    Args:
        kernels: one a row.
        values: the other columns.
    """
    own: dict[str, Any] = {
        name: [getattr(k, name) for k in kernels]
        for name in ("op", "phase", "dtype", "flops", "read_bytes", "write_bytes")
    }
    own |= {f"dim_{d}": [int(k.dims.get(d, -1)) for k in kernels] for d in DIM_NAMES}
    return filled("kernels", {**own, **values}, len(kernels))


def kernel_of_module(module: Module, backend: Backend, name: str) -> Kernel:
    """The one kernel of a module whose entry holds one instruction behind its parameters.

    Args:
        module: as compiled.
        backend: whose matrix unit the products fill.
        name: how an error calls it.

    Raises:
        DataError: the entry holds another number of instructions, or an unknown operation.
        CostRuleError: an operation without a cost rule.
    """
    entry = module.computations[module.entry]
    parameters = [i for i in entry if i.opcode == "parameter"]
    others = [i for i in entry if i.opcode != "parameter"]
    if len(others) != 1:
        raise DataError(f"{name}: {len(others)} instructions in the entry, expected one kernel")
    root = others[0]
    program = _Program(module=module, name=name)
    values = {p.name: [program.argument(p.shapes[0])] for p in parameters}
    program.orders = {p.name: p.shapes[0].order for p in parameters}
    program.instruction(root, values)
    hlos = program_of(program.nodes)
    if not hlos:
        raise DataError(f"{name}: nothing is computed")
    results = [hlo for hlo in hlos if not any(v.readers for v in hlo.writes)]
    group = Group(results)
    group.add(reversed(hlos))
    group.hero = next((h for kind in _LEADS for h in hlos if h.kind == kind), None)
    kernel = kernel_of(group, backend, allow_opaque=False)
    return replace(
        kernel,
        read_bytes=sum(_moved(p.shapes[0]) for p in parameters),
        write_bytes=sum(_moved(shape) for shape in root.shapes),
    )


def _moved(shape: Shape) -> float:
    """Bytes that reading or writing an array moves; a number is kept beside the program."""
    return shape.stored_bytes if shape.dims else 0.0


@dataclass(slots=True, kw_only=True)
class _Program:
    """Nodes of StableHLO names for the instructions inside a kernel."""

    module: Module
    name: str
    nodes: list[OpNode] = field(default_factory=list)
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Order of the dimensions of arguments, by name."""
    storages: int = 0

    def argument(self, shape: Shape, *, free: bool = False) -> TensorSpec:
        """A tensor of its own."""
        self.storages += 1
        size = 0 if free else int(shape.numel * DTYPE_BYTES[shape.dtype])
        return TensorSpec(
            shape=shape.dims, dtype=shape.dtype, storage_id=self.storages, storage_bytes=size,
            touched_bytes=size,
        )  # fmt: skip

    def instruction(self, at: Instruction, values: dict[str, list[TensorSpec]]) -> None:
        """Add an instruction, those inside a fusion in its place, and remember its results."""
        reads = [values[o] for o in at.operands] if at.opcode != "constant" else []
        if at.opcode == "constant":
            values[at.name] = [self.argument(at.shapes[0], free=not at.shapes[0].dims)]
        elif at.opcode == "fusion":
            values[at.name] = self.computation(at.attribute("calls"), reads)
        elif at.opcode == "tuple":
            values[at.name] = [one for read in reads for one in read]
        elif at.opcode in _FREE:
            index = int(at.attribute("index") or 0)
            values[at.name] = [reads[0][index]]
        else:
            outputs = [self.argument(shape) for shape in at.shapes]
            self.nodes.append(
                OpNode(
                    op=self._op(at), phase="forward", inputs=tuple(r[0] for r in reads),
                    outputs=tuple(outputs), attrs=self._attributes(at),
                )
            )  # fmt: skip
            values[at.name] = outputs

    def computation(self, called: str, arguments: list[list[TensorSpec]]) -> list[TensorSpec]:
        """Results of a called computation."""
        lines = self.module.computations.get(called.lstrip("%"))
        if lines is None:
            raise DataError(f"{self.name}: no computation {called!r}")
        values: dict[str, list[TensorSpec]] = {}
        for line in lines:
            if line.opcode == "parameter":
                values[line.name] = arguments[int(line.operands[0])]
            else:
                self.instruction(line, values)
        return next(values[line.name] for line in lines if line.root)

    def _op(self, at: Instruction) -> str:
        if at.opcode == "copy":  # of one layout to another
            moved = self.orders.get(at.operands[0]) != at.shapes[0].order
            return "stablehlo.transpose" if moved else "stablehlo.copy"
        if at.opcode == "reshape":  # as a kernel of its own: tiles are filled anew
            return "stablehlo.copy"
        if at.opcode == "convolution" and not _axes(at):
            return "stablehlo.dot_general"
        op = f"stablehlo.{_NAMES.get(at.opcode, at.opcode.replace('-', '_'))}"
        if kind_of(op) is None:
            raise DataError(f"{self.name}: no rule for HLO's {at.opcode!r}")
        return op

    def _attributes(self, at: Instruction) -> dict[str, object]:
        read = _ATTRIBUTES.get(at.opcode)
        found: dict[str, object] = {} if read is None else read(at)
        if at.opcode in ("reduce", "reduce-window"):
            body = self.module.computations.get(at.attribute("to_apply").lstrip("%"), ())
            found["body"] = [i.opcode for i in body if i.opcode != "parameter"]
        return found


def _labels(at: Instruction) -> tuple[str, str, str]:
    """Roles of the dimensions of input, kernel and result: `b01f_01io->b01f`."""
    labels = _LABELS.search(at.attribute("dim_labels"))
    if labels is None:
        raise DataError(f"{at.name}: no dim_labels")
    return labels[1], labels[2], labels[3]


def _axes(at: Instruction) -> list[str]:
    """Spatial dimensions; without one a convolution is a matrix product."""
    return [str(i) for i in range(10) if str(i) in _labels(at)[0]]


def _convolution(at: Instruction) -> dict[str, object]:
    given, kernel, out = _labels(at)
    axes = _axes(at)
    if not axes:
        return {"lhs_contract": [given.index("f")], "rhs_contract": [kernel.index("i")]}
    return {
        "input_batch_dimension": given.index("b"), "input_feature_dimension": given.index("f"),
        "input_spatial_dimensions": [given.index(a) for a in axes],
        "kernel_input_feature_dimension": kernel.index("i"),
        "kernel_output_feature_dimension": kernel.index("o"),
        "kernel_spatial_dimensions": [kernel.index(a) for a in axes],
        "output_batch_dimension": out.index("b"), "output_feature_dimension": out.index("f"),
        "output_spatial_dimensions": [out.index(a) for a in axes],
        "feature_group_count": int(at.attribute("feature_group_count") or 1),
        "batch_group_count": int(at.attribute("batch_group_count") or 1),
    }  # fmt: skip


def _window(at: Instruction) -> dict[str, object]:
    sizes = _SIZE.search(at.attributes)
    return {"window_dimensions": [int(s) for s in sizes[1].split("x")] if sizes else []}


_ATTRIBUTES: Mapping[str, Callable[[Instruction], dict[str, object]]] = {
    "convolution": _convolution, "reduce-window": _window, "select-and-scatter": _window,
}  # fmt: skip
