"""Kernels of the calls that capture keeps whole: attention, recurrent, sparse, optimizer."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.cost.matrix import rnn_weights
from predictor.cost.optimizers import OPTIMIZER_CALLS, even_sizes, step_cost, step_launches
from predictor.cost.rules import flops, matmul_flops
from predictor.errors import CostRuleError
from predictor.graph.ir import DTYPE_BYTES, OpNode
from predictor.graph.ops import OPS
from predictor.lower.draft import Draft, Reader, arithmetic_dtype, as_int, size_bytes
from predictor.lower.fused import fused


def _dims(node: OpNode, op: str) -> dict[str, int]:
    """The op's dimensions from attributes of the same names.

    Raises:
        CostRuleError: an attribute is missing.
    """
    missing = [name for name in OPS[op].dims if name not in node.attrs]
    if missing:
        raise CostRuleError(
            f"{node.op} in module {node.module!r} lacks attribute {missing[0]!r}; "
            f"it needs {', '.join(OPS[op].dims)}"
        )
    return {name: as_int(node.attrs[name], 0) for name in OPS[op].dims}


def sdpa(node: OpNode, op: str) -> list[Draft]:
    """One attention kernel a call; values narrower than keys scale both products' sum."""
    dims = _dims(node, op)
    head = dims["head_dim"]
    value = as_int(node.attrs.get("v_head_dim"), head)
    share = (head + value) / (2 * head)
    return [
        Draft(
            op=op,
            dims=dims,
            reads=node.inputs,
            writes=node.outputs,
            flops=share * flops(op, dims),
            matmul_flops=share * matmul_flops(op, dims),
            launches=2 if op == "attention_backward" else 1,
            name=op,
        )
    ]


def rnn(node: OpNode, op: str) -> list[Draft]:
    """One library call of `steps x layers x directions` dependent launches.

    A projected LSTM feeds `proj_size` states back and on, and projects every step; sequences
    packed by length have fewer `rows` than steps times batch.
    """
    dims = _dims(node, op)
    proj = as_int(node.attrs.get("proj_size"), 0)
    rows = as_int(node.attrs.get("rows"), dims["steps"] * dims["batch"])
    weights = rnn_weights(dims)
    if proj:
        hidden, both, later = dims["hidden_size"], dims["directions"], dims["layers"] - 1
        into = dims["input_size"] + proj + later * (both + 1) * proj
        weights = both * (dims["gates"] * hidden * into + dims["layers"] * proj * hidden)
    work = 2 * rows * weights
    if op == "rnn_backward":
        work *= 2
    return [
        Draft(
            op=op,
            dims=dims,
            reads=node.inputs,
            writes=node.outputs,
            flops=float(work),
            matmul_flops=float(work),
            launches=max(1, dims["steps"] * dims["layers"] * dims["directions"]),
            name=op,
        )
    ]


def sparse_mm(node: OpNode, op: str) -> list[Draft]:
    """A sparse matrix times a dense one, by stored values."""
    return [Draft(op=op, dims=_dims(node, op), reads=node.inputs, writes=node.outputs, name=op)]


def optimizer(node: OpNode, op: str) -> list[Draft]:
    """All passes of one step over one group of parameters, as a single row.

    Inputs are the parameters; traffic is what all passes stream, in the parameters' dtypes.
    """
    dims = _dims(node, op)
    if dims["numel"] == 0:
        return []
    cost = step_cost(node.op, node.attrs)
    sizes = [s.numel for s in node.inputs]
    dtype = arithmetic_dtype(node.inputs, node.outputs)
    streamed = sum(size_bytes(s) for s in node.inputs)
    if sum(sizes) != dims["numel"]:
        sizes = list(even_sizes(dims["numel"], dims["tensors"]))
        streamed = dims["numel"] * DTYPE_BYTES[dtype]
    return [
        Draft(
            op=op,
            dims=dims,
            reads=node.inputs,
            writes=node.outputs,
            dtype=dtype,
            read_bytes=cost.reads * streamed,
            write_bytes=cost.writes * streamed,
            flops=float(cost.flops * dims["numel"]),
            launches=max(1, step_launches(cost, sizes)),
            name=op,
        )
    ]


COMPOSITES: Mapping[str, tuple[str, Reader]] = {
    "predictor.sdpa": ("attention", sdpa),
    "predictor.sdpa_backward": ("attention_backward", sdpa),
    "predictor.rnn": ("rnn", rnn),
    "predictor.rnn_backward": ("rnn_backward", rnn),
    "predictor.sparse_mm": ("sparse_mm", sparse_mm),
    "predictor.fused": ("pointwise", fused),
    **{call: (op, optimizer) for call, op in OPTIMIZER_CALLS.items()},
}
"""Op and reader of every composite call."""
