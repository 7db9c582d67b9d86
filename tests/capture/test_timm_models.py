"""timm models as targets: built on meta tensors, sized, and refused with a remedy."""

from __future__ import annotations

import builtins
import sys
from importlib.util import find_spec

import pytest

from predictor.capture import timm_models
from predictor.capture.target import capture_target
from predictor.capture.timm_models import build_timm, split_target
from predictor.errors import CaptureError, MissingExtraError, UnknownTargetError
from predictor.lower.eager import lower_eager

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("timm:resnet50", ("resnet50", None)),
        ("timm:resnet50@288", ("resnet50", 288)),
        ("timm:resnet50.a1_in1k@64", ("resnet50.a1_in1k", 64)),
    ],
)
def test_name_and_size(target, expected):
    assert split_target(target) == expected


@pytest.mark.parametrize("target", ["timm:", "timm:resnet50@", "timm:resnet50@0", "timm:a@-3"])
def test_targets_that_are_written_otherwise(target):
    with pytest.raises(UnknownTargetError, match="timm:NAME@SIZE"):
        split_target(target)


def test_a_convolutional_net_takes_any_size():
    # ResNet-18: 11,689,512 parameters, 1.8 GMACs at 224 pixels (the paper's table 1)
    graph = capture_target("timm:resnet18", batch=3)
    work = graph.workload
    assert (work.name, work.batch, work.parameters) == ("timm:resnet18", 3, 11_689_512)
    flops = sum(k.matmul_flops for k in lower_eager(graph).kernels)
    assert flops == pytest.approx(3 * 2 * 1.814e9, rel=1e-3)
    small = lower_eager(capture_target("timm:resnet18@112", batch=3))
    # a quarter of the pixels, but 4 x 4 instead of 3.5 x 3.5 at the end
    assert sum(k.matmul_flops for k in small.kernels) == pytest.approx(flops / 4, rel=0.1)


def test_a_transformer_is_built_for_the_size_that_is_asked():
    model = build_timm("vit_tiny_patch16_224", image_size=64)
    assert model.input_shape == (3, 64, 64)
    assert tuple(model.module.pos_embed.shape) == (1, 17, 192)  # 4 x 4 patches and the class token


def test_attention_fused_or_written_out():
    def calls(*, fused):
        model = build_timm("vit_tiny_patch16_224", fused_attention=fused)
        assert model.written_out_attention == fused
        from predictor.capture.torch import capture_module

        graph = capture_module(model.module, model.images(2))
        return [k.op for k in lower_eager(graph).kernels]

    fused, parts = calls(fused=True), calls(fused=False)
    assert (fused.count("attention"), fused.count("softmax")) == (12, 0)
    assert (parts.count("attention"), parts.count("softmax"), parts.count("bmm")) == (0, 12, 24)


def test_nothing_of_timm_stays_switched():
    timm = timm_models.load_timm()
    before = timm.layers.config._USE_FUSED_ATTN
    build_timm("vit_tiny_patch16_224", fused_attention=False)
    assert before == timm.layers.config._USE_FUSED_ATTN


def test_an_unknown_name_names_near_ones():
    with pytest.raises(UnknownTargetError, match="resnet50"):
        capture_target("timm:resnet5O")


def test_a_size_that_the_model_cannot_have():
    with pytest.raises(CaptureError):
        capture_target("timm:vit_tiny_patch16_224@8")


def test_a_sequence_length_is_refused():
    with pytest.raises(CaptureError, match="takes images"):
        capture_target("timm:resnet18", seq=128)


def test_without_timm_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "timm":
            raise ImportError("No module named 'timm'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"-c constraints.txt -e '.\[zoo\]'"):
        build_timm("resnet18")


def test_fast_norms_are_set_on_that_model_alone():
    assert build_timm("vit_tiny_patch16_224", fast_norm=True).fast_norms
    assert not build_timm("vit_tiny_patch16_224").fast_norms


def test_branches_are_folded_where_there_are_some():
    plain = build_timm("repvgg_a0")
    folded = build_timm("repvgg_a0", reparameterized=True)
    assert plain.folds and not folded.folds
    assert all(p.is_meta for p in folded.module.parameters())
    counts = [sum(p.numel() for p in m.module.parameters()) for m in (plain, folded)]
    assert counts[1] < counts[0]
    assert not build_timm("resnet10t").folds
