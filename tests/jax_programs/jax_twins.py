"""Five programs, each written twice: in JAX and in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import torch
from jax_programs import lstm
from torch import nn
from torch.nn import functional as F

import predictor
from predictor.graph.ir import OpGraph

F32 = jnp.float32


def _spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, F32)


# MLP

BATCH, WIDTH, HIDDEN, CLASSES = 1024, 1024, 4096, 1000


def jax_mlp() -> OpGraph:
    def run(params, x):
        h = jax.nn.relu(x @ params["w1"] + params["b1"])
        h = jax.nn.relu(h @ params["w2"] + params["b2"])
        return h @ params["w3"] + params["b3"]

    params = {
        "w1": _spec(WIDTH, HIDDEN), "b1": _spec(HIDDEN), "w2": _spec(HIDDEN, HIDDEN),
        "b2": _spec(HIDDEN), "w3": _spec(HIDDEN, CLASSES), "b3": _spec(CLASSES),
    }  # fmt: skip
    return predictor.capture(jax.jit(run), params, _spec(BATCH, WIDTH))


def torch_mlp() -> OpGraph:
    module = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, CLASSES),
    )  # fmt: skip
    return predictor.capture(module, torch.empty(BATCH, WIDTH, device="meta"))


# CNN

IMAGES, SIDE, CHANNELS = 64, 56, (64, 128, 256)


def jax_cnn() -> OpGraph:
    def conv(x, w, b, stride):
        y = jax.lax.conv_general_dilated(
            x, w, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(y + b)

    def run(params, x):
        for i, stride in enumerate((1, 2)):
            x = conv(x, params[f"c{i}"], params[f"b{i}"], stride)
        return x.mean((1, 2)) @ params["w"] + params["b"]

    a, b, c = CHANNELS
    params = {
        "c0": _spec(3, 3, a, b), "b0": _spec(b), "c1": _spec(3, 3, b, c), "b1": _spec(c),
        "w": _spec(c, CLASSES), "b": _spec(CLASSES),
    }  # fmt: skip
    return predictor.capture(jax.jit(run), params, _spec(IMAGES, SIDE, SIDE, a))


class _Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        a, b, c = CHANNELS
        self.first = nn.Conv2d(a, b, 3, padding=1)
        self.second = nn.Conv2d(b, c, 3, stride=2, padding=1)
        self.out = nn.Linear(c, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.out(x.mean((2, 3)))


def torch_cnn() -> OpGraph:
    return predictor.capture(_Cnn(), torch.empty(IMAGES, CHANNELS[0], SIDE, SIDE, device="meta"))


# a transformer block with its loss and gradient

SEQUENCES, LENGTH, MODEL, HEADS = 8, 512, 1024, 16


def _jax_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def _jax_attention(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


def _jax_block(p, x):
    batch, length, width = x.shape

    def heads(y):
        return y.reshape(batch, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)

    h = _jax_norm(x, p["g1"], p["s1"])
    q, k, v = (heads(h @ p[n]) for n in ("wq", "wk", "wv"))
    mixed = _jax_attention(q, k, v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + mixed @ p["wo"]
    h = _jax_norm(x, p["g2"], p["s2"])
    return x + jax.nn.gelu(h @ p["w1"], approximate=True) @ p["w2"]


def jax_block() -> OpGraph:
    def run(params, x, y):
        def loss(p):
            return jnp.mean((_jax_block(p, x) - y) ** 2)

        return jax.value_and_grad(loss)(params)

    params = {n: _spec(MODEL, MODEL) for n in ("wq", "wk", "wv", "wo")}
    params |= {n: _spec(MODEL) for n in ("g1", "s1", "g2", "s2")}
    params |= {"w1": _spec(MODEL, 4 * MODEL), "w2": _spec(4 * MODEL, MODEL)}
    x = _spec(SEQUENCES, LENGTH, MODEL)
    return predictor.capture(jax.jit(run), params, x, x)


def _torch_attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mix = (
            nn.Linear(MODEL, MODEL, bias=False) for _ in range(4)
        )
        self.before, self.after = nn.LayerNorm(MODEL), nn.LayerNorm(MODEL)
        self.up = nn.Linear(MODEL, 4 * MODEL, bias=False)
        self.down = nn.Linear(4 * MODEL, MODEL, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, HEADS, width // HEADS).transpose(1, 2)

        h = self.before(x)
        mixed = _torch_attention(heads(self.query(h)), heads(self.key(h)), heads(self.value(h)))
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate="tanh"))


def torch_block() -> OpGraph:
    x = torch.empty(SEQUENCES, LENGTH, MODEL, device="meta")

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = _Block()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((self.block(x) - y) ** 2).mean()

    def step(module, x, y):
        module(x, y).backward()

    return predictor.capture(step, (WithLoss(), x, x))


# an LSTM cell, step by step

STEPS, ROWS, INPUT, STATE = 16, 256, 512, 1024


def jax_lstm() -> OpGraph:
    p = {"wx": _spec(INPUT, 4 * STATE), "wh": _spec(STATE, 4 * STATE), "b": _spec(4 * STATE)}
    state = _spec(ROWS, STATE)
    return predictor.capture(jax.jit(lstm), p, _spec(STEPS, ROWS, INPUT), state, state)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wx = nn.Parameter(torch.empty(INPUT, 4 * STATE))
        self.wh = nn.Parameter(torch.empty(STATE, 4 * STATE))
        self.b = nn.Parameter(torch.empty(4 * STATE))

    def forward(self, xs, h, c):
        out = torch.zeros(STEPS, ROWS, STATE, device=h.device)
        for t, x in enumerate(xs):
            i, f, g, o = (x @ self.wx + h @ self.wh + self.b).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out[t] = h
        return out, h, c


def torch_lstm() -> OpGraph:
    state = torch.empty(ROWS, STATE, device="meta")
    xs = torch.empty(STEPS, ROWS, INPUT, device="meta")
    return predictor.capture(_Lstm(), (xs, state, state))


# attention alone


def jax_attention() -> OpGraph:
    x = _spec(SEQUENCES, HEADS, LENGTH, MODEL // HEADS)
    return predictor.capture(jax.jit(_jax_attention), x, x, x)


class _Attention(nn.Module):
    def forward(self, q, k, v):
        return _torch_attention(q, k, v)


def torch_attention() -> OpGraph:
    x = torch.empty(SEQUENCES, HEADS, LENGTH, MODEL // HEADS, device="meta")
    return predictor.capture(_Attention(), (x, x, x))


TWINS: Mapping[str, tuple[Callable[[], OpGraph], Callable[[], OpGraph]]] = {
    "mlp": (jax_mlp, torch_mlp),
    "cnn": (jax_cnn, torch_cnn),
    "block": (jax_block, torch_block),
    "lstm": (jax_lstm, torch_lstm),
    "attention": (jax_attention, torch_attention),
}
"""(JAX, PyTorch) by program."""
