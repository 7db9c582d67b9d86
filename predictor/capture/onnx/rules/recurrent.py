"""LSTM, GRU and RNN: one library call a layer."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Item


def recurrent(mode: str, gates: int) -> Rule:
    """A layer with `gates` products a step."""

    def run(call: Call) -> list[Item]:
        x, weight, states = call.value(0), call.value(1), call.value(2)
        if len(x.shape) != 3 or len(weight.shape) != 3:
            raise call.wrong(f"input {list(x.shape)} and weight {list(weight.shape)}")
        hidden = call.integer("hidden_size", states.shape[-1])
        batch_first = bool(call.attr("layout", 0))
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
        directions = weight.shape[0]
        attrs: dict[str, object] = {
            "mode": mode, "gates": gates, "steps": steps, "batch": batch, "rows": steps * batch,
            "input_size": x.shape[2], "hidden_size": hidden, "layers": 1,
            "directions": directions, "proj_size": 0, "dropout": 0.0,
        }  # fmt: skip
        results = [(steps, batch, directions, hidden)] + [(directions, batch, hidden)] * 2
        order = (0, 2, 1, 3)
        if batch_first:
            results = [(batch, steps, directions, hidden)] + [(batch, directions, hidden)] * 2
            order = (0, 1, 2, 3)
        count = 3 if mode == "lstm" else 2
        made = call.tape.call(
            "predictor.rnn", call.values(), [(r, x.dtype) for r in results[:count]], attrs
        )
        whole = made[0] if batch_first else call.tape.permute(made[0], order)
        return [whole, *made[1:]]

    return run


RECURRENT: Mapping[str, Rule] = {
    "LSTM": recurrent("lstm", 4), "GRU": recurrent("gru", 3), "RNN": recurrent("rnn_tanh", 1),
}  # fmt: skip
"""Rules of the standard domain."""
