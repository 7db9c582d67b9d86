"""A fitted roofline: factors by op class, a launch on kernels alone, classes read by name."""

from __future__ import annotations

import pytest
import torch

from predictor.features.table import OP_NAMES
from predictor.graph.ops import OP_CLASSES, OPS, TOKENS
from predictor.nn.fitted_roofline import LAUNCH, LOG_RATIO, NO_LAUNCH_US, roofline_of

MATMUL = OP_CLASSES.index("matmul")


def stored() -> dict[str, torch.Tensor]:
    ratio, launch = torch.zeros(len(OP_CLASSES)), torch.zeros(len(OP_CLASSES))
    ratio[MATMUL], launch[MATMUL] = 0.7, 9.0
    return {LOG_RATIO: ratio, LAUNCH: launch}


def test_a_class_has_its_own_factor_and_launch() -> None:
    model = roofline_of(stored(), ("nvidia-t4",), list(OP_CLASSES))
    gemm, softmax = TOKENS.index("gemm"), TOKENS.index("softmax")
    none = torch.zeros(2)
    ratio = model.log_ratio(
        torch.zeros(2, 1), torch.tensor([gemm, softmax]), torch.zeros(2, 0), none, none
    )
    assert ratio.tolist() == [pytest.approx([0.7] * 3), [0.0] * 3]
    op = OP_NAMES.index(next(name for name in OP_NAMES if OPS[name].op_class == "matmul"))
    host = model.host_us(torch.tensor([op, op]), none, torch.tensor([1.0, 0.0]), none)
    assert host.tolist() == pytest.approx([9.0, NO_LAUNCH_US])
    assert model.measured_us(torch.tensor(4.0), host[0]).item() == pytest.approx(13.0)


def test_classes_are_read_by_name() -> None:
    backwards = {name: tensor.flip(0) for name, tensor in stored().items()}
    model = roofline_of(backwards, (), list(reversed(OP_CLASSES)))
    assert torch.equal(model.log_ratio_C, stored()[LOG_RATIO])
    fewer = {name: tensor[[MATMUL]] for name, tensor in stored().items()}
    assert torch.equal(roofline_of(fewer, (), ["matmul"]).launch_us_C, stored()[LAUNCH])


@pytest.mark.parametrize("classes", [None, "matmul", ["matmul", "magic"], ["matmul"]])
def test_other_classes_are_refused(classes: object) -> None:
    with pytest.raises(ValueError, match=r"op.classes"):
        roofline_of(stored(), (), classes)


def test_a_missing_tensor_is_refused() -> None:
    tensors = stored()
    del tensors[LAUNCH]
    with pytest.raises(ValueError, match=r"roofline\.launch_us"):
        roofline_of(tensors, (), list(OP_CLASSES))
