"""Kernels of aten calls that stream memory: elementwise, reductions, softmax, norms, pooling."""

from __future__ import annotations

from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.draft import Draft, as_int, as_ints, product


def elementwise_dims(numel: int, inputs: int, outputs: int) -> dict[str, int]:
    """Dimensions of an elementwise or copy kernel."""
    return {"numel": numel, "inputs": inputs, "outputs": outputs}


def tensors_read(specs: tuple[TensorSpec, ...], numel: int) -> int:
    """Operands that are read as tensors: one-element operands of larger kernels are scalars."""
    return sum(1 for s in specs if numel == 1 or s.numel > 1)


def pointwise(node: OpNode, op: str) -> list[Draft]:
    """One kernel over the (largest) output; in-place calls read what they overwrite."""
    writes = node.outputs or node.inputs[:1]
    numel = max(s.numel for s in writes)
    dims = elementwise_dims(numel, tensors_read(node.inputs, numel), len(writes))
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=writes)]


def loss(node: OpNode, op: str) -> list[Draft]:
    """A pointwise loss, and its reduction to one number where that was asked for."""
    reads, out = node.inputs, node.outputs[0]
    numel = max(s.numel for s in reads)
    dims = elementwise_dims(numel, tensors_read(reads, numel), 1)
    if out.numel == numel:
        return [Draft(op=op, dims=dims, reads=reads, writes=node.outputs)]
    whole = max(reads, key=lambda s: s.numel)
    traffic = float(whole.touched_bytes)
    return [
        Draft(op=op, dims=dims, reads=reads, writes=node.outputs, write_bytes=traffic),
        Draft(
            op="reduction",
            dims={"rows": 1, "cols": numel},
            reads=node.outputs,
            writes=node.outputs,
            dtype=whole.dtype,
            read_bytes=traffic,
        ),
    ]


def fill(node: OpNode, op: str) -> list[Draft]:
    """Writes without reading: constants, ranges, random numbers."""
    writes = node.outputs or node.inputs[:1]
    dims = elementwise_dims(sum(s.numel for s in writes), 0, 1)
    return [Draft(op=op, dims=dims, reads=(), writes=writes)]


def reduction(node: OpNode, op: str) -> list[Draft]:
    """Every output reduces an equal share of the input; no attribute is needed."""
    rows = max(1, max(s.numel for s in node.outputs))
    cols = max(1, node.inputs[0].numel // rows)
    dims = {"rows": rows, "cols": cols}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]


def trilinear(node: OpNode, op: str) -> list[Draft]:
    """`bilinear` below autograd: every output sums a product of three over one weight matrix."""
    rows = max(1, node.outputs[0].numel)
    features = max(1, node.outputs[0].shape[-1] if node.outputs[0].shape else 1)
    cols = max(1, max(s.numel for s in node.inputs) // features)
    work = 3.0 * rows * cols
    dims = {"rows": rows, "cols": cols}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs, flops=work)]


def _axis(node: OpNode, spec: TensorSpec) -> int:
    """Length of the axis that `dim` names, the last one by default."""
    axes = as_ints(node.attrs.get("dim"))
    if not spec.shape:
        return 1
    return max(1, spec.shape[axes[0] if axes else -1])


def along_axis(node: OpNode, op: str) -> list[Draft]:
    """Kernels that work on whole rows along one axis: softmax, cumulative sums, sorting."""
    whole = max(node.inputs, key=lambda s: s.numel)
    cols = _axis(node, whole)
    dims = {"rows": max(1, whole.numel // cols), "cols": cols}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]


def _norm_draft(node: OpNode, op: str, rows: int, whole: TensorSpec, launches: int) -> list[Draft]:
    dims = {"rows": max(1, rows), "cols": max(1, whole.numel // max(1, rows))}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs, launches=launches)]


def layer_norm(node: OpNode, op: str) -> list[Draft]:
    """Rows are what the saved mean counts, or what `normalized_shape` (the weight's) leaves."""
    x = node.inputs[0]
    shape = as_ints(node.attrs.get("normalized_shape"))
    cols = product(shape) if shape else node.inputs[-1].numel if len(node.inputs) > 1 else 0
    if not shape and len(node.outputs) > 1:
        cols = x.numel // max(1, node.outputs[1].numel)
    return _norm_draft(node, op, x.numel // max(1, cols or x.shape[-1]), x, 1)


def layer_norm_backward(node: OpNode, op: str) -> list[Draft]:
    """One kernel for the input's gradient, one for those of weight and bias.

    Inputs: gradient, x, the saved statistics (smaller than x), then parameters.
    """
    x = node.inputs[1]
    shape = as_ints(node.attrs.get("normalized_shape"))
    rows = x.numel // max(1, product(shape)) if shape else node.inputs[2].numel
    return _norm_draft(node, op, rows, x, min(2, len(node.outputs)))


def batch_norm(node: OpNode, op: str) -> list[Draft]:
    """Rows are channels: axis 1 of x."""
    x = node.inputs[0]
    return _norm_draft(node, op, x.shape[1] if len(x.shape) > 1 else 1, x, 1)


def batch_norm_backward(node: OpNode, op: str) -> list[Draft]:
    """One library call; the gradient and x share their shape, whichever comes first."""
    return batch_norm(node, op)


def group_norm(node: OpNode, op: str) -> list[Draft]:
    """Rows are (sample, group) pairs: what the saved mean counts.

    Launches: moments, fused scale and shift, elementwise (ATen/native/cuda/group_norm_kernel.cu).
    """
    x = node.inputs[0]
    groups = as_int(node.attrs.get("group", node.attrs.get("num_groups")), 0)
    rows = node.outputs[1].numel if len(node.outputs) > 1 else x.shape[0] * max(1, groups)
    return _norm_draft(node, op, rows, x, 3)


def group_norm_backward(node: OpNode, op: str) -> list[Draft]:
    """Inputs: gradient, x, mean, rstd, weight."""
    x = node.inputs[1]
    groups = as_int(node.attrs.get("group"), 0)
    rows = x.shape[0] * groups if groups else node.inputs[2].numel
    return _norm_draft(node, op, rows, x, 4)


def _window(node: OpNode, axes: int) -> int:
    sizes = as_ints(node.attrs.get("kernel_size"))
    return sizes[0] ** axes if len(sizes) == 1 else product(sizes) if sizes else 0


def _spatial_axes(node: OpNode) -> int:
    return next((int(c) for c in node.op if c in "123"), 2)


def pool(node: OpNode, op: str) -> list[Draft]:
    """Rows are outputs, columns the window (adaptive pooling: the inputs an output)."""
    rows = node.outputs[0].numel
    cols = _window(node, _spatial_axes(node)) or max(1, node.inputs[0].numel // rows)
    dims = {"rows": rows, "cols": cols}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]


def pool_backward(node: OpNode, op: str) -> list[Draft]:
    """Reads the gradient (and the saved indices), writes the input's gradient."""
    rows = max(1, node.inputs[0].numel)
    cols = _window(node, _spatial_axes(node)) or max(1, node.outputs[0].numel // rows)
    reads = [s for s in node.inputs if s.dtype == "int64"] or node.inputs[1:]
    indexed = "max_pool" in node.op
    return [
        Draft(
            op=op,
            dims={"rows": rows, "cols": cols},
            reads=(node.inputs[0], *(reads if indexed else ())),
            writes=node.outputs,
        )
    ]


def resample(node: OpNode, op: str) -> list[Draft]:
    """Interpolation: every output reads 1 (nearest), 2 an axis (linear) or 4 an axis (cubic)."""
    axes = _spatial_axes(node)
    taps = 1 if "nearest" in node.op else 4 if "cubic" in node.op else 2
    large = max((*node.inputs[:1], *node.outputs[:1]), key=lambda s: s.numel)
    dims = {"rows": large.numel, "cols": taps**axes}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]


def nll_loss(node: OpNode, op: str) -> list[Draft]:
    """Picks one log-probability a target and averages: touches targets, not the whole input."""
    target = node.inputs[1]
    read = target.numel * (node.inputs[0].touched_bytes / max(1, node.inputs[0].numel))
    return [
        Draft(
            op=op,
            dims={"rows": 1, "cols": max(1, target.numel)},
            reads=node.inputs,
            writes=node.outputs,
            read_bytes=read + target.touched_bytes,
        )
    ]


def spectral(node: OpNode, op: str) -> list[Draft]:
    """Fourier transforms over the axes of `dim`: rows of that many points."""
    x = max((*node.inputs[:1], *node.outputs[:1]), key=lambda s: s.numel)
    axes = as_ints(node.attrs.get("dim")) or (-1,)
    cols = max(1, product([x.shape[a] for a in axes]))
    dims = {"rows": max(1, x.numel // cols), "cols": cols}
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs, launches=len(axes))]
