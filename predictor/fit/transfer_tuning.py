"""Full fine-tuning on the measured rows: every weight of the networks, a few steps of AdamW.

The costliest thing that can be done with k rows, and one that changes predictions everywhere: a
baseline for the adapters of `predictor.calibrate`, never a product.

Legend: N rows, G steps.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.fit.model_samples import ModelSamples
from predictor.fit.module import model_us, phase_us, step_log_ratio
from predictor.fit.samples import KernelSamples
from predictor.fit.step_samples import op_device_us
from predictor.fit.transfer_rows import DeviceRows, index_tensor
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency_net import LatencyNet

STEPS = 40
LEARNING_RATE = 3e-4
ROWS_AT_ONCE = 64
"""Whole models that are predicted at a time."""
Indices = NDArray[np.int64]


def tuned(networks: Ensemble, rows: DeviceRows, index_K: Indices) -> Ensemble:
    """Copies of the networks after steps on the mean absolute error of log time of K rows."""
    target_K = torch.from_numpy(rows.log_us_N[index_K]).float()
    members = []
    for member in networks.members:
        net = copy.deepcopy(member).train()
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (_log_us(net, rows, index_K) - target_K).abs().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        members.append(net.eval())
    return Ensemble(members=tuple(members), devices=networks.devices)


def predicted_log_us(networks: Ensemble, rows: DeviceRows, index_N: Indices) -> NDArray[np.float64]:
    """(N,) log time of some rows."""
    with torch.no_grad():
        found = [
            torch.stack([_log_us(net, rows, part) for net in networks.members]).mean(0)
            for part in np.split(index_N, np.arange(ROWS_AT_ONCE, len(index_N), ROWS_AT_ONCE))
        ]
    return torch.cat(found).double().numpy()


def _log_us(net: LatencyNet, rows: DeviceRows, index: Indices) -> Tensor:
    """(len(index),) log time that a network reads for some rows."""
    samples, at = rows.samples, index_tensor(index)
    if isinstance(samples, ModelSamples):
        return torch.log(model_us(net, samples, at))
    if isinstance(samples, KernelSamples):
        return _kernel_log_us(net, samples, at)
    log_ratio = step_log_ratio(net, samples)
    time_N = samples.base_us_N * torch.exp(log_ratio[:, 1])
    if rows.kind == "step":
        forward_G, backward_G = phase_us(samples, time_N)
        return torch.log(forward_G + backward_G)[at]
    host_N = net.host_us(
        samples.op_N, samples.scalar_arg_N, torch.zeros_like(time_N), samples.host_N
    )
    device_R, host_R = op_device_us(samples, time_N), op_device_us(samples, host_N)
    return torch.log(net.measured_us(device_R[at], host_R[at]))


def _kernel_log_us(net: LatencyNet, samples: KernelSamples, at: Tensor) -> Tensor:
    isolated = samples.isolated_N[at]
    no_edges = torch.zeros(2, 0, dtype=torch.long)
    log_ratio = net(samples.x_NF[at], samples.token_N[at], no_edges, samples.device_N[at], isolated)
    device = samples.base_us_N[at] * torch.exp(log_ratio[:, 1])
    host = net.host_us(samples.op_N[at], samples.scalar_arg_N[at], isolated, samples.host_N[at])
    hosted = samples.hosted_N[at] > 0
    return torch.log(torch.where(hosted, net.measured_us(device, host), device))
