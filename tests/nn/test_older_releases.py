"""A release keeps predicting what it predicted when columns, tokens and ops are added."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from predictor.checkpoint import Release
from predictor.errors import CheckpointError
from predictor.features.columns import COLUMNS, columns_hash
from predictor.features.table import OP_NAMES
from predictor.graph.ops import TOKENS
from predictor.nn.latency import load_predictor
from predictor.nn.older_releases import FAR, weights_of_today

MakeRelease = Callable[..., Release]
OLD_COLUMNS = [c for c in COLUMNS if c not in ("compiled", "log_m")]
OLD_TOKENS = [t for t in TOKENS if t != "rnn"][::-1]
OLD_OPS = [o for o in OP_NAMES if o != "bmm"]


def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as a version with fewer names would have written them."""
    columns = [COLUMNS.index(c) for c in OLD_COLUMNS]
    tokens = [TOKENS.index(t) for t in OLD_TOKENS]
    ops = [OP_NAMES.index(o) for o in OLD_OPS]
    out = {}
    for name, value in tensors.items():
        if name.endswith("encoder.0.weight"):
            value = value[:, [*columns, *range(len(COLUMNS), value.shape[1])]]
        elif name.endswith(("x_mean_F", "x_scale_F")):
            value = value[columns]
        elif name.endswith(("token_embedding.weight", "token_bias_T", "trunk_token_T")):
            value = value[tokens]
        elif name.endswith("device_effect"):
            value = value[:, tokens]
        elif name.endswith("host_op"):
            value = value[:, ops]
        elif name.startswith("range."):
            value = value[tokens][:, columns]
        out[name] = value
    return out


def test_weights_are_placed_by_name(make_release: MakeRelease) -> None:
    release = make_release()
    names = {"columns": OLD_COLUMNS, "tokens": OLD_TOKENS, "ops": OLD_OPS}
    back = weights_of_today(older(release.tensors), **names)
    same = [COLUMNS.index(c) for c in OLD_COLUMNS]
    first, again = (t["member0.encoders.0.encoder.0.weight"] for t in (release.tensors, back))
    assert torch.equal(again[:, same], first[:, same])
    assert (again[:, [COLUMNS.index("compiled"), COLUMNS.index("log_m")]] == 0).all()
    assert back["member0.encoders.0.x_scale_F"][COLUMNS.index("log_m")] == 1
    gemm, rnn = TOKENS.index("gemm"), TOKENS.index("rnn")
    bias = "member0.token_bias_T"
    assert back[bias][gemm] == release.tensors[bias][gemm]
    assert back[bias][rnn] == 0
    assert torch.equal(back["member0.trunk_token_T"], release.tensors["member0.trunk_token_T"])
    assert back["range.low"][rnn, 0] == FAR == -back["range.high"][rnn, 0]
    assert back["range.low"][gemm, COLUMNS.index("log_m")] == -FAR


def test_a_release_with_fewer_names_is_loaded(make_release: MakeRelease) -> None:
    release = make_release()
    model = release.config["model"]
    assert isinstance(model, dict)
    network = {
        **model["network"], "features": len(OLD_COLUMNS), "tokens": len(OLD_TOKENS),
        "ops": len(OLD_OPS),
    }  # fmt: skip
    config = {
        "features": {"columns": OLD_COLUMNS, "hash": columns_hash(OLD_COLUMNS, OLD_TOKENS)},
        "vocabulary": OLD_TOKENS,
    }
    networks = load_predictor(release).networks
    x_mean = release.tensors["member0.encoders.0.x_mean_F"]
    old = make_release(tensors=older, config=config, network=network, ops=OLD_OPS)
    predictor = load_predictor(old)
    x = torch.randn(5, len(COLUMNS))
    x[:, [COLUMNS.index("compiled"), COLUMNS.index("log_m")]] = 0.0
    none, index = torch.zeros(2, 0, dtype=torch.long), torch.zeros(5, dtype=torch.long)
    token = torch.full((5,), TOKENS.index("softmax"))
    given = (x, token, none, index, torch.zeros(5))
    expected = networks.log_ratio(*given)
    assert x_mean[COLUMNS.index("log_m")] == 0  # so that 0 was no information before either
    assert torch.allclose(predictor.networks.log_ratio(*given), expected, atol=1e-6)


def test_a_name_that_is_gone_is_refused(make_release: MakeRelease) -> None:
    columns = ["phlogiston", *COLUMNS[1:]]
    config = {"features": {"columns": columns, "hash": columns_hash(columns)}}
    with pytest.raises(CheckpointError, match="phlogiston"):
        load_predictor(make_release(config=config))


def test_a_release_from_before_there_were_several_encoders_is_loaded(
    make_release: MakeRelease,
) -> None:
    release = make_release()
    before = {name.replace("encoders.0.", ""): value for name, value in release.tensors.items()}
    assert before.keys() != release.tensors.keys()
    names = {"columns": COLUMNS, "tokens": TOKENS, "ops": OP_NAMES}
    assert weights_of_today(before, **names).keys() == release.tensors.keys()
