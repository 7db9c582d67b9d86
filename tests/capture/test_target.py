"""Named targets: zoo names and the user's own files."""

import pytest
import torch

from predictor.capture.target import capture_target
from predictor.errors import CaptureError, NotYetError, UnknownTargetError

FILE = """
import torch
from torch import nn
import beside


def plain():
    return nn.Linear(8, 4), torch.empty(2, 8)


def sized(batch=2, seq=3):
    return nn.Embedding(10, 4), {"input": torch.zeros(batch, seq, dtype=torch.long)}


def several():
    return nn.Bilinear(3, 4, 5), [torch.empty(2, 3), torch.empty(2, 4)]


def wrong():
    return nn.Linear(8, 4)


def not_a_module():
    return "model", torch.empty(1)


def fails():
    raise ValueError("no weights here")


def image():
    return nn.Conv2d(3, 4, 1), torch.empty(2, 3, 8, 8)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_zoo_name():
    graph = capture_target("lstm-lm", mode="train", batch=2, seq=5, optimizer="sgd")
    work = graph.workload
    assert (work.name, work.batch, work.tokens, work.optimizer) == ("lstm-lm", 2, 10, "sgd")


@pytest.mark.parametrize(
    ("dtype", "held"), [("bf16", "bf16"), ("amp-fp16", "amp-fp16"), (None, "fp32")]
)
def test_precision(dtype, held, file):
    assert capture_target(f"{file}:plain", dtype=dtype).workload.dtype == held


def test_sizes_reach_a_function_that_takes_them(file):
    graph = capture_target(f"{file}:sized", batch=7, seq=11)
    assert (graph.workload.batch, graph.workload.tokens) == (7, 77)
    assert capture_target(f"{file}:sized", batch=5).workload.tokens == 15


def test_positional_inputs(file):
    assert capture_target(f"{file}:several").nodes[-1].outputs[0].shape == (2, 5)


def test_training_a_file(file):
    graph = capture_target(f"{file}:image", mode="train")
    assert {n.phase for n in graph.nodes} == {"forward", "backward", "optimizer"}


@pytest.mark.parametrize(
    ("function", "options", "kind", "words"),
    [
        ("plain", {"batch": 4}, CaptureError, "takes no 'batch' (it takes no arguments)"),
        ("sized", {"dtype": "fp8"}, NotYetError, "fp8 does not work yet"),
        ("sized", {"dtype": "int4"}, CaptureError, "one of: fp32"),
        ("wrong", {}, CaptureError, "must return (module, inputs), not Linear"),
        ("not_a_module", {}, CaptureError, "must return an nn.Module or a jitted JAX"),
        ("fails", {}, CaptureError, "ValueError: no weights here (mine.py:"),
        ("absent", {}, UnknownTargetError, "has no function 'absent'; it defines: plain, sized"),
        ("", {}, UnknownTargetError, "names no function"),
    ],
)
def test_what_a_file_can_get_wrong(file, function, options, kind, words):
    with pytest.raises(kind) as caught:
        capture_target(f"{file}:{function}", **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("def broken(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("raise SystemExit(3)\n", "SystemExit: 3 (bad.py:1"),
        ("class Own(Exception): ...\nraise Own('at the top')\n", "Own: at the top"),
        ("raise ValueError('x' * 100_000)\n", "x" * 300 + " (bad.py:1"),
    ],
)
def test_a_file_that_does_not_import(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(UnknownTargetError, match="fails to import") as caught:
        capture_target(f"{path}:anything")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gpt2-larg", "nearest: gpt2-large"),
        ("zzz", "bundled: bert-base"),
        ("none.py:f", "no file 'none.py'"),
        ("none.py", "no file 'none.py'"),
    ],
)
def test_unknown_targets(target, words):
    with pytest.raises(UnknownTargetError) as caught:
        capture_target(target)
    assert words in str(caught.value)


def test_the_file_leaves_no_trace(file):
    import sys

    before, modules = list(sys.path), set(sys.modules)
    capture_target(f"{file}:plain")
    assert sys.path == before
    assert set(sys.modules) - modules <= {"beside"}
    assert torch.is_grad_enabled()
