"""What is used of Lightning, imported where a torchvision of another build is about too."""

from predictor.torchvision_ops import ensure_torchvision

ensure_torchvision()

from lightning import LightningModule, Trainer, seed_everything  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    Callback,
    LambdaCallback,
    ModelCheckpoint,
    TQDMProgressBar,
)

__all__ = [
    "Callback", "LambdaCallback", "LightningModule", "ModelCheckpoint", "TQDMProgressBar",
    "Trainer", "seed_everything",
]  # fmt: skip
