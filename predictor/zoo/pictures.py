"""Vision models of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from predictor.zoo.convnext import ConvNext
from predictor.zoo.entry import Entry, images
from predictor.zoo.unet import Unet, noisy_latents
from predictor.zoo.unet_blocks import UnetConfig
from predictor.zoo.vision import BasicBlock, ResNet, Vit


def _resnet(name: str, blocks: tuple[int, int, int, int], parameters: int, batch: int) -> Entry:
    return Entry(
        build=partial(ResNet, blocks), parameters=parameters, batch=batch, inputs=images,
        takes="images", description=f"{name} v1.5, 224 x 224",
    )  # fmt: skip


PICTURES: Mapping[str, Entry] = {
    "resnet-18": Entry(
        build=partial(ResNet, (2, 2, 2, 2), BasicBlock),
        parameters=11_689_512,
        batch=128,
        inputs=images,
        takes="images",
        description="ResNet-18, 224 x 224",
    ),
    "resnet-50": _resnet("ResNet-50", (3, 4, 6, 3), 25_557_032, 64),
    "resnet-101": _resnet("ResNet-101", (3, 4, 23, 3), 44_549_160, 64),
    "resnet-200": _resnet("ResNet-200", (3, 24, 36, 3), 64_673_832, 32),
    "vit-b-16": Entry(
        build=Vit,
        parameters=86_567_656,
        batch=64,
        inputs=images,
        takes="images",
        description="ViT-B/16, 224 x 224",
    ),
    "convnext-base": Entry(
        build=ConvNext,
        parameters=88_591_464,
        batch=64,
        inputs=images,
        takes="images",
        description="ConvNeXt-B, 224 x 224",
    ),
    "sd-1.5-unet": Entry(
        build=partial(Unet, UnetConfig()),
        parameters=859_520_964,
        batch=2,
        inputs=noisy_latents,
        takes="latents",
        description="denoising U-Net of Stable Diffusion 1.5, latents of 64 x 64 (512 x 512)",
    ),
}
"""Vision models by name."""
