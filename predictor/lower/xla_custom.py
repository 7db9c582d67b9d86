"""Custom calls whose work is known from the shapes of their operands: attention, RNGs, factorings.

Everything else is opaque: what it does is not in the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from predictor.capture.stablehlo.mosaic import MOSAIC
from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.draft import FLOATING

Found = tuple[str, dict[str, int]]


def _attention(node: OpNode, op: str) -> Found | None:
    """Query, key and value lead the operands of four axes.

    cuDNN's and Triton's kernels take `[batch, length, heads, size]`, those for TPUs
    `[batch, heads, length, size]`, or three axes where a batch of one was dropped.
    """
    tpu = node.attrs.get("target") == MOSAIC
    ranks = (4, 3) if tpu else (4,)
    large = next((g for n in ranks if len(g := _of_rank(node, n)) >= 3), None)
    if large is None:
        return None
    q, k, v = ((1,) * (4 - len(s.shape)) + tuple(s.shape) for s in large[:3])
    if k[3] != q[3] or v[3] != q[3]:
        return None
    length, heads = (2, 1) if tpu or _heads_first(q, k) else (1, 2)
    dims = {
        "batch": q[0], "heads": q[heads], "kv_heads": k[heads], "q_len": q[length],
        "kv_len": k[length], "head_dim": q[3], "causal": int(_causal(node)),
    }  # fmt: skip
    window = _window(node, dims["q_len"], dims["kv_len"]) if dims["causal"] else None
    return op, dims if window is None else {**dims, "window": window}


def _of_rank(node: OpNode, rank: int) -> list[TensorSpec]:
    return [s for s in node.inputs if len(s.shape) == rank and s.dtype in FLOATING]


def _heads_first(q: Sequence[int], k: Sequence[int]) -> bool:
    return q[1] < q[2] or (q[1] == k[1] and q[2] != k[2])


def _causal(node: OpNode) -> bool:
    """CuDNN's calls name their mask; a kernel for TPUs that compares positions has one."""
    config = str(node.attrs.get("config", ""))
    return bool(node.attrs.get("masked")) or "CAUSAL" in config.upper()


def _window(node: OpNode, q_len: int, kv_len: int) -> int | None:
    """Keys that a query sees under a local mask of splash attention.

    Its first operand tells the blocks to visit, `[heads, blocks of queries, blocks of keys]` (the
    latter two the other way round for the gradient of the keys). Blocks of queries and keys may
    differ in length by less than four times, so that fewer than a quarter means a local mask.
    """
    blocks = node.inputs[0]
    if len(blocks.shape) != 3 or blocks.dtype not in ("int8", "int16", "int32"):
        return None
    most, least = max(blocks.shape[1:]), min(blocks.shape[1:])
    if least == most or q_len % most:
        return None
    window = least * (q_len // most)
    return window if 4 * window < kv_len else None


def _random(node: OpNode) -> Found:
    numel = sum(s.numel for s in node.outputs)
    return "random", {"numel": max(1, numel), "inputs": 0, "outputs": 1}


def _top_k(node: OpNode) -> Found:
    whole = node.inputs[0]
    cols = whole.shape[-1] if whole.shape else 1
    return "sort", {"rows": max(1, whole.numel // max(1, cols)), "cols": max(1, cols)}


def _product(node: OpNode) -> Found | None:
    """A library product: the first two operands are its factors, two axes each."""
    if len(node.inputs) < 2 or not all(len(s.shape) >= 2 for s in node.inputs[:2]):
        return None
    a, out = node.inputs[0], node.outputs[0]
    batch = 1
    for size in out.shape[:-2]:
        batch *= size
    m, n = out.shape[-2:] if len(out.shape) >= 2 else (1, out.numel)
    k = max(1, a.numel // max(1, batch * m))
    return "matmul", {"batch": batch, "m": m, "n": n, "k": k}


def _rows(op: str) -> Callable[[OpNode], Found]:
    def found(node: OpNode) -> Found:
        whole: TensorSpec = max(node.inputs, key=lambda s: s.numel)
        cols = whole.shape[-1] if whole.shape else 1
        return op, {"rows": max(1, whole.numel // max(1, cols)), "cols": max(1, cols)}

    return found


_PALLAS = r"(flash_?attention|splash_?m[hq]a|splash_?attention)"
"""Names of JAX's attention kernels for TPUs."""
_CALLS: Sequence[tuple[str, Callable[[OpNode], Found | None]]] = (
    (r"mha_preprocess_backward", _rows("reduction")),
    (r"fmha.*backward|mha_backward", lambda node: _attention(node, "attention_backward")),
    (rf"{_PALLAS}.*(bwd|backward|dkv)",
     lambda node: _attention(node, "attention_backward")),
    (r"fmha|mha_forward|(flash|splash|fused)_?attention|splash_?m[hq]a",
     lambda node: _attention(node, "attention")),
    (r"threefry|philox|rng", _random),
    (r"top_?k", _top_k),
    (r"cublas.*matmul|cublas.*gemm", _product),
    (r"pivots_to_permutation", _rows("scan")),
    (r"softmax", _rows("softmax")),
    (r"rms_?norm", _rows("rms_norm")),
    (r"layer_?norm", _rows("layer_norm")),
)  # fmt: skip
"""(pattern of a call's target or kernel name, what it is): the first that matches.

The gradient of a Pallas attention is two kernels, `dkv` (four products) and `dq` (three): the seven
of a backward pass (five) and a forward one (two), which they are taken for.
"""


_QUERY_GRADIENT = re.compile(rf"{_PALLAS}.*dq")


def is_query_gradient(node: OpNode) -> bool:
    """Whether a call is the second kernel of an attention's gradient.

    The first (`dkv`) counts the FLOPs that a backward pass is said to have.
    """
    return bool(_QUERY_GRADIENT.search(_words(node)))


def custom_kernel(node: OpNode) -> Found | None:
    """Op and dimensions of a custom call, None where they are not known."""
    words = _words(node)
    for pattern, found in _CALLS:
        if re.search(pattern, words):
            kernel = found(node)
            if kernel is not None:
                return kernel
    return None


def _words(node: OpNode) -> str:
    """Target, name and place of a call; what else its configuration holds may be anything."""
    named = (node.attrs.get("target", ""), node.attrs.get("kernel_name", ""), node.module)
    return " ".join(str(word) for word in named).lower()
