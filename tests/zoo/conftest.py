"""Libraries of models beside a PyTorch without CUDA."""

import warnings

import pytest

from predictor.torchvision_ops import ensure_torchvision


@pytest.fixture(scope="session", autouse=True)
def torchvision_ops():
    """transformers and timm import torchvision where it is there, also one of another build."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ensure_torchvision()
        yield
