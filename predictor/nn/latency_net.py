"""The graph network: log ratio of a kernel's time to its sustained roofline, with quantiles.

Legend: N kernels, E edges, F features, T tokens, H hidden width, Q quantiles (lower, mid, upper).
Physics carries the extrapolation (`base_us`), the network learns what is left of it. A kernel
measured alone is a graph with one node and no edges: it passes through the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from predictor.features.columns import COLUMNS
from predictor.nn.correction import StepCorrection
from predictor.nn.encoder import KernelEncoder
from predictor.nn.tokens import encoder_groups

TILED = COLUMNS.index("log_tiled")
"""Column of the ratio that the tile model gives: a prior that the network corrects."""
LIBRARY = COLUMNS.index("log_library")
"""Column of what algorithms and dependent steps add to it."""
SERVING = COLUMNS.index("log_serving")
"""Column of what attention and experts add to it."""
STREAMED = COLUMNS.index("log_streamed")
"""Column of what the cache leaves of a streaming kernel's time."""
BASE = COLUMNS.index("log_base_us")
CUT_ROWS = 200_000
"""Rows that say where columns are cut, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """Sizes of the network; every value stands in a checkpoint's `config.json`."""

    features: int
    tokens: int
    ops: int
    hosts: int
    """Measuring hosts seen in training: their launch speed is their own, not the device's."""
    hidden: int = 96
    depth: int = 2
    token_width: int = 8
    message_layers: int = 2
    dropout: float = 0.0
    ratio_limit: float = 3.0
    """Largest |log(time / base)| the network may claim."""
    bins: int = 0
    """Places for bins of all columns (`BinLayer`)."""
    tiled_prior: bool = False
    """Whether the ratio starts from the tile model's and the library's (`predictor.features.tiles`,
    `predictor.features.library`)."""
    streamed_prior: bool = False
    """Whether the ratio of streaming kernels starts from what the cache leaves of their traffic
    (`predictor.features.streaming`); the network then reads that time for the roofline's."""
    device_heads: bool = False
    """Whether a known device reads the hidden states with weights of its own as well."""
    class_encoders: bool = False
    """Whether products, experts, attention, convolutions and the rest have layers of their own."""
    correction: float = 0.0
    """Largest |log| of the factor on a step's time (`StepCorrection`); 0 has none."""


class LatencyNet(nn.Module):
    """Message-passing network over the kernel DAG."""

    trunk_token_T: Tensor
    group_T: Tensor
    base_1: Tensor

    def __init__(self, config: NetConfig, trunk_token: Tensor) -> None:
        """`trunk_token` (T): the token whose embedding a token borrows (backward -> forward)."""
        super().__init__()
        self.config = config
        self.register_buffer("trunk_token_T", trunk_token.long())
        group_T = encoder_groups() if config.class_encoders else torch.zeros_like(trunk_token)
        self.register_buffer("group_T", group_T.long(), persistent=False)
        self.register_buffer("base_1", torch.tensor([BASE]), persistent=False)
        self.token_embedding = nn.Embedding(config.tokens, config.token_width)
        self.token_bias_T = nn.Parameter(torch.zeros(config.tokens))
        self.encoders = nn.ModuleList(
            KernelEncoder(
                config.features, config.token_width, config.hidden, config.depth, config.bins,
                config.dropout,
            )
            for _ in range(int(group_T.max()) + 1)
        )  # fmt: skip
        self.from_producers = nn.ModuleList(
            SAGEConv(config.hidden, config.hidden) for _ in range(config.message_layers)
        )
        self.from_consumers = nn.ModuleList(
            SAGEConv(config.hidden, config.hidden) for _ in range(config.message_layers)
        )
        self.message_gate = nn.Parameter(torch.zeros(config.message_layers))
        self.head = nn.Linear(config.hidden, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.device_effect = nn.Parameter(torch.zeros(max(config.hosts, 1), config.tokens))
        self.device_head = (
            nn.Parameter(torch.zeros(max(config.hosts, 1), config.hidden))
            if config.device_heads
            else None
        )
        self.device_isolated = nn.Parameter(torch.zeros(max(config.hosts, 1)))
        self.host_op = nn.Parameter(torch.zeros(2, config.ops))
        self.host_scalar_arg = nn.Parameter(torch.tensor(0.15))
        self.host_device = nn.Parameter(torch.zeros(max(config.hosts, 1)))
        self.host_base = nn.Parameter(torch.tensor([3.1, 3.4]))
        self.log_sharpness = nn.Parameter(torch.tensor(1.1))
        self.correction = StepCorrection(config.correction) if config.correction else None

    def of_group(self, group: int) -> KernelEncoder:
        """The encoder of a group of tokens."""
        encoder = self.encoders[group]
        assert isinstance(encoder, KernelEncoder)
        return encoder

    def rows_of(self, group: int, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """(N, F) features of the kernels of a group among parts of features and tokens.

        They are copied once, whatever the number of parts.
        """
        places = [torch.nonzero(self.group_T[token_N] == group)[:, 0] for _, token_N in parts]
        rows_NF = parts[0][0].new_empty(sum(map(len, places)), self.config.features)
        for (x_NF, _), at, own in zip(
            parts, places, rows_NF.split([len(at) for at in places]), strict=True
        ):
            torch.index_select(x_NF, 0, at, out=own)
        return rows_NF

    def prepare(self, parts: Sequence[tuple[Tensor, Tensor]], unread: Sequence[str] = ()) -> Tensor:
        """Take scales and bins of every encoder from its training rows.

        Args:
            parts: features (N, F) and tokens (N,) of training rows.
            unread: columns that the encoders shall not see.

        Returns:
            (G, F) whether a column has one value in all rows of an encoder.
        """
        blind = [COLUMNS.index(name) for name in unread]
        constant = []
        for group in range(len(self.encoders)):
            encoder, rows_NF = self.of_group(group), self.rows_of(group, parts)
            rows_NF[:, blind] = 0.0
            one = torch.ones(self.config.features, dtype=torch.bool)
            constant.append(rows_NF.amin(0) == rows_NF.amax(0) if len(rows_NF) else one)
            encoder.scale(rows_NF)
            encoder.blind(blind)
            if encoder.binned is not None:
                encoder.binned.cut(rows_NF[:: max(1, -(-len(rows_NF) // CUT_ROWS))])
        return torch.stack(constant)

    def prepare_like(self, other: LatencyNet) -> None:
        """Take the scales and bins of a network that was prepared on the same rows."""
        for own, theirs in zip(self.encoders.buffers(), other.encoders.buffers(), strict=True):
            own.copy_(theirs)

    def silence(self, constant_GF: Tensor) -> None:
        """Take the weights of each encoder off features that did not vary in its training rows."""
        for group, constant_F in enumerate(constant_GF):
            self.of_group(group).silence(constant_F)

    def forward(
        self,
        x_NF: Tensor,
        token_N: Tensor,
        edge_index_2E: Tensor,
        device_N: Tensor,
        isolated_N: Tensor,
        consumers_2E: Tensor | None = None,
    ) -> Tensor:
        """Quantiles (N, 3) of log(device time / base time): lower, mid, upper, ordered.

        `consumers_2E` holds (consumer, producer) pairs where they are not the edges reversed: in a
        graph of kernel classes.

        A known device (`device_N` >= 0) has an effect of its own beside the shared network, with a
        prior at zero: the shared part then need not explain one device's quirks.
        """
        prior_N = x_NF.new_zeros(())
        if self.config.tiled_prior:
            prior_N = x_NF[:, TILED] + x_NF[:, LIBRARY] + x_NF[:, SERVING]
        if self.config.streamed_prior:
            prior_N = prior_N + x_NF[:, STREAMED]
        h_NH = self._encoded(x_NF, token_N)
        reverse_2E = edge_index_2E.flip(0) if consumers_2E is None else consumers_2E
        if edge_index_2E.shape[1] or reverse_2E.shape[1]:
            for gate, down, up in zip(
                self.message_gate, self.from_producers, self.from_consumers, strict=True
            ):
                message = down(h_NH, edge_index_2E) + up(h_NH, reverse_2E)
                h_NH = h_NH + gate * torch.tanh(message)
        out_N3 = self.head(h_NH)
        limit = self.config.ratio_limit
        known_N = device_N.clamp(min=0)
        effect_N = self.device_effect[known_N, self.trunk_token_T[token_N]]
        effect_N = effect_N + self.device_isolated[known_N] * isolated_N
        if self.device_head is not None:
            effect_N = effect_N + (h_NH * self.device_head[known_N]).sum(dim=1)
        effect_N = torch.where(device_N >= 0, effect_N, torch.zeros_like(effect_N))
        raw = out_N3[:, 0] + self.token_bias_T[token_N] + effect_N
        mid = prior_N + limit * torch.tanh(raw / limit)
        below = nn.functional.softplus(out_N3[:, 1] - 2.0)
        above = nn.functional.softplus(out_N3[:, 2] - 2.0)
        return torch.stack([mid - below, mid, mid + above], dim=1)

    def _encoded(self, x_NF: Tensor, token_N: Tensor) -> Tensor:
        """(N, H) what each kernel is, its neighbours left out."""
        if self.config.streamed_prior:
            x_NF = x_NF.index_add(1, self.base_1, x_NF[:, STREAMED, None])
        e_NT = self.token_embedding(self.trunk_token_T[token_N])
        if len(self.encoders) == 1:
            whole: Tensor = self.encoders[0](x_NF, e_NT)
            return whole
        group_N = self.group_T[token_N]
        h_NH = x_NF.new_zeros(len(x_NF), self.config.hidden)
        for group, encoder in enumerate(self.encoders):
            at = torch.nonzero(group_N == group)[:, 0]
            if len(at):
                h_NH = h_NH.index_copy(0, at, encoder(x_NF[at], e_NT[at]))
        return h_NH

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) hidden states along the directions in which known devices differ the most.

        The principal axes of the devices' heads, each as long as the heads spread along it: weights
        around 0 and 1 apart make a device like the known ones. Zeros where there are no heads, or
        fewer axes.
        """
        out_NK = x_NF.new_zeros(len(x_NF), most)
        if self.device_head is None:
            return out_NK
        heads_DH = self.device_head.detach()
        _, size_K, axes_KH = torch.linalg.svd(heads_DH, full_matrices=False)
        size_K, axes_KH = size_K[:most], axes_KH[:most]
        largest_K = axes_KH.gather(1, axes_KH.abs().argmax(dim=1, keepdim=True))[:, 0]
        scale_K = size_K * torch.sign(largest_K) / len(heads_DH) ** 0.5  # one sign everywhere
        out_NK[:, : len(size_K)] = self._encoded(x_NF, token_N) @ (axes_KH.T * scale_K)
        return out_NK

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) launch time that a device timer around one op sees, microseconds.

        `host_N` is -1 for a host never seen: the average of the known ones.
        """
        speed = torch.where(
            host_N >= 0, self.host_device[host_N.clamp(min=0)], torch.zeros_like(op_N).float()
        )
        kind = isolated_N.long()
        log_us = self.host_base[kind] + self.host_op[kind, op_N]
        return torch.exp(log_us + self.host_scalar_arg * scalar_arg_N + speed)

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """What a timer around one op reads: the later of launch and kernel, smoothly."""
        p = 1.0 + torch.exp(self.log_sharpness)
        ratio = torch.log(device_us / host_us)
        return host_us * torch.exp(nn.functional.softplus(p * ratio) / p)
