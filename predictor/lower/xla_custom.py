"""Custom calls whose work is known from the shapes of their operands: attention, RNGs, factorings.

Everything else is opaque: what it does is not in the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from predictor.graph.ir import OpNode, TensorSpec

Found = tuple[str, dict[str, int]]


def _attention(node: OpNode, op: str) -> Found | None:
    """Query, key and value lead the operands: `[batch, length, heads, size]` as JAX has them."""
    large = [s for s in node.inputs if len(s.shape) == 4]
    if len(large) < 3:
        return None
    q, k, v = (s.shape for s in large[:3])
    config = str(node.attrs.get("config", ""))
    heads_first = _heads_first(q, k, config)
    length, heads = (2, 1) if heads_first else (1, 2)
    causal = "CAUSAL" in config.upper() or "causal=True" in config
    if k[3] != q[3] or v[3] != q[3]:
        return None
    return op, {
        "batch": q[0], "heads": q[heads], "kv_heads": k[heads], "q_len": q[length],
        "kv_len": k[length], "head_dim": q[3], "causal": int(causal),
    }  # fmt: skip


def _heads_first(q: Sequence[int], k: Sequence[int], config: str) -> bool:
    """Pallas kernels take `[batch, heads, length, size]`; cuDNN's calls say their layout."""
    del config
    return q[1] < q[2] or (q[1] == k[1] and q[2] != k[2])


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


_CALLS: Sequence[tuple[str, Callable[[OpNode], Found | None]]] = (
    (r"fmha.*backward", lambda node: _attention(node, "attention_backward")),
    (r"fmha", lambda node: _attention(node, "attention")),
    (r"(flash|splash)_?attention.*(bwd|backward|dkv|dq)",
     lambda node: _attention(node, "attention_backward")),
    (r"(flash|splash)_?attention|mha_forward|fused_attention",
     lambda node: _attention(node, "attention")),
    (r"threefry|philox|rng", _random),
    (r"top_?k", _top_k),
    (r"cublas.*matmul|cublas.*gemm", _product),
    (r"softmax", _rows("softmax")),
    (r"rms_?norm", _rows("rms_norm")),
    (r"layer_?norm", _rows("layer_norm")),
)  # fmt: skip
"""(pattern of a call's target or kernel name, what it is): the first that matches."""


def custom_kernel(node: OpNode) -> Found | None:
    """Op and dimensions of a custom call, None where they are not known."""
    words = " ".join(
        str(node.attrs.get(name, "")) for name in ("target", "kernel_name", "config")
    ).lower()  # fmt: skip
    words = f"{words} {node.module.lower()}"
    for pattern, found in _CALLS:
        if re.search(pattern, words):
            kernel = found(node)
            if kernel is not None:
                return kernel
    return None
