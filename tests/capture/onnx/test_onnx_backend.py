"""The models that the `onnx` package tests backends with: each is captured, or refused in words."""

from pathlib import Path

import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from predictor.capture.onnx.capture import capture_onnx
from predictor.errors import CaptureError
from predictor.lower.eager import lower_eager
from predictor.lower.inference import lower_inference

FILES = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))
SIZES = {"test_sequence_model8": {"n": 6}}
"""Sizes that files leave open."""
REFUSED = {"test_sequence_model8": "where it cuts depend"}
"""What a run alone knows: where a sequence is cut."""
LEAST_SHARE = 0.95


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name + "/" + p.stem)
def test_model_files(path: Path):
    name = path.parent.name
    if name in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[name]):
            capture_onnx(path, dims=SIZES.get(name))
        return
    graph = capture_onnx(path)
    eager = lower_eager(graph, allow_opaque=True)
    fused = lower_inference(graph, allow_opaque=True)
    assert len(fused.kernels) <= len(eager.kernels)
    total = sum(k.matmul_flops for k in eager.kernels)
    assert sum(k.matmul_flops for k in fused.kernels) == pytest.approx(total)


@pytest.mark.filterwarnings("ignore")  # the package's own, of values that it makes overflow
def test_models_of_every_operator():
    cases = collect_testcases(None)[::3]
    captured, refused = 0, []
    for case in cases:
        try:
            lower_eager(capture_onnx(case.model), allow_opaque=True)
            captured += 1
        except CaptureError as error:
            refused.append((case.name, str(error)))
    assert captured >= LEAST_SHARE * len(cases), refused
    assert all(text for _, text in refused)
