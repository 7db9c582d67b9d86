"""The graph bank: written and read, graphs at any batch, and the one that is shipped."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module
from predictor.errors import DataError
from predictor.features.table import table_from_graph
from predictor.lower.eager import lower_eager
from predictor.traces.batch_affine import CAPTURE_BATCH, affine_graph
from predictor.traces.graph_bank import ANY_BATCH, VARIANTS, load_bank
from predictor.traces.graph_bank_files import FILES, graph_id, write_bank


def net():
    with torch.device("meta"):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip


def captured(batch, mode):
    images = torch.empty(batch, 3, 32, 32, device="meta")
    return capture_module(net(), images, mode=mode, amp="fp16", optimizer="sgd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank")
    graphs, index = {}, []
    for mode in ("infer", "train"):
        graph = affine_graph(captured(CAPTURE_BATCH, mode), half="fp16")
        graphs[graph_id(graph)] = graph
        index.append({"model": "net", "size": 32, "mode": mode, "variant": "amp",
                      "layout": "nchw", "batch_from": 2, "batch_to": ANY_BATCH,
                      "graph": graph_id(graph)})  # fmt: skip
    write_bank(path, graphs, pd.DataFrame(index))
    return path


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_table_is_that_of_a_capture(folder, mode):
    bank = load_bank(folder)
    graph = bank.graph(bank.find("net", 32, mode, "amp", "nchw"))
    real = lower_eager(captured(48, mode))
    wanted, found = table_from_graph(real, "isolated"), graph.table(48, context="isolated")
    assert graph.kernels == len(wanted)
    for name in ("op", "phase", "dtype", "dims", "flops", "read_bytes", "write_bytes", "launches",
                 "context"):  # fmt: skip
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
        assert getattr(found, name).dtype.kind == getattr(wanted, name).dtype.kind
    assert set(map(tuple, graph.edge_index.T.tolist())) == set(real.edges)
    assert graph.host_calls == real.host_ops


def test_half_is_the_readers_choice(folder):
    bank = load_bank(folder)
    graph = bank.graph(bank.find("net", 32, "infer", "amp", "nchw"))
    low, other = graph.table(4), graph.table(4, half="bf16")
    assert set(low.dtype) - {"fp32"} == {"fp16"}
    assert set(other.dtype) - {"fp32"} == {"bf16"}
    np.testing.assert_array_equal(low.read_bytes, other.read_bytes)


def test_what_the_bank_has_not(folder):
    bank = load_bank(folder)
    assert bank.find("net", 32, "infer", "fp32", "nchw") is None
    assert bank.find("net", 64, "infer", "amp", "nchw") is None
    assert bank.find("net", 32, "infer", "amp", "nchw", batch=1) is None
    assert bank.find("net", 32, "infer", "amp", "nchw", batch=2) is not None
    with pytest.raises(DataError, match="import the rows again"):
        bank.graph("timm-0000000000000000")


@pytest.mark.parametrize("given", [{"batch": 0}, {"batch": 4, "half": "fp8"}])
def test_tables_that_cannot_be(folder, given):
    bank = load_bank(folder)
    with pytest.raises(DataError, match="at least 1"):
        bank.graph(bank.find("net", 32, "infer", "amp", "nchw")).table(**given)


def test_equal_programs_have_one_id():
    first, second = (affine_graph(captured(CAPTURE_BATCH, "infer"), half="fp16") for _ in "ab")
    third = affine_graph(captured(CAPTURE_BATCH, "train"), half="fp16")
    assert graph_id(first) == graph_id(second) != graph_id(third)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_damaged_file_is_named(folder, tmp_path, name):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=name):
        load_bank(tmp_path)
    (tmp_path / f"{name}.parquet").unlink()
    with pytest.raises(DataError, match="missing"):
        load_bank(tmp_path)


# -- the bank that is shipped -----------------------------------------------------------------


@pytest.fixture(scope="module")
def bank():
    return load_bank()


def test_the_index_is_whole(bank):
    index = bank.index
    assert set(index["variant"]) <= set(VARIANTS)
    assert set(index["mode"]) == {"infer", "train"}
    assert set(index["fold"]) == {0, 1, 2, 3, 4}
    assert index["graph"].isin(list(bank.ids)).all()
    assert set(bank.ids) == set(index["graph"])
    keys = ["model", "size", "mode", "variant", "layout", "batch_from"]
    assert not index.duplicated(keys).any()
    assert (index["batch_from"] == 2).all()


def test_most_models_are_there(bank):
    # 1,822 inference and 947 training programs, of which 28 names left timm
    counts = bank.index.drop_duplicates(["model", "size", "mode"]).groupby("mode").size()
    assert counts["infer"] > 0.98 * 1790
    assert counts["train"] > 0.98 * 925


def test_a_known_model(bank):
    graph = bank.graph(bank.find("resnet50", 224, "infer", "amp", "nchw"))
    table = graph.table(64)
    conv = table.flops[np.isin(table.op, [i for i in set(table.op) if _is(i, "conv", "linear")])]
    assert conv.sum() == pytest.approx(64 * 2 * 4.09e9, rel=0.01)  # 4.09 GMACs an image
    producer, consumer = graph.edge_index
    assert (producer < consumer).all()
    assert consumer.max() == graph.kernels - 1
    row = bank.index[bank.index["graph"] == graph.graph_id].iloc[0]
    assert row["parameters"] in (-1, 25_557_032)


def _is(op, *names):
    from predictor.features.table import OP_NAMES

    return OP_NAMES[op] in names


@pytest.mark.skipif("not __import__('importlib.util').util.find_spec('timm')")
@pytest.mark.parametrize(
    ("model", "size", "layout", "batch"),
    [("resnet18", 224, "nchw", 32), ("deit_tiny_patch16_224", 224, "nchw", 3)],
)
def test_shipped_graphs_are_those_of_today(bank, model, size, layout, batch):
    from predictor.capture.timm_models import build_timm

    built = build_timm(model, image_size=size, fast_norm=True)
    real = lower_eager(capture_module(built.module, built.images(batch), amp="fp16"))
    found = bank.graph(bank.find(model, size, "infer", "amp", layout)).table(batch)
    wanted = table_from_graph(real)
    for name in ("op", "dtype", "dims", "flops", "read_bytes", "write_bytes", "launches"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
