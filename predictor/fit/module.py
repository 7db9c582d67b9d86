"""The Lightning module: kernel loss, op loss and step loss on one set of weights.

Legend: N kernels, G step graphs, R op labels, M ensemble members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from predictor.features.columns import COLUMNS, DEVICE_COLUMNS
from predictor.features.context import NAMES as CONTEXT_NAMES
from predictor.fit.lightning_api import LightningModule
from predictor.fit.model_samples import ModelSamples, batch_of
from predictor.fit.recipe import Recipe
from predictor.fit.samples import KernelSamples
from predictor.fit.step_kernels import of_models, of_steps, training_summaries
from predictor.fit.step_samples import StepSamples, op_device_us
from predictor.nn.composition import device_us, step_us
from predictor.nn.correction import summaries
from predictor.nn.latency_net import LatencyNet, NetConfig
from predictor.nn.tokens import trunk_tokens

QUANTILES: tuple[float, float, float] = (0.05, 0.5, 0.95)
_DEVICE_F = torch.tensor([name in DEVICE_COLUMNS for name in COLUMNS], dtype=torch.float32)
_CONTEXT_F = torch.tensor([name in CONTEXT_NAMES for name in COLUMNS])
MIN_SCHEDULE_STEPS = 10
"""A one-cycle schedule needs two steps of warm-up and some of decay, however few the rows."""


def pinball(prediction_N3: Tensor, target_N: Tensor) -> Tensor:
    """(N,) summed pinball loss at `QUANTILES`, in log time."""
    total = torch.zeros_like(target_N)
    for i, q in enumerate(QUANTILES):
        error = target_N - prediction_N3[:, i]
        total = total + torch.maximum(q * error, (q - 1.0) * error)
    return total


class LatencyTraining(LightningModule):
    """Trains `members` networks side by side on the same batches."""

    def __init__(
        self,
        recipe: Recipe,
        config: NetConfig,
        kernels: KernelSamples,
        steps: StepSamples | None,
        ratios: StepSamples | None,
        total_batches: int,
        models: ModelSamples | None = None,
    ) -> None:
        """`ratios`: steps whose backward-to-forward ratios fit the backward biases alone."""
        super().__init__()
        self.recipe, self.kernels, self.steps, self.ratios = recipe, kernels, steps, ratios
        self.models = models
        self.total_batches = total_batches
        self.members = nn.ModuleList(
            LatencyNet(config, trunk_tokens()) for _ in range(recipe.network.members)
        )
        parts = [(kernels.x_NF, kernels.token_N)]
        if models is not None:
            parts.append((models.x_CF, models.token_C))
        first = self.nets()[0]
        self.constant_GF = first.prepare(parts, recipe.network.unread)
        for net in self.nets():
            net.prepare_like(first)
            if net.correction is not None and (models or steps):
                net.correction.scale_to(training_summaries(models, steps))

    def nets(self) -> list[LatencyNet]:
        """The ensemble's members."""
        return [net for net in self.members if isinstance(net, LatencyNet)]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Dropout draws by seed and step alone, so that a resumed run sees what it would have."""
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.global_step)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Loss of one batch of kernel and model rows, and every few batches of all step graphs."""
        with_steps = batch_idx % self.recipe.optimizer.step_every == 0
        losses = [self._member_loss(net, *batch, with_steps) for net in self.nets()]
        loss = torch.stack(losses).sum()
        self.log("loss", loss / len(losses), prog_bar=True)
        return loss

    def _member_loss(
        self, net: LatencyNet, index_B: Tensor, models_B: Tensor, with_steps: bool
    ) -> Tensor:
        weights = self.recipe.loss
        loss = torch.zeros(())
        if len(index_B) and weights.kernel > 0:
            loss = loss + weights.kernel * self._kernel_loss(net, index_B)
        if self.models is not None and len(models_B):
            loss = loss + weights.model * self._model_loss(net, self.models, models_B)
        if with_steps and self.steps is not None:
            loss = loss + self._step_loss(net, self.steps)
        if with_steps and self.ratios is not None and weights.backward_ratio > 0:
            loss = loss + weights.backward_ratio * self._ratio_loss(net, self.ratios)
        prior = (net.device_effect**2).sum() + (net.device_isolated**2).sum()
        if net.device_head is not None:
            prior = prior + (net.device_head**2).sum()
        loss = loss + weights.device_effect * prior
        loss = loss + weights.token_bias * (net.token_bias_T**2).mean()
        if net.correction is not None:
            loss = loss + weights.correction * net.correction.prior()
        host = (net.host_device**2).mean() + 0.1 * (net.host_op**2).mean()
        return loss + weights.host * host

    def _kernel_loss(self, net: LatencyNet, index_B: Tensor) -> Tensor:
        k = self.kernels
        host_B, op_B = k.host_N[index_B], k.op_N[index_B]
        isolated_B = k.isolated_N[index_B]
        x_BF, device_B = self._shown(self._partly_hidden(k.x_NF[index_B]), k.device_N[index_B])
        no_edges = torch.zeros(2, 0, dtype=torch.long)
        log_ratio = net(x_BF, k.token_N[index_B], no_edges, device_B, isolated_B)
        device = k.base_us_N[index_B, None] * torch.exp(log_ratio)
        host_us = net.host_us(op_B, k.scalar_arg_N[index_B], isolated_B, host_B)
        with_host = net.measured_us(device, host_us[:, None])
        read = torch.log(torch.where(k.hosted_N[index_B, None] > 0, with_host, device))
        weight_B = k.weight_N[index_B]
        each_B = pinball(read, torch.log(k.measured_us_N[index_B]))
        return (each_B * weight_B).sum() / weight_B.sum()

    def _drawn(self, rows: int, share: float) -> Tensor:
        """(rows,) true for a share of them; nothing is drawn for a share of 0."""
        return torch.rand(rows) < share if share > 0 else torch.zeros(rows, dtype=torch.bool)

    def _partly_hidden(self, x_BF: Tensor) -> Tensor:
        """The features, with what is told of library and quantisation hidden in a share of rows.

        A captured program does not tell them; what most rows say of them must not be leant on.
        """
        share = self.recipe.network.hide_context
        if share <= 0:
            return x_BF
        hidden_B = self._drawn(len(x_BF), share)
        return torch.where(hidden_B[:, None] & _CONTEXT_F, torch.zeros_like(x_BF), x_BF)

    def _shown(
        self, x_NF: Tensor, device_N: Tensor, graph_N: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features and devices as training shows them: some devices hidden, some columns shifted.

        Args:
            x_NF: features of kernels.
            device_N: index of each one's device.
            graph_N: graph that each belongs to, which is hidden as a whole; without it each kernel
                is a graph.
        """
        graphs = len(x_NF) if graph_N is None else int(graph_N.max()) + 1
        hidden_N = self._drawn(graphs, self.recipe.network.hide_device)
        if graph_N is not None:
            hidden_N = hidden_N[graph_N]
        return self._perturbed(x_NF, device_N, hidden_N), torch.where(hidden_N, -1, device_N)

    def _perturbed(self, x_BF: Tensor, device_B: Tensor, hidden_B: Tensor) -> Tensor:
        """The features, with the columns of each device shifted by amounts drawn for the batch.

        By how little devices differ there the network could tell them apart, and learn each by
        heart; what it learns of one must carry to others.
        """
        spread = self.recipe.network.device_jitter
        if spread <= 0:
            return x_BF
        devices = int(device_B.max()) + 2
        shift_DF = spread * torch.randn(devices, x_BF.shape[1]) * _DEVICE_F
        shift_BF = shift_DF[device_B + 1]
        if self.recipe.network.hide_device > 0:  # a known device is what it is
            shift_BF = shift_BF * hidden_B[:, None]
        return x_BF + shift_BF

    def _step_loss(self, net: LatencyNet, steps: StepSamples) -> Tensor:
        log_ratio = step_log_ratio(net, steps, shown=self._shown)
        loss = torch.zeros(())
        if len(steps.op_us_R):
            read = torch.log(op_measured_us(net, steps, log_ratio))
            loss = loss + self.recipe.loss.op * pinball(read, torch.log(steps.op_us_R)).mean()
        time_N = steps.base_us_N * torch.exp(log_ratio[:, 1])
        forward_G, backward_G = phase_us(steps, time_N)
        if net.correction is not None:
            factor_G = torch.exp(net.correction(summaries(of_steps(steps, time_N))))
            forward_G, backward_G = forward_G * factor_G, backward_G * factor_G
        error = (torch.log(forward_G) - torch.log(steps.forward_us_G)).abs().mean()
        trained = torch.isfinite(steps.backward_us_G)
        if bool(trained.any()):
            off = torch.log(backward_G[trained]) - torch.log(steps.backward_us_G[trained])
            error = error + off.abs().mean() * trained.float().mean()
        return loss + self.recipe.loss.step * error

    def _model_loss(self, net: LatencyNet, models: ModelSamples, rows_B: Tensor) -> Tensor:
        """Mean absolute error of log step time of whole models."""
        predicted_B = model_us(net, models, rows_B, self._shown)
        error_B = (torch.log(predicted_B) - torch.log(models.measured_us_M[rows_B])).abs()
        weight_B = models.weight_M[rows_B]
        return (error_B * weight_B).sum() / weight_B.sum()

    def _ratio_loss(self, net: LatencyNet, steps: StepSamples) -> Tensor:
        """Backward over forward time of the same op: moves the backward biases and nothing else."""
        forward, backward = steps.ratio_2P
        if not len(forward):
            return torch.zeros(())
        bias_N = net.token_bias_T[steps.token_N]
        with torch.no_grad():
            fixed_N = step_log_ratio(net, steps, edges=False)[:, 1] - bias_N
        time_R = op_device_us(steps, steps.base_us_N * torch.exp(fixed_N + bias_N))
        predicted = torch.log(time_R[backward]) - torch.log(time_R[forward])
        measured = torch.log(steps.op_us_R[backward]) - torch.log(steps.op_us_R[forward])
        return (predicted - measured).abs().mean()

    def configure_optimizers(self) -> Any:
        """AdamW; effects, hosts and biases have priors of their own and do not decay."""
        own = ("device_", "host_", "token_bias", "correction")
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            leaf = name.split(".", 2)[-1]
            (free if leaf.startswith(own) else decayed).append(parameter)
        o = self.recipe.optimizer
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": o.weight_decay},
             {"params": free, "weight_decay": 0.0}],
            lr=o.learning_rate,
        )  # fmt: skip
        steps = max(self.total_batches + 1, MIN_SCHEDULE_STEPS)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, o.learning_rate, total_steps=steps,
            pct_start=max(o.warmup_share, 2 / steps),
        )  # fmt: skip
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


Shown: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Features, devices and graphs of kernels to the features and devices that a network is shown."""


def model_us(
    net: LatencyNet, models: ModelSamples, rows_B: Tensor, shown: Shown | None = None
) -> Tensor:
    """(B,) step time of some rows: device work and host work, whichever is later, corrected."""
    batch = batch_of(models, rows_B)
    at = batch.index_C
    x_CF, device_C = models.x_CF[at], models.device_M[rows_B][batch.row_C]
    if shown is not None:
        x_CF, device_C = shown(x_CF, device_C, batch.row_C)
    log_ratio: Tensor = net(
        x_CF, models.token_C[at], batch.producers_2P, device_C, torch.zeros(len(at)),
        batch.consumers_2P,
    )  # fmt: skip
    time_C = models.base_us_C[at] * torch.exp(log_ratio[:, 1])
    time_C = torch.maximum(time_C, models.floor_us_C[at])  # as predictions are
    device_B = device_us(time_C, models.count_C[at], batch.row_C, len(rows_B))
    step_B = step_us(device_B, models.host_us_M[rows_B])
    if net.correction is None:
        return step_B
    log_factor_B: Tensor = net.correction(summaries(of_models(models, rows_B, batch, time_C)))
    return step_B * torch.exp(log_factor_B)


def step_log_ratio(
    net: LatencyNet, steps: StepSamples, edges: bool = True, shown: Shown | None = None
) -> Tensor:
    """(N, 3) log ratios of all kernels of the step graphs."""
    edge_index = steps.edge_index_2E if edges else steps.edge_index_2E[:, :0]
    isolated_N = torch.zeros_like(steps.base_us_N)
    x_NF, device_N = steps.x_NF, steps.device_N
    if shown is not None:
        x_NF, device_N = shown(x_NF, device_N, steps.graph_N)
    out: Tensor = net(x_NF, steps.token_N, edge_index, device_N, isolated_N)
    return out


def op_measured_us(net: LatencyNet, steps: StepSamples, log_ratio_N3: Tensor) -> Tensor:
    """(R, 3) what a timer around each op of a step reads, at every quantile."""
    host_N = net.host_us(
        steps.op_N, steps.scalar_arg_N, torch.zeros_like(steps.base_us_N), steps.host_N
    )
    host_R = op_device_us(steps, host_N)
    columns = [
        net.measured_us(
            op_device_us(steps, steps.base_us_N * torch.exp(log_ratio_N3[:, i])), host_R
        )
        for i in range(3)
    ]
    return torch.stack(columns, dim=1)


def phase_us(steps: StepSamples, kernel_us_N: Tensor) -> tuple[Tensor, Tensor]:
    """(G,) forward and (G,) backward device time of each step."""
    forward = device_us(
        kernel_us_N * (steps.phase_N == 0), steps.weight_N, steps.graph_N, steps.graphs
    )
    backward = device_us(
        kernel_us_N * (steps.phase_N == 1), steps.weight_N, steps.graph_N, steps.graphs
    )
    return forward, backward
