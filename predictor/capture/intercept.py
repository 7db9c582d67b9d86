"""Calls that are taken whole or kept on symbolic devices, by the name the program calls them by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from predictor.capture import attention, fused, recurrent, sparse
from predictor.capture.recorder import Recorder

Interceptor = Callable[..., Any]
"""Takes the call, the autocast dtype in force, its positional and its keyword arguments."""

META = torch.device("meta")
HOST_TOO = frozenset({"to", "cuda"})
"""Interceptors that also take tensors of the host."""


def symbolic(device: Any) -> Any:
    """Accelerators become the meta device; the host stays the host."""
    if device is None:
        return None
    if isinstance(device, int):
        return META
    parsed = torch.device(device) if isinstance(device, str) else device
    return parsed if parsed.type == "cpu" else META


def interceptors(recorder: Recorder) -> dict[str, Interceptor]:
    """Calls that are not simply run, by name; each returns NotImplemented to decline."""

    def sdpa(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return attention.attention(recorder, *args, **kwargs)

    def rnn(mode: str, func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return recurrent.recurrent(recorder, mode, (*args, *kwargs.values()))

    def simple(target: Callable[..., Any], func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return target(recorder, *args, **kwargs)

    def matmul(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        operands = [*args, *kwargs.values()]
        if not any(sparse.is_sparse(o) for o in operands):
            return NotImplemented
        if len(operands) == 2:
            return sparse.product(recorder, operands[0], operands[1])
        if len(operands) == 3:  # addmm
            return operands[0] + sparse.product(recorder, operands[1], operands[2])
        return NotImplemented

    return {
        "scaled_dot_product_attention": sdpa,
        "lstm": partial(rnn, "lstm"),
        "gru": partial(rnn, "gru"),
        "rnn_tanh": partial(rnn, "rnn_tanh"),
        "rnn_relu": partial(rnn, "rnn_relu"),
        "lstm_cell": partial(simple, recurrent.lstm_cell),
        "gru_cell": partial(simple, recurrent.gru_cell),
        "dropout": partial(simple, fused.dropout),
        "softmax": partial(simple, partial(fused.softmax, log=False)),
        "log_softmax": partial(simple, partial(fused.softmax, log=True)),
        "rms_norm": partial(simple, fused.rms_norm),
        "cross_entropy_loss": _cross_entropy,
        "matmul": matmul,
        "__matmul__": matmul,
        "mm": matmul,
        "mv": matmul,
        "addmm": matmul,
        "_sparse_mm": matmul,
        "embedding": partial(_sparse_gradient, recorder, 4),
        "embedding_bag": partial(_sparse_gradient, recorder, 5),
        "_nested_tensor_from_mask_left_aligned": partial(_padded, recorder),
        "cuda": _to_device,
        "cpu": _stays,
        "pin_memory": _stays,
        "to": _to,
    }


def _cross_entropy(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    """Under autocast log_softmax keeps the logits' dtype and nll_loss runs in fp32.

    The composite passes the logits' dtype on, so autocast leaves it (ATen/native/LossNLL.cpp).
    """
    bound = dict(
        zip(
            ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing"),
            args,
            strict=False,
        )
    )
    bound |= kwargs
    logits, target = bound["input"], bound["target"]
    smoothed = bound.get("label_smoothing", 0.0) > 0
    if to is None or logits.dtype is torch.float32 or smoothed or logits.shape == target.shape:
        return NotImplemented
    weight = bound.get("weight")
    log_probs = torch.log_softmax(logits, 0 if logits.dim() == 1 else 1).float()
    return torch._C._nn.nll_loss_nd(
        log_probs,
        target,
        None if weight is None else weight.float(),
        bound.get("reduction", 1),
        bound.get("ignore_index", -100),
    )


def _sparse_gradient(
    recorder: Recorder, flag: int, func: Any, to: Any, args: Any, kwargs: Any
) -> Any:
    """Embeddings with `sparse=True` (argument number `flag`) get a sparse gradient."""
    if kwargs or len(args) <= flag or args[flag] is not True:
        return NotImplemented
    weight = args[0]
    if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_meta):
        return NotImplemented
    rest = list(args[2:])
    rest[flag - 2] = False  # the dense kernel forward; the gradient is ours
    return sparse.sparse_embedding(recorder, func, weight, args[1], tuple(rest))


def _padded(recorder: Recorder, func: Any, to: Any, args: Any, kwargs: Any) -> bool:
    """Encoders stay on padded batches: answering no keeps them off nested tensors."""
    recorder.notes.append(
        "nn.TransformerEncoder is captured on the padded batch, without its nested-tensor fast path"
    )
    return False


def _stays(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if args[0].is_meta else NotImplemented


def _to_device(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    return args[0].to("meta")


def _to(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    """`Tensor.to` with every device made symbolic."""
    x, *rest = args
    moved = [symbolic(a) if isinstance(a, (str, torch.device)) else a for a in rest]
    if x.is_meta:  # a copy back to the host stays symbolic
        moved = [META if isinstance(a, torch.device) else a for a in moved]
        kwargs = {**kwargs, "device": META} if kwargs.get("device") else kwargs
        moved = [a.dtype if isinstance(a, torch.Tensor) and not a.is_meta else a for a in moved]
    return func(x, *moved, **kwargs)
