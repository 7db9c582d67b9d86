"""Recurrent layers as one op a call and phase: `predictor.rnn[_backward]`, and fused cells.

On the device a whole LSTM, GRU or RNN is one library call whose steps depend on each other; on
meta tensors it unrolls into thousands of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from predictor.capture.composite import apply
from predictor.capture.recorder import Recorder

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

# T steps, B batch, I input size, H hidden size, P projection, N layers times directions


def recurrent(recorder: Recorder, mode: str, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Record one call of `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu`; its meta outputs.

    Args:
        recorder: where the node goes.
        mode: which of the four.
        args: positional arguments of either overload: `(input, hx, params, has_biases, layers,
            dropout, train, bidirectional, batch_first)`, or packed: `(data, batch_sizes, hx,
            params, has_biases, layers, dropout, train, bidirectional)`.
    """
    packed = isinstance(args[3], (list, tuple))
    if packed:
        data, batch_sizes, hx, weights, biases, layers, dropout, train, two_way = args[:9]
        steps, batch, rows = len(batch_sizes), int(batch_sizes[0]), data.shape[0]
        batch_first = False
    else:
        data, hx, weights, biases, layers, dropout, train, two_way, batch_first = args[:9]
        batch, steps = (data.shape[0], data.shape[1]) if batch_first else data.shape[1::-1]
        rows = steps * batch
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    directions = 2 if two_way else 1
    hidden = weights[1].shape[0] // GATES[mode]
    per_cell = len(weights) // (layers * directions)
    projected = weights[per_cell - 1].shape[0] if per_cell == (5 if biases else 3) else 0
    attrs: dict[str, object] = {
        "mode": mode,
        "gates": GATES[mode],
        "steps": int(steps),
        "batch": int(batch),
        "rows": int(rows),
        "input_size": data.shape[-1],
        "hidden_size": hidden,
        "layers": int(layers),
        "directions": directions,
        "proj_size": projected,
        "dropout": float(dropout) if train else 0.0,
    }
    operands = [data, *states, *weights]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
    width = directions * (projected or hidden)
    shape = (rows, width) if packed else (steps, batch, width)
    outputs = apply(
        _Recurrent, recorder, attrs, trains, (shape, bool(batch_first), len(states)), *operands
    )
    return tuple(outputs)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, attrs: dict[str, Any], trains: bool, plan: Any, *operands: Any
    ) -> tuple[torch.Tensor, ...]:
        shape, batch_first, n_states = plan
        data, states = operands[0], operands[1 : 1 + n_states]
        with recorder.pause():
            if batch_first:  # the library computes steps first and returns a view
                steps, batch, width = shape
                out = data.new_empty_strided((batch, steps, width), (width, batch * width, 1))
            else:
                out = data.new_empty(shape)
            finals = tuple(torch.empty_like(s) for s in states)
            cells = attrs["layers"] * attrs["directions"]
            reserve = data.new_empty((cells, attrs["rows"], attrs["gates"] * attrs["hidden_size"]))
        saved = (reserve,) if trains else ()
        recorder.record("predictor.rnn", operands, [out, *finals, *saved], dict(attrs))
        ctx.recorder, ctx.attrs = recorder, attrs
        ctx.save_for_backward(*operands, out, *finals, reserve)
        ctx.count = len(operands)
        ctx.set_materialize_grads(False)
        return (out, *finals)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        recorder: Recorder = ctx.recorder
        operands = ctx.saved_tensors[: ctx.count]
        needed = ctx.needs_input_grad[4:]
        with recorder.pause():
            made = [
                torch.empty_like(t) if w else None for t, w in zip(operands, needed, strict=True)
            ]
        recorder.record(
            "predictor.rnn_backward",
            [*(g for g in grads if g is not None), *ctx.saved_tensors],
            [g for g in made if g is not None],
            dict(ctx.attrs),
        )
        return (None, None, None, None, *made)


def lstm_cell(
    recorder: Recorder,
    data: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two products and one fused gate kernel, as CUDA runs `lstm_cell`."""
    gates_i = torch.nn.functional.linear(data, w_ih)
    gates_h = torch.nn.functional.linear(hx[0], w_hh)
    biases = [b for b in (b_ih, b_hh) if b is not None]
    hy, cy = apply(_FusedCell, recorder, "lstm", gates_i, gates_h, hx[1], *biases)
    return hy, cy


def gru_cell(
    recorder: Recorder,
    data: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """Two products and one fused gate kernel, as CUDA runs `gru_cell`."""
    gates_i = torch.nn.functional.linear(data, w_ih)
    gates_h = torch.nn.functional.linear(hx, w_hh)
    biases = [b for b in (b_ih, b_hh) if b is not None]
    (hy,) = apply(_FusedCell, recorder, "gru", gates_i, gates_h, hx, *biases)
    return hy  # type: ignore[no-any-return]


class _FusedCell(torch.autograd.Function):
    """`aten._thnn_fused_{lstm,gru}_cell` and its backward."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        kind: str,
        gates_i: Any,
        gates_h: Any,
        state: Any,
        *biases: Any,
    ) -> tuple[torch.Tensor, ...]:
        with recorder.pause():
            results = [torch.empty_like(state) for _ in range(2 if kind == "lstm" else 1)]
            factor = 4 if kind == "lstm" else 5
            workspace = state.new_empty((state.shape[0], factor * state.shape[1]))
        attrs: dict[str, object] = {"gates": GATES[kind]}
        recorder.record(
            f"aten._thnn_fused_{kind}_cell",
            [gates_i, gates_h, state, *biases],
            [*results, workspace],
            attrs,
        )
        ctx.recorder, ctx.kind, ctx.biases = recorder, kind, len(biases)
        ctx.save_for_backward(state, *results[1:], workspace, gates_i)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        recorder: Recorder = ctx.recorder
        *saved, gates = ctx.saved_tensors
        lstm = ctx.kind == "lstm"
        with recorder.pause():
            made = [torch.empty_like(gates) for _ in range(1 if lstm else 2)]
            grad_state = torch.empty_like(saved[0])
        name = "_thnn_fused_lstm_cell_backward_impl" if lstm else "_thnn_fused_gru_cell_backward"
        recorder.record(
            f"aten.{name}",
            [*(g for g in grads if g is not None), *saved],
            [*made, grad_state],
            {"gates": GATES[ctx.kind]},
        )
        grad_i, grad_h = made[0], made[-1]
        bias_grads = [g.sum(0) for g in made] if ctx.biases else []
        bias_grads = (bias_grads * 2)[: ctx.biases]
        return (None, None, grad_i, grad_h, grad_state, *bias_grads)
