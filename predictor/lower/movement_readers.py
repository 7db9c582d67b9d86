"""Kernels of aten calls that move data: gathers, scatters, copies, casts, embeddings, foreach."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.cost.optimizers import pass_launches
from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.draft import Draft, product, size_bytes, touched, width
from predictor.lower.streaming_readers import elementwise_dims

CAT_TENSORS = 128
"""`CAT_ARRAY_BATCH_SIZE` of ATen/native/cuda/Shape.cu: tensors that one kernel concatenates."""
EMBEDDING_SORT_ABOVE = 3072
"""Indices above which the embedding gradient sorts first (ATen/native/cuda/Embedding.cu)."""
INDEX_DTYPES = frozenset({"int64", "int32", "bool", "uint8", "int16", "int8"})


def _is_inplace(node: OpNode) -> bool:
    packet = node.op.split(".")[1] if "." in node.op else node.op
    return packet.endswith("_")


def _copy_op(source: TensorSpec, target: TensorSpec) -> str:
    if source.dtype != target.dtype:
        return "cast"
    return "copy" if source.layout == target.layout else "transpose"


def copy_draft(source: TensorSpec, target: TensorSpec) -> Draft:
    """One kernel that writes `target` from `source`: a cast, a permuting copy or a plain one."""
    return Draft(
        op=_copy_op(source, target),
        dims=elementwise_dims(target.numel, 1, 1),
        reads=(source,),
        writes=(target,),
    )


def copy(node: OpNode, op: str) -> list[Draft]:
    """`clone`, `_to_copy`, `contiguous`: out of place, from the first operand."""
    return [copy_draft(node.inputs[0], node.outputs[0])]


def copy_into(node: OpNode, op: str) -> list[Draft]:
    """`copy_`: from the second operand into the first, which is not read."""
    source = node.inputs[1] if len(node.inputs) > 1 else node.inputs[0]
    return [copy_draft(source, node.outputs[0] if node.outputs else node.inputs[0])]


def rearrange(node: OpNode, op: str) -> list[Draft]:
    """`cat`, `stack`, `roll`, `flip`, `repeat`, …: every output element is copied once."""
    out = node.outputs[0]
    count = -(-len(node.inputs) // CAT_TENSORS)
    return [
        Draft(
            op=op,
            dims=elementwise_dims(out.numel, 1, 1),
            reads=node.inputs,
            writes=node.outputs,
            launches=max(1, count),
        )
    ]


def _zeros(target: TensorSpec) -> Draft:
    return Draft(op="fill", dims=elementwise_dims(target.numel, 0, 1), reads=(), writes=(target,))


def padded(node: OpNode, op: str) -> list[Draft]:
    """`constant_pad_nd`, `slice_backward`, …: fill the output, then copy the operand into it."""
    source, out = node.inputs[0], node.outputs[0]
    moved = min(size_bytes(source), size_bytes(out))
    return [
        _zeros(out),
        Draft(
            op=op,
            dims=elementwise_dims(min(source.numel, out.numel), 1, 1),
            reads=(source,),
            writes=(out,),
            write_bytes=moved,
        ),
    ]


def masked_fill(node: OpNode, op: str) -> list[Draft]:
    """In place one kernel; out of place PyTorch clones first."""
    x, out = node.inputs[0], node.outputs[0]
    drafts = [] if _is_inplace(node) else [copy_draft(x, out)]
    dims = elementwise_dims(out.numel, 2, 1)
    drafts.append(Draft(op=op, dims=dims, reads=(out, *node.inputs[1:]), writes=(out,)))
    return drafts


def _gathered(table: TensorSpec, numel: int) -> float:
    """Bytes of numel elements of a table, at most all of it."""
    return min(numel * width(table), float(max(table.touched_bytes, table.storage_bytes)))


def _rows_and_cols(numel: int, rows: int) -> dict[str, int]:
    rows = max(1, rows)
    return {"rows": rows, "cols": max(1, numel // rows)}


def embedding(node: OpNode, op: str) -> list[Draft]:
    """Rows of a table by index: reads the rows asked for and the indices, not the table."""
    table, index = node.inputs[0], node.inputs[1]
    out = node.outputs[0]
    return [
        Draft(
            op=op,
            dims=_rows_and_cols(out.numel, index.numel),
            reads=(table, index),
            writes=(out,),
            read_bytes=_gathered(table, out.numel) + index.touched_bytes,
        )
    ]


def embedding_bag(node: OpNode, op: str) -> list[Draft]:
    """Gathers as many rows as there are indices, writes one a bag."""
    table, index = node.inputs[0], node.inputs[1]
    dims = {"rows": max(1, index.numel), "cols": table.shape[-1]}
    read = _gathered(table, dims["rows"] * dims["cols"]) + touched(node.inputs[1:])
    bags = node.outputs[0]
    return [
        Draft(
            op=op,
            dims=dims,
            reads=node.inputs,
            writes=node.outputs,
            read_bytes=read,
            write_bytes=float(bags.touched_bytes),
            flops=float(dims["rows"] * dims["cols"]),
        )
    ]


def embedding_backward(node: OpNode, op: str) -> list[Draft]:
    """Dense gradient of a table: zeros of the table's size, then the rows are scattered in."""
    grad, index = node.inputs[0], node.inputs[1]
    out = node.outputs[0]
    drafts = [_zeros(out)]
    if index.numel > EMBEDDING_SORT_ABOVE:
        drafts.append(
            Draft(op="sort", dims={"rows": 1, "cols": index.numel}, reads=(index,), writes=(),
                  write_bytes=2.0 * index.touched_bytes)
        )  # fmt: skip
    drafts.append(
        Draft(
            op=op,
            dims={"rows": index.numel, "cols": grad.shape[-1]},
            reads=(grad, index),
            writes=(out,),
            write_bytes=min(index.numel * grad.shape[-1] * width(out), float(out.touched_bytes)),
        )
    )
    return drafts


def _split(specs: Sequence[TensorSpec]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """(floating or first operand, index operands)."""
    index = [s for s in specs[1:] if s.dtype in INDEX_DTYPES]
    values = [s for i, s in enumerate(specs) if i == 0 or s.dtype not in INDEX_DTYPES]
    return values, index


def gather(node: OpNode, op: str) -> list[Draft]:
    """`index`, `index_select`, `gather`: reads the elements asked for and the indices."""
    values, index = _split(node.inputs)
    out = node.outputs[0]
    table = values[0]
    rows = max((s.numel for s in index), default=out.numel)
    return [
        Draft(
            op=op,
            dims=_rows_and_cols(out.numel, min(rows, out.numel)),
            reads=node.inputs,
            writes=(out,),
            read_bytes=_gathered(table, out.numel) + touched(index) if index
            else _gathered(table, out.numel),
            dtype=table.dtype,
        )
    ]  # fmt: skip


def scatter(node: OpNode, op: str) -> list[Draft]:
    """`scatter`, `index_add`, `index_put`, …: one kernel that writes the elements asked for.

    Out of place PyTorch copies the target first; accumulating `index_put` sorts its indices.
    """
    values, index = _split(node.inputs)
    target, out = node.inputs[0], node.outputs[0] if node.outputs else node.inputs[0]
    rows = max((s.numel for s in index), default=1)
    moved = max((s.numel for s in values[1:]), default=1)
    if moved == 1:
        row = product(target.shape[len(index) :]) if "index_put" in node.op else 1
        moved = rows * row
    drafts = [] if _is_inplace(node) else [copy_draft(target, out)]
    if node.attrs.get("accumulate"):
        drafts.append(
            Draft(op="sort", dims={"rows": 1, "cols": max(1, rows)}, reads=tuple(index), writes=(),
                  write_bytes=2.0 * touched(index) if index else 0.0)
        )  # fmt: skip
    sources = (*values[1:], *index)
    drafts.append(
        Draft(
            op=op,
            dims=_rows_and_cols(moved, rows),
            reads=(out, *sources),
            writes=(out,),
            read_bytes=touched(sources) if sources else 0.0,
            write_bytes=min(moved * width(out), float(out.touched_bytes)),
            dtype=target.dtype,
        )
    )
    return drafts


def nll_loss_backward(node: OpNode, op: str) -> list[Draft]:
    """Zeros of the logits' size, then one value a target."""
    out = node.outputs[0]
    target = next((s for s in node.inputs if s.dtype in INDEX_DTYPES), node.inputs[-1])
    return [
        _zeros(out),
        Draft(
            op=op,
            dims={"rows": max(1, target.numel), "cols": 1},
            reads=(node.inputs[0], target),
            writes=(out,),
            write_bytes=target.numel * width(out),
        ),
    ]


def _lists(node: OpNode) -> int:
    """Tensor lists that a foreach call was given, by its name and overload."""
    overload = node.attrs.get("overload", node.op.split(".")[-1])
    if "addcmul" in node.op or "addcdiv" in node.op:
        return 3
    if "lerp" in node.op:
        return 3 if overload == "List" else 2
    return 2 if overload == "List" or "_foreach_copy" in node.op else 1


def foreach(node: OpNode, op: str) -> list[Draft]:
    """A multi-tensor call: one kernel row, launched in chunks."""
    lists = _lists(node)
    first = node.inputs[: max(1, len(node.inputs) // lists)]
    if node.attrs.get("overload") == "Tensor" and len(first) > 1:
        first = first[:-1]  # the scalar comes as a tensor behind the list
    sizes = [s.numel for s in first]
    depth = lists + (0 if _is_inplace(node) else 1)
    launches = max(1, pass_launches(sizes, depth=depth))
    dims = elementwise_dims(sum(sizes), lists, 1)
    if op == "reduction":
        dims = {"rows": len(first), "cols": max(1, sum(sizes) // len(first))}
    elif op == "fill":
        dims["inputs"] = 0
    reads = () if op == "fill" else node.inputs
    return [Draft(op=op, dims=dims, reads=reads, writes=node.outputs or first, launches=launches)]


def collective(node: OpNode, op: str) -> list[Draft]:
    """One collective call; `group_size` tells the ranks."""
    size = node.attrs.get("group_size", 1)
    ranks = int(size) if isinstance(size, (int, float)) else 1
    whole = max((*node.inputs, *node.outputs), key=lambda s: s.numel)
    dims = {"numel": whole.numel, "ranks": ranks}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]
