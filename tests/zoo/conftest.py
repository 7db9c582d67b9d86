"""Libraries of models beside a PyTorch without CUDA."""

import warnings

import pytest
import torch

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@pytest.fixture(scope="session", autouse=True)
def torchvision_ops():
    """torchvision built for CUDA names ops that a CPU build of PyTorch lacks: declare them."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}{SIGNATURE}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield library
