"""Compiled programs as a checkpoint knows them: eager kernels with less traffic, or fused ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from predictor import capture
from predictor.errors import CaptureError
from predictor.features.compiled import COMPILED_GRAPHS, compiled_program
from predictor.features.table import table_from_graph
from predictor.hardware.catalogue import resolve_device
from predictor.lower.eager import lower_eager
from predictor.nn.phases import host_us

T4 = resolve_device("nvidia-t4")


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))


@pytest.fixture(scope="module")
def graph():
    return capture(mlp(), torch.empty(32, 64))


def test_a_network_of_eager_graphs_gets_them_with_what_fusion_leaves(graph):
    found, eager = compiled_program(graph, T4).kernels, lower_eager(graph)
    same = [(k.op, k.dims, k.flops) for k in found.kernels]
    assert same == [(k.op, k.dims, k.flops) for k in eager.kernels]
    gelu, norm = found.kernels[1:3]
    assert gelu.write_bytes == 0  # the norm is its one reader
    assert norm.read_bytes < eager.kernels[2].read_bytes
    assert found.kernels[0].bytes == eager.kernels[0].bytes
    assert found.edges == eager.edges


def test_a_network_of_fused_graphs_gets_those(graph):
    found = compiled_program(graph, T4, graphs="inductor-1").kernels
    assert [k.op for k in found.kernels] == ["linear", "layer_norm", "linear"]
    norm = found.kernels[1]  # activation, scale and shift in; normalised rows out
    assert (norm.read_bytes, norm.write_bytes) == (4 * (32 * 128 + 2 * 128), 4 * 32 * 128)
    assert found.edges == ((0, 1), (1, 2))


def test_processors_keep_the_kernels_of_eager(graph):
    processor = resolve_device("intel-i9-10940x")
    fused, eager = (compiled_program(graph, processor, graphs=g) for g in COMPILED_GRAPHS[::-1])
    assert fused == eager


@pytest.mark.parametrize("graphs", ["eager", "inductor-1"])
def test_replay_costs_the_host_one_launch_a_phase(graph, graphs):
    plain = compiled_program(graph, T4, graphs=graphs).kernels
    replayed = compiled_program(graph, T4, graphs=graphs, mode="reduce-overhead").kernels
    table = table_from_graph(plain)
    rows = table.phase == 0
    assert replayed.kernels == plain.kernels
    assert host_us(replayed, table, "forward", rows) < host_us(plain, table, "forward", rows)
    assert host_us(replayed, table, "backward", ~rows) == 0


def test_convolutions_are_turned_in_inference_alone():
    net, x = nn.Conv2d(64, 256, 3), torch.empty(4, 64, 16, 16)
    assert compiled_program(capture(net, x), T4).channels_last
    assert not compiled_program(capture(net, x, mode="train"), T4).channels_last


def test_the_estimate_says_so_and_takes_the_place_of_what_capture_said(graph, network):
    from predictor import estimate

    told = replace(graph.workload, warnings=("torch.compile is left out: …", "other"))
    one = estimate(replace(graph, workload=told), device=T4, compile=True, checkpoint=network)
    assert one.software.mode == "compiled"
    assert not any(w.startswith("torch.compile is left out") for w in one.warnings)
    assert any(w.startswith("torch.compile: the kernels of eager") for w in one.warnings)
    assert "other" in one.warnings


def test_compiled_training_says_that_it_was_never_measured(network):
    from predictor import estimate

    net, x = nn.Linear(8, 8), torch.ones(2, 8)
    for mode, times in (("train", 1), ("infer", 0)):
        one = estimate(net, x, device=T4, mode=mode, compile=True, checkpoint=network)
        assert sum("compiled training was never measured" in w for w in one.warnings) == times
        eager = estimate(net, x, device=T4, mode=mode, checkpoint=network)
        assert not any("never measured" in w for w in eager.warnings)


@pytest.mark.parametrize(
    ("asked", "runtime", "said"),
    [
        ("fastest", None, "one of True, 'default', 'reduce-overhead'"),
        (True, "fused", "leave compile"),
    ],
)
def test_other_modes_and_runtimes_are_refused(graph, network, asked, runtime, said):
    from predictor import estimate

    with pytest.raises(CaptureError, match=said):
        estimate(graph, device=T4, compile=asked, runtime=runtime, checkpoint=network)
