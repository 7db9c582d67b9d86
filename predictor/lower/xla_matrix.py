"""Dimensions of the products and convolutions of a StableHLO program."""

from __future__ import annotations

import math

from predictor.cost.hlo import contracted, numbers
from predictor.graph.ir import OpNode
from predictor.lower.xla_backends import Backend

FEW_CHANNELS = 8
"""Rows of a tile: fewer channels than these do not fill one."""


def dot_dims(node: OpNode) -> dict[str, int]:
    """`batch`, `m`, `n`, `k` of a dot: free sides of left and right, and what is summed."""
    lhs, rhs = node.inputs[0].shape, node.inputs[1].shape
    left_batch, right_batch = numbers(node, "lhs_batch"), numbers(node, "rhs_batch")
    left = numbers(node, "lhs_contract", (len(lhs) - 1,))
    right = numbers(node, "rhs_contract", (0,))
    return {
        "batch": math.prod(lhs[i] for i in left_batch),
        "m": math.prod(s for i, s in enumerate(lhs) if i not in left_batch and i not in left),
        "n": math.prod(s for i, s in enumerate(rhs) if i not in right_batch and i not in right),
        "k": contracted(node),
    }


def conv_dims(node: OpNode) -> tuple[str, dict[str, int]]:
    """Op and dimensions of a convolution, those of the forward one that it belongs to.

    JAX writes the gradient of the weights as a convolution whose window is as large as the
    forward output, with the batch summed, and that of the input with a dilated input or a
    reversed window.
    """
    x, kernel, out = node.inputs[0].shape, node.inputs[1].shape, node.outputs[0].shape
    batch = x[numbers(node, "input_batch_dimension")[0]]
    features = x[numbers(node, "input_feature_dimension")[0]]
    into = [x[i] for i in numbers(node, "input_spatial_dimensions")]
    window = [kernel[i] for i in numbers(node, "kernel_spatial_dimensions")]
    given = [out[i] for i in numbers(node, "output_spatial_dimensions")]
    channels = out[numbers(node, "output_feature_dimension")[0]]
    groups = numbers(node, "feature_group_count", (1,))[0]
    shared = numbers(node, "batch_group_count", (1,))[0]
    if _of_weights(node, window, given, shared):
        return "conv_wgrad", _dims(
            features, (batch, into), (channels, window), given, max(shared, groups)
        )
    dilated = any(d > 1 for d in numbers(node, "lhs_dilation"))
    turned = any(numbers(node, "window_reversal")) or node.attrs.get("reversed_kernel")
    if dilated or turned:
        return "conv_dgrad", _dims(batch, (channels, given), (features, into), window, groups)
    return "conv", _dims(batch, (features, into), (channels, given), window, groups)


def _of_weights(node: OpNode, window: list[int], given: list[int], shared: int) -> bool:
    """Whether it sums over the batch: the window is the gradient, the result a window."""
    if shared > 1:
        return True
    if not window or math.prod(window) <= math.prod(given):
        return False
    return node.phase != "forward" or math.prod(window) > 4 * math.prod(given) > 0


def _dims(
    batch: int, inputs: tuple[int, list[int]], outputs: tuple[int, list[int]], window: list[int],
    groups: int,
) -> dict[str, int]:  # fmt: skip
    """Names of the vocabulary; three axes fold their first two into h."""
    (c_in, size), (c_out, places) = inputs, outputs
    return {
        "batch": batch, "c_in": c_in, "h_in": _h(size), "w_in": _w(size), "c_out": c_out,
        "h_out": _h(places), "w_out": _w(places), "kh": _h(window), "kw": _w(window),
        "groups": groups,
    }  # fmt: skip


def _h(sizes: list[int]) -> int:
    return math.prod(sizes[:-1]) if len(sizes) > 1 else math.prod(sizes)


def _w(sizes: list[int]) -> int:
    return sizes[-1] if len(sizes) > 1 else 1


def passes(node: OpNode, dtype: str, op_class: str, backend: Backend) -> tuple[str, int]:
    """Dtype that the matrix unit takes, and how many products stand for one.

    `precision` decides for fp32: a TPU multiplies in bf16, once at `DEFAULT`, 3 times at `HIGH`,
    6 at `HIGHEST` (XLA's bf16_3x and bf16_6x); a GPU takes TF32 but at `HIGHEST`. An algorithm
    that a product names (`BF16_BF16_F32_X3`, `F32_F32_F32`) goes before it.
    """
    named = node.attrs.get("algorithm")
    if isinstance(named, list) and len(named) == 2:
        return _named(str(named[0]), int(named[1]), dtype, op_class, backend)
    asked = node.attrs.get("precision")
    words = [str(word) for word in asked] if isinstance(asked, list) else []
    precision = next((word for word in ("HIGHEST", "HIGH") if word in words), "DEFAULT")
    if backend.name == "tpu" and dtype in ("fp32", "fp16"):
        return "bf16", _TPU_PASSES[precision]
    if dtype == "fp32" and precision != "HIGHEST" and _tf32(op_class, backend):
        return "tf32", 1
    return dtype, 1


_TPU_PASSES = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}
"""Products in bf16 that one product of a TPU is made of."""


def _named(
    wanted: str, count: int, dtype: str, op_class: str, backend: Backend
) -> tuple[str, int]:  # fmt: skip
    """What an algorithm asks for, as the backend has it."""
    if backend.name == "tpu" and wanted == "fp32":
        return "bf16", _TPU_PASSES["HIGHEST"]
    if wanted == "tf32" and not _tf32(op_class, backend):
        return dtype, 1
    return wanted, max(1, count)


def _tf32(op_class: str, backend: Backend) -> bool:
    return backend.tf32_convolutions if op_class == "conv" else backend.tf32_products


def padded_flops(dims: dict[str, int], flops: float, backend: Backend) -> float:
    """Work of a product whose sides are filled up to the systolic array.

    A convolution meets the array once for each place of its window, so its channels are filled up,
    not channels times places: of a v3 kernel with 192 channels (`tpugraphs`) that explains the
    time. Fewer than `FEW_CHANNELS` take the window into the channels (space to depth). Groups
    cost at most what the convolution without groups would (XLA widens its kernel with zeros).
    """
    if backend.matrix_side is None:
        return flops
    if "kh" not in dims:
        return flops * math.prod(
            backend.padded(dims[side]) / dims[side] for side in ("n", "k") if dims.get(side, 0) > 0
        )
    groups = max(1, dims["groups"])
    fill = _conv_fill(dims, groups, backend)
    return flops * min(fill, groups * _conv_fill(dims, 1, backend))


def _conv_fill(dims: dict[str, int], groups: int, backend: Backend) -> float:
    """Work done for one multiply-add that is needed, in a group of so many."""
    places = max(1, dims["kh"] * dims["kw"])
    into, out = max(1, dims["c_in"] // groups), max(1, dims["c_out"] // groups)
    wide = backend.padded(into) * places
    if into < FEW_CHANNELS:
        wide = backend.padded(into * places)
    return wide / (into * places) * backend.padded(out) / out
