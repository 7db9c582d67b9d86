"""Convolutions by algorithm, recurrent steps, vector products: against what can be worked out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.columns import COLUMNS, node_features
from predictor.features.library import LIBRARY_COLUMNS, STEP_COLUMNS, is_old
from predictor.features.recurrent import CALL_US, STEP_US
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device, Software

V100 = resolve_device("nvidia-v100-sxm2-16gb")
NEW = Software(framework="deepbench", framework_version="cuda 10.1.243, cudnn 7.6.2.24")
OLD = Software(framework="deepbench", framework_version="cuda 8.0.61, cudnn 6.0")


def columns(table, calls, *, device: Device = V100, software: Software = NEW):
    """Value of each column, and the time that they expect, microseconds."""
    found = node_features(table(calls, context="isolated"), device, software)
    values = {name: found.x[:, i].astype(float) for i, name in enumerate(COLUMNS)}
    prior = values["log_tiled"] + values["log_library"]
    return values, found.roofline.base_us * np.exp(prior)


def conv(batch, c_in, size, c_out, window, *, stride=1, op="conv", dtype="fp32"):
    out = size // stride
    named = {
        "batch": batch, "c_in": c_in, "h_in": size, "w_in": size, "c_out": c_out,
        "kh": window, "kw": window, "groups": 1, "h_out": out, "w_out": out,
    }  # fmt: skip
    return op, tuple(named[d] for d in OPS[op].dims), dtype


def rnn(hidden, batch, steps, gates, *, op="rnn", dtype="fp32", size=0):
    named = {
        "steps": steps, "batch": batch, "input_size": size, "hidden_size": hidden, "layers": 1,
        "directions": 1, "gates": gates,
    }  # fmt: skip
    return op, tuple(named[d] for d in OPS[op].dims), dtype


def test_steps_wait_for_each_other(table):
    calls = [rnn(1024, 32, steps, 3) for steps in (1, 100, 200)]
    _, us = columns(table, calls)
    assert us[2] - us[1] == pytest.approx(100 * (us[1] - CALL_US) / 100, rel=1e-3)
    assert us[0] > CALL_US + STEP_US


def test_every_step_streams_weights_that_no_cache_holds(table):
    values, us = columns(table, [rnn(2816, 1, 1000, 3)])
    weights_us = 3 * 2816**2 * 4 / 900e3  # at the peak of the memory
    assert 1000 * weights_us < us[0] < 2500 * weights_us
    assert values["log_step_stream"][0] > -1.0
    assert columns(table, [rnn(256, 1, 1000, 4)])[0]["log_step_stream"][0] < -1.0


def test_backward_adds_the_gradient_of_the_weights(table):
    whole = rnn(1024, 64, 50, 4, op="rnn_backward")
    values, _ = columns(table, [rnn(1024, 64, 50, 4), whole])
    assert values["beside_share"][0] == 0.0 and values["beside_share"][1] > 0.02
    kernels = table([whole], context="isolated")
    alone = node_features(replace(kernels, flops=kernels.flops / 2), V100, NEW)
    assert alone.x[0, COLUMNS.index("beside_share")] == 0.0


def test_an_old_library_has_no_kernels_for_few_rows(table):
    calls = [rnn(1760, 32, 50, 1)]
    values, us = columns(table, calls)
    before, slow = columns(table, calls, software=OLD)
    assert slow[0] > 1.2 * us[0]
    for name in STEP_COLUMNS:  # each of them has columns of its own
        assert values[f"old_{name}"][0] == before[name][0] == 0.0
    assert before["old_log_steps"][0] == values["log_steps"][0] == pytest.approx(np.log(50))


def test_which_releases_are_old():
    amd = Software(framework="deepbench", framework_version="rocm 1.7.1, miopen 1.3")
    assert is_old(OLD) and is_old(amd)
    assert not is_old(NEW) and not is_old(Software()) and not is_old(Software(framework_version=""))


def test_inputs_of_all_steps_are_one_product(table):
    _, us = columns(table, [rnn(512, 16, 200, 4), rnn(512, 16, 200, 4, size=512)])
    assert us[0] < us[1] < 1.2 * us[0]


def test_winograd_where_it_pays(table):
    large = [conv(16, 256, 28, 512, 3), conv(16, 256, 28, 512, 5), conv(16, 1, 224, 8, 3)]
    values, us = columns(table, large)
    direct_us = 2.0 * 16 * 28 * 28 * 512 * 256 * 9 / 15.7e6
    assert us[0] < 0.8 * direct_us and values["log_winograd"][0] < 0.0
    assert values["log_winograd"][1] == 3.0  # not for this window
    assert values["log_winograd"][2] > 0.0  # transforms of a thin image cost more than they save
    half, _ = columns(table, [conv(16, 256, 28, 512, 3, dtype="fp16")])
    assert half["log_winograd"][0] == 3.0  # matrix units take the direct product


def test_few_channels_are_padded_on_matrix_units(table):
    calls = [conv(16, 3, 224, 64, 3, dtype="fp16"), conv(16, 64, 224, 64, 3, dtype="fp16")]
    values, _ = columns(table, calls)
    assert values["log_channel_padding"] == pytest.approx([np.log(8 / 3), 0.0])


def test_a_gradient_has_another_product_than_its_forward(table):
    calls = [conv(16, 64, 56, 256, 1, op=op) for op in ("conv", "conv_dgrad", "conv_wgrad")]
    values, _ = columns(table, calls)
    places = np.log(16 * 56 * 56)
    sizes = [values[f"log_own_{name}"] for name in ("m", "n", "k")]
    assert [s[0] for s in sizes] == pytest.approx([places, np.log(256), np.log(64)])
    assert [s[1] for s in sizes] == pytest.approx([places, np.log(64), np.log(256)])
    assert [s[2] for s in sizes] == pytest.approx([np.log(256), np.log(64), places])


def test_one_tile_walks_all_of_k_forward(table):
    calls = [conv(1, 832, 7, 128, 5), conv(1, 832, 7, 128, 5, op="conv_wgrad")]
    _, us = columns(table, calls)
    assert us[0] > 3.0 * us[1]


def test_a_window_with_strides_reads_less(table):
    _, us = columns(table, [conv(16, 256, 56, 64, 1, stride=s, dtype="fp16") for s in (1, 2)])
    assert us[1] < 0.7 * us[0]


def test_only_a_frameworks_images_are_moved_to_channels_last(table):
    calls = [conv(16, 256, 56, 64, 1, dtype="fp16")]
    _, own = columns(table, calls)
    _, framework = columns(table, calls, software=Software())
    assert framework[0] > 2.0 * own[0]


def test_vector_lanes_feed_narrow_tiles(table):
    calls = [("matmul", (1, 1760, 32, 1760), d) for d in ("fp32", "fp16")]
    values, us = columns(table, calls)
    assert values["log_library"][0] < -0.2 and values["log_library"][1] == 0.0
    assert us[0] > 2.0 * 1760 * 32 * 1760 / 15.7e6


def test_int8_products_in_plain_layouts_take_vector_lanes(table):
    calls, t4 = [("matmul", (1, 7680, 1500, 2560), "int8")], resolve_device("nvidia-t4")
    _, us = columns(table, calls, device=t4)
    _, framework = columns(table, calls, device=t4, software=Software())
    assert us[0] > 2.5 * framework[0]
    _, pascal = columns(table, calls, device=resolve_device("nvidia-titan-xp"))
    ideal = 2.0 * 7680 * 1500 * 2560 / 48e6
    assert ideal < pascal[0] < 1.5 * ideal


def test_int8_is_told(table):
    values, _ = columns(table, [conv(1, 64, 56, 64, 3, dtype=d) for d in ("fp16", "fp32")])
    assert values["int8"].tolist() == [0.0, 0.0]
    t4 = resolve_device("nvidia-t4")
    assert columns(table, [conv(1, 64, 56, 64, 3, dtype="int8")], device=t4)[0]["int8"][0] == 1.0


def test_without_units_there_are_no_times(table):
    calls = [conv(16, 64, 56, 64, 3), rnn(512, 16, 25, 4)]
    values, _ = columns(table, calls, device=replace(V100, units=None))
    assert values["log_library"].tolist() == [0.0, 0.0]
    assert values["log_steps"].tolist() == pytest.approx([0.0, np.log(25)])


def test_other_kernels_have_none_of_it(table, mixed):
    values, _ = columns(table, [c for c in mixed if c[0] in ("relu", "softmax", "attention")])
    told = [name for name in LIBRARY_COLUMNS if (values[name] != 0.0).any()]
    assert told == []
