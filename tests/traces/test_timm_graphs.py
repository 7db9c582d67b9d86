"""Which graph a row has: its own, else that of a program known to launch the same kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.features.table import OP_NAMES
from predictor.graph.ir import PHASES
from predictor.traces.batch_affine import COLUMNS, DTYPE_CODES, AffineGraph
from predictor.traces.graph_bank import ANY_BATCH, load_bank
from predictor.traces.graph_bank_files import write_bank
from predictor.traces.sources.timm_graphs import OTHER_MODEL, GraphFinder

PROGRAMS = (
    ("convolutions", "infer", "amp", "nchw", "relu"),
    ("convolutions", "train", "amp-unfused", "nchw", "relu"),
    ("attentive", "infer", "amp", "nchw", "attention"),
    ("attentive", "infer", "amp", "nhwc", "attention"),
    ("attentive", "train", "amp-unfused", "nchw", "softmax"),
    ("unseen", "train", "amp-unfused", "nchw", "relu"),
    ("normalised", "infer", "amp", "nchw", "layer_norm"),
    ("branchy", "infer", "amp", "nchw", "relu"),
    ("branchy", "infer", "amp-reparam", "nchw", "add"),
)
"""Model, mode, variant, layout and the one op of each program in the bank."""
FOLDED_PARAMETERS, PARAMETERS = 9_100_000, 10_000_000


@pytest.fixture(scope="module")
def finder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bank")
    graphs, index = {}, []
    for model, mode, variant, layout, op in PROGRAMS:
        rows = np.zeros((1, COLUMNS), dtype=np.int64)
        rows[0, 0], rows[0, 2] = OP_NAMES.index(op), DTYPE_CODES.index("half")
        name = f"{model}-{mode}-{variant}-{layout}"
        graphs[name] = AffineGraph(
            rows=rows, edges=np.empty((0, 2), dtype=np.int64), host_calls=(1,) * len(PHASES)
        )
        index.append({
            "model": model, "size": 224, "mode": mode, "variant": variant, "layout": layout,
            "batch_from": 2, "batch_to": ANY_BATCH, "graph": name,
            "parameters": FOLDED_PARAMETERS if variant.endswith("reparam") else PARAMETERS,
        })  # fmt: skip
    write_bank(folder, graphs, pd.DataFrame(index))
    return GraphFinder(load_bank(folder))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # its own
        (("attentive", "infer", "amp", "nhwc"), "attentive-infer-amp-nhwc"),
        (("unseen", "train", "amp-unfused", "nchw"), "unseen-train-amp-unfused-nchw"),
        # the contiguous one
        (("convolutions", "infer", "amp", "nhwc"), "convolutions-infer-amp-nchw"),
        # nothing to write out: the other form of attention is the same program
        (("convolutions", "infer", "amp-unfused", "nhwc"), "convolutions-infer-amp-nchw"),
        (("convolutions", "train", "amp", "nchw"), "convolutions-train-amp-unfused-nchw"),
        (("normalised", "infer", "amp-unfused-fastnorm", "nchw"), "normalised-infer-amp-nchw"),
        # norms in another dtype
        (("normalised", "infer", "amp-unfused", "nchw"), ""),
        # attention, or nobody knows: another program
        (("attentive", "infer", "amp-unfused", "nchw"), ""),
        (("attentive", "train", "amp", "nchw"), ""),
        (("unseen", "train", "amp", "nchw"), ""),
        # other precisions stand for nothing else
        (("convolutions", "infer", "bf16", "nchw"), ""),
    ],
)
def test_graph_of_a_row(finder, asked, found):
    model, *others = asked
    assert finder.find(model, 224, *others) == found


def test_another_size_is_another_program(finder):
    assert finder.find("convolutions", 288, "infer", "amp", "nchw") == ""


@pytest.mark.parametrize(
    ("millions", "found"),
    [
        (10.0, "branchy-infer-amp-nchw"),
        (10.02, "branchy-infer-amp-nchw"),  # 0.2% are counted otherwise
        (9.1, "branchy-infer-amp-reparam-nchw"),
        (float("nan"), "branchy-infer-amp-nchw"),  # not published
        (9.5, OTHER_MODEL),
        (31.0, OTHER_MODEL),
    ],
)
def test_published_parameters_tell_folded_and_renamed_models(finder, millions, found):
    asked = ("branchy", 224, "infer", "amp", "nchw")
    assert finder.find_counted(*asked, millions * 1e6) == found


def test_parameters_of_a_model_without_a_graph_tell_nothing(finder):
    assert finder.find_counted("none", 224, "infer", "amp", "nchw", 1e6) == ""
