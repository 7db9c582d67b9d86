"""A whole model's time in training is the one that scoring gives it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.features.table import OP_NAMES
from predictor.fit.model_samples import model_samples, shipped_bank
from predictor.fit.module import model_us
from predictor.fit.scoring import score_models
from predictor.graph.ops import TOKENS
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency_net import LatencyNet, NetConfig
from predictor.nn.tokens import trunk_tokens

DEVICE = "nvidia-rtx-4090"


@pytest.mark.parametrize("correction", [0.0, 0.3])
def test_training_and_scoring_read_one_time(correction: float) -> None:
    bank = shipped_bank("timm")
    graphs = sorted(bank.ids)[:3]
    rows = pd.DataFrame({
        "row_id": graphs, "source": "timm", "graph": graphs, "device": DEVICE, "model": graphs,
        "mode": "infer", "batch": 64, "seq": -1, "dtype": "amp-fp16", "framework": "pytorch",
        "framework_version": "2.4.0", "execution": "eager", "layout": "nchw", "measure": "wall",
        "latency_us": 1000.0,
    })  # fmt: skip
    samples = model_samples(rows, {"timm": bank}, (DEVICE,), 0)
    assert samples is not None
    net = LatencyNet(
        NetConfig(
            features=len(COLUMNS), tokens=len(TOKENS), ops=len(OP_NAMES), hosts=1, hidden=8,
            message_layers=0, correction=correction,
        ),
        trunk_tokens(),
    ).eval()  # fmt: skip
    with torch.no_grad():
        net.token_bias_T.fill_(-2.0)  # most kernels below their floor
        if net.correction is not None:
            net.correction.bias.fill_(0.1)
        trained = model_us(net, samples, torch.arange(len(samples))).numpy()
    scored = score_models(Ensemble(members=(net,), devices=(DEVICE,)), samples)
    np.testing.assert_allclose(trained, scored["predicted_us"], rtol=1e-5)
