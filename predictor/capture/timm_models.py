"""timm models by name: built on meta tensors, with the input size that they expect.

Needs the `zoo` extra (timm and torchvision).
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from predictor.capture.failures import PROGRAM_ERRORS, first_line
from predictor.errors import CaptureError, MissingExtraError, UnknownTargetError
from predictor.torchvision_ops import ensure_torchvision

PREFIX = "timm:"
DEFAULT_BATCH = 1
_TARGET = re.compile(r"timm:(?P<name>[^@]+)(?:@(?P<size>[1-9][0-9]{0,4}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmModel:
    """A model on meta tensors and what it takes."""

    module: nn.Module
    input_shape: tuple[int, int, int]
    """Channels, height and width of one image."""
    written_out_attention: bool
    """Whether it holds attention that timm can also run without the fused call."""
    fast_norms: bool
    """Whether it holds norms that run in the autocast dtype."""
    folds: bool
    """Whether it has branches that can be folded for deployment (`reparameterized`)."""

    def images(self, batch: int) -> torch.Tensor:
        """A batch of images: shape and dtype only."""
        return torch.empty((batch, *self.input_shape), device="meta")


def split_target(target: str) -> tuple[str, int | None]:
    """Name and image size of `timm:NAME` or `timm:NAME@SIZE`.

    Raises:
        UnknownTargetError: it is neither.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        raise UnknownTargetError(
            f"target {target!r} is not understood: write timm:NAME, or timm:NAME@SIZE for square "
            "images of that many pixels a side (timm:resnet50@288)"
        )
    size = found["size"]
    return found["name"], None if size is None else int(size)


def program(
    target: str, *, batch: int | None = None, seq: int | None = None
) -> tuple[nn.Module, torch.Tensor]:
    """The model that a target names, and its input.

    Args:
        target: `timm:NAME` or `timm:NAME@SIZE`.
        batch: images of the step; `DEFAULT_BATCH` when not given.
        seq: refused: an image has no sequence length.

    Raises:
        UnknownTargetError: timm has no such model, or the target is written otherwise.
        MissingExtraError: timm is not installed.
        CaptureError: `seq` is given, or the model cannot be built at this size.
    """
    name, size = split_target(target)
    if seq is not None:
        raise CaptureError(
            f"{target} takes images: leave the sequence length out, and give their size as "
            f"timm:{name}@SIZE"
        )
    model = build_timm(name, image_size=size)
    return model.module, model.images(DEFAULT_BATCH if batch is None else batch)


def load_timm() -> Any:
    """The timm package.

    Raises:
        MissingExtraError: timm or torchvision is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensure_torchvision()
            import timm
    except ImportError as error:
        raise MissingExtraError(
            f"timm models need timm and torchvision ({error}), which the `zoo` extra brings: "
            "pip install -c constraints.txt -e '.[zoo]'"
        ) from error
    return timm


def is_known(name: str) -> bool:
    """Whether timm has a model of this name, old names included."""
    return bool(load_timm().is_model(name))


def build_timm(
    name: str,
    *,
    image_size: int | None = None,
    fused_attention: bool = True,
    fast_norm: bool = False,
    reparameterized: bool = False,
) -> TimmModel:
    """A timm model without weights, on meta tensors.

    Args:
        name: architecture, with or without a tag (`resnet50`, `resnet50.a1_in1k`).
        image_size: pixels a side of its square input; the model's own when not given.
        fused_attention: False writes attention out as products and a softmax, as timm does under
            PyTorch before 2.0.
        fast_norm: under autocast, layer and group norms run in its dtype instead of fp32 (timm's
            `--fast-norm`).
        reparameterized: branches that train apart are folded into one convolution, as for
            deployment; a model without such branches stays as it is.

    Raises:
        MissingExtraError: timm is not installed.
        UnknownTargetError: timm has no such model.
        CaptureError: the model cannot be built (at this size).
    """
    timm = load_timm()
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise UnknownTargetError(f"timm {timm.__version__} has no model {name!r}{hint}")
    with _attention(timm, fused=fused_attention), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = create_module(timm, name, image_size, device="meta")
            folds = _folds(module)
            if reparameterized and folds:
                built = create_module(timm, name, image_size, device="cpu")  # folding needs numbers
                module = timm.utils.reparameterize_model(built, inplace=True).to("meta")
        except PROGRAM_ERRORS as error:
            size = "" if image_size is None else f" at {image_size} pixels"
            raise CaptureError(
                f"timm cannot build {name}{size}: {type(error).__name__}: {first_line(error)}"
            ) from error
    if fast_norm:
        _set_fast_norms(module)
    shape = _input_shape(module)
    if image_size is not None:
        shape = (shape[0], image_size, image_size)
    held = any(getattr(part, "fused_attn", False) for part in module.modules())
    return TimmModel(
        module=module, input_shape=shape, written_out_attention=held,
        fast_norms=any(getattr(part, "_fast_norm", False) for part in module.modules()),
        folds=folds and not reparameterized,
    )  # fmt: skip


def _folds(module: nn.Module) -> bool:
    """Whether a part of it says how to fold itself."""
    names = ("reparameterize", "fuse", "switch_to_deploy")
    return any(hasattr(part, name) for part in module.modules() for name in names)


def create_module(timm: Any, name: str, image_size: int | None, *, device: str) -> nn.Module:
    """The module on a device; sized where its constructor takes a size, else as it is."""
    with torch.device(device):
        if image_size is not None:
            try:
                sized: nn.Module = timm.create_model(name, pretrained=False, img_size=image_size)
                return sized
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
        made: nn.Module = timm.create_model(name, pretrained=False)
    return made


def _input_shape(module: nn.Module) -> tuple[int, int, int]:
    own = getattr(module, "pretrained_cfg", None) or {}
    channels, height, width = own.get("input_size") or (3, 224, 224)
    return int(channels), int(height), int(width)


def _set_fast_norms(module: nn.Module) -> None:
    """What timm's own switch would do.

    That one must be set before a model is built: models that run themselves while they are built
    cannot ask for autocast on meta tensors.
    """
    for part in module.modules():
        if hasattr(part, "_fast_norm"):
            part._fast_norm = True  # type: ignore[assignment]


@contextmanager
def _attention(timm: Any, *, fused: bool) -> Iterator[None]:
    """The own switch of timm for fused attention while a model is built."""
    config = timm.layers.config
    held = config._USE_FUSED_ATTN
    config._USE_FUSED_ATTN = max(held, 1) if fused else 0
    try:
        yield
    finally:
        config._USE_FUSED_ATTN = held
