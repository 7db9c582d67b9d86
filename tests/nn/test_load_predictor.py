"""A release whose parts do not fit together is refused, never half loaded."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from predictor.checkpoint import Release
from predictor.errors import CheckpointError
from predictor.features.columns import COLUMNS, columns_hash
from predictor.features.table import OP_NAMES
from predictor.graph.ops import TOKENS
from predictor.nn.latency import load_predictor
from predictor.nn.release_parts import check_calibration

Tensors = dict[str, torch.Tensor]
MakeRelease = Callable[..., Release]


def without(key: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {k: v for k, v in tensors.items() if k != key}


def reshaped(key: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, key: torch.zeros(shape)}


def test_what_was_saved_is_loaded(make_release: MakeRelease) -> None:
    release = make_release(nets=2)
    predictor = load_predictor(release)
    assert predictor.name == "random-v1"
    assert predictor.networks.devices == ("nvidia-a100-pcie-40gb", "nvidia-t4")
    assert ("gemm", "fp32") in predictor.learned
    for i, net in enumerate(predictor.networks.members):
        for name, value in net.state_dict().items():
            assert torch.equal(value, release.tensors[f"member{i}.{name}"])
        assert not net.training


def test_what_was_learned_of_one_half_precision_speaks_for_the_other(
    make_release: MakeRelease,
) -> None:
    pairs = {("gemm", "fp16"), ("pointwise", "bf16"), ("softmax", "fp32")}
    learned = load_predictor(make_release(learned=sorted(pairs))).learned
    assert learned == pairs | {("gemm", "bf16"), ("pointwise", "fp16")}


def test_weights_stored_as_halves_are_read_as_floats(make_release: MakeRelease) -> None:
    def halved(tensors: Tensors) -> Tensors:
        return {
            k: v.half() if v.is_floating_point() and k.startswith("member") else v
            for k, v in tensors.items()
        }

    net = load_predictor(make_release(tensors=halved)).networks.members[0]
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_the_vocabulary_may_gain_ops_and_change_their_order(make_release: MakeRelease) -> None:
    before = list(OP_NAMES)[3:][::-1]  # three ops fewer, the others the other way round

    def older(tensors: Tensors) -> Tensors:
        columns = [OP_NAMES.index(op) for op in before]
        return {k: v[:, columns] if k.endswith("host_op") else v for k, v in tensors.items()}

    today = make_release()
    network = dict(today.config["model"]["network"])  # type: ignore[index]
    here = [net.host_op.detach() for net in load_predictor(today).networks.members]
    release = make_release(tensors=older, ops=before, network={**network, "ops": len(before)})
    for net, same in zip(load_predictor(release).networks.members, here, strict=True):
        assert torch.equal(net.host_op[:, 3:], same[:, 3:])
        assert not net.host_op[:, :3].any()


@pytest.mark.parametrize(
    "change",
    [
        without("member1.head.weight"),
        without("member0.encoders.0.x_mean_F"),
        without("range.low"),
        reshaped("member0.head.weight", 3, 4),
        reshaped("member0.device_effect", 1, 1),
        reshaped("member0.host_op", 2, 3),
        reshaped("member0.host_op", len(OP_NAMES)),
        reshaped("range.low", 2, 2),
        reshaped("range.high", len(COLUMNS)),
        lambda tensors: {**tensors, "member0.extra": torch.zeros(1)},
        lambda tensors: {**tensors, "member2.head.bias": torch.zeros(3)},
        lambda tensors: {**tensors, "unheard_of": torch.zeros(3)},
        lambda tensors: {},
    ],
)
def test_tensors_that_do_not_fit(
    make_release: MakeRelease, change: Callable[[Tensors], Tensors]
) -> None:
    release = make_release(tensors=change)
    with pytest.raises(CheckpointError, match="random-v1"):
        load_predictor(release)


def test_releases_before_the_choice_know_compiled_steps_by_eager_graphs(
    make_release: MakeRelease,
) -> None:
    assert load_predictor(make_release()).compiled_graphs == "eager"
    fused = load_predictor(make_release(compiled_graphs="inductor-1"))
    assert fused.compiled_graphs == "inductor-1"


@pytest.mark.parametrize("part", ["model", "features", "calibration"])
def test_parts_of_another_kind(make_release: MakeRelease, part: str) -> None:
    with pytest.raises(CheckpointError, match=f"random-v1.*'{part}' is not a mapping"):
        load_predictor(make_release(config={part: [1]}))


def test_features_of_another_version(make_release: MakeRelease) -> None:
    release = make_release(config={"features": {"hash": "0" * 16, "columns": list(COLUMNS)}})
    with pytest.raises(CheckpointError, match=r"meaning changed since.*train it again"):
        load_predictor(release)


@pytest.mark.parametrize(
    "model",
    [
        {"members": 1},
        {"members": 3},
        {"members": 0},
        {"members": None},
        {"members": True},
        {"devices": None},
        {"devices": ["nvidia-t4"]},
        {"ops": None},
        {"ops": ["add"]},
        {"learned": [["gemm"]]},
        {"learned": 3},
        {"learned": [["gemm", 32]]},
        {"learned": [["gemm", "fp33"]]},
        {"learned": [["gemm", "fp32", "toaster"]]},
        {"learned": [["gemm", "fp32", "gpu", "sure"]]},
        {"measured": 3},
        {"measured": {"nvidia-t4": 3}},
        {"measured": {"nvidia-t4": [["gemm"]]}},
        {"measured": {"nvidia-t4": [["gemm", "fp32", "gpu"]]}},
        {"measured": {"nvidia-l4": [["gemm", "fp32"]]}},
        {"compiled_graphs": "fused"},
        {"compiled_graphs": None},
        {"network": {}},
        {"network": {"hidden": 16}},
        {"network": None},
    ],
)
def test_a_model_that_does_not_fit_its_weights(make_release: MakeRelease, model) -> None:
    with pytest.raises(CheckpointError, match="random-v1"):
        load_predictor(make_release(**model))


def test_unknown_network_key_and_wrong_sizes(make_release: MakeRelease) -> None:
    release = make_release()
    network = dict(release.config["model"]["network"])  # type: ignore[index]
    for changes in ({"width": 3}, {"hidden": 17}, {"hidden": -1}, {"hosts": 5}, {"ops": 3},
                    {"tokens": 2}, {"features": 9}):  # fmt: skip
        with pytest.raises(CheckpointError, match="random-v1"):
            load_predictor(make_release(network={**network, **changes}))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("hidden", (1.5, True, "16", None)),
        ("ratio_limit", (-1.0, True, "3", None)),
        ("dropout", (2.0, False)),
        ("tiled_prior", (1, 0.5, "yes", None)),
    ],
)
def test_a_network_setting_of_another_kind(
    make_release: MakeRelease, key: str, values: tuple[object, ...]
) -> None:
    network = dict(make_release().config["model"]["network"])  # type: ignore[index]
    for value in values:
        with pytest.raises(CheckpointError, match="random-v1"):
            load_predictor(make_release(network={**network, key: value}))


@pytest.mark.parametrize(
    "config",
    [
        {"vocabulary": []},
        {"vocabulary": None},
        {"vocabulary": list(TOKENS)[::-1]},
        {"features": {"hash": columns_hash(), "columns": list(COLUMNS)[::-1]}},
        {"features": {"hash": columns_hash()}},
    ],
)
def test_weights_stand_for_the_names_of_this_version(make_release: MakeRelease, config) -> None:
    with pytest.raises(CheckpointError, match=r"random-v1.*(vocabulary|features.columns)"):
        load_predictor(make_release(config=config))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, "wide", True])
def test_a_scale_that_makes_no_interval(value: object) -> None:
    for context, entry in (("step", "total"), ("in_step", "matmul")):
        scales = {**STEP["seen"], "default": 0.1, entry: value}
        with pytest.raises(ValueError, match=f"calibration.{context}.seen.{entry} is"):
            check_calibration({**WHOLE, context: {"seen": scales, "unseen": scales}})


def test_kernel_scales_may_narrow_and_step_scales_may_not() -> None:
    narrow = {"seen": {"default": -0.1}, "unseen": {"default": -0.1}}
    check_calibration({**WHOLE, "in_step": narrow, "isolated": narrow})
    for name in ("band", "outside"):
        scales = {"default": 0.1, name: -0.1}
        with pytest.raises(ValueError, match=f"in_step.seen.{name} is -0.1, not a number from 0"):
            check_calibration({**WHOLE, "in_step": {"seen": scales, "unseen": scales}})
    with pytest.raises(ValueError, match=r"step\.seen\.total is -0\.1, not a number from 0 to"):
        check_calibration({**WHOLE, "step": {"seen": {"total": -0.1}, "unseen": {"total": 0.1}}})


SCALES = {"seen": {"default": 0.1}, "unseen": {"default": 0.1}}
STEP = {"seen": {"total": 0.1}, "unseen": {"total": 0.1}}
WHOLE = {"level": 0.9, "isolated": SCALES, "in_step": SCALES, "step": STEP}


@pytest.mark.parametrize(
    "calibration",
    [
        {},
        {k: v for k, v in WHOLE.items() if k != "level"},
        {**WHOLE, "level": "high"},
        {**WHOLE, "level": 1.5},
        {k: v for k, v in WHOLE.items() if k != "step"},
        {k: v for k, v in WHOLE.items() if k != "isolated"},
        {**WHOLE, "step": {"seen": {"total": 0.1}}},
        {**WHOLE, "step": {"seen": {"total": 0.1}, "unseen": {"forward": 0.1}}},
        {**WHOLE, "in_step": {"seen": {}, "unseen": {"default": 0.1}}},
        {**WHOLE, "in_step": {**SCALES, "seen": {"default": 0.1, "matmul": None}}},
        {**WHOLE, "in_step": 3},
    ],
)
def test_a_calibration_that_lacks_a_part(make_release: MakeRelease, calibration) -> None:
    load_predictor(make_release(config={"calibration": WHOLE}))
    with pytest.raises(CheckpointError, match=r"random-v1.*calibration"):
        load_predictor(make_release(config={"calibration": calibration}))
