"""The timm programs that the benchmark tables time, and their capture, a variant at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from meta_memo import MetaMemo
from torch.nn import functional

from predictor.capture.timm_models import TimmModel, build_timm
from predictor.capture.torch import capture_module, capture_step
from predictor.graph.ir import OpGraph
from predictor.traces.batch_affine import CAPTURE_BATCH, AffineGraph, affine_graph
from predictor.traces.sources.timm import campaign_of

VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "infer": (
        ("amp", "nchw"), ("amp", "nhwc"), ("bf16", "nchw"), ("amp-unfused", "nchw"),
        ("amp-unfused", "nhwc"), ("fp32", "nchw"),
    ),
    "train": (("amp-unfused", "nchw"), ("amp-unfused", "nhwc")),
}  # fmt: skip
"""Variant and layout of the programs that tables time, by mode."""
SAME = "same as fused"
"""Kept in place of a graph that a model without attention shares with its `amp` variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One program to capture."""

    model: str
    size: int
    mode: str
    variant: str
    layout: str

    def path(self, work: Path) -> Path:
        """Where its graph is kept."""
        return work / f"{self.model}@{self.size}-{self.mode}-{self.variant}-{self.layout}.pickle"


def tasks_of(models: pd.DataFrame) -> list[Task]:
    """All programs; of any prefix of the models a fair sample."""
    keys = [(str(m), int(s), str(o)) for m, s, o in models[["model", "img_size", "mode"]].values]
    keys.sort(key=lambda k: hashlib.sha256(f"{k[0]}@{k[1]}".encode()).digest())
    return [
        Task(model=model, size=size, mode=mode, variant=variant, layout=layout)
        for model, size, mode in keys
        for variant, layout in VARIANTS[mode]
    ]


def measured_first(tasks: Sequence[Task], tables: Path | None) -> list[Task]:
    """The same programs, those that a benchmark table times first, contiguous ones before."""
    timed: set[Task] = set()
    for path in [] if tables is None else sorted(tables.rglob("benchmark-*.csv")):
        campaign = campaign_of(path.name)
        if campaign is None:
            continue
        mode, rows = campaign.mode, pd.read_csv(path)
        timed |= {
            Task(model=m, size=int(s), mode=mode, variant=campaign.variant, layout=campaign.layout)
            for m, s in zip(rows["model"], rows[f"{mode}_img_size"], strict=True)
            if s == s
        }
    return sorted(tasks, key=lambda task: (task not in timed, task.layout))


def by_program(tasks: Iterable[Task]) -> list[list[Task]]:
    """Tasks that build the same module, together, in the order of their first."""
    groups: dict[tuple[object, ...], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.model, task.size, task.mode), []).append(task)
    return list(groups.values())


class Programs:
    """The variants of one model, size and mode: modules and shape rules are kept between them."""

    def __init__(self, task: Task) -> None:
        self.fused = build_timm(task.model, image_size=task.size)
        self.unfused = self.fused
        self.parameters = sum(p.numel() for p in self.fused.module.parameters())
        self._memo = MetaMemo()

    def captured(self, task: Task) -> AffineGraph | str:
        """The kernels at any batch, or `SAME`; `nchw` comes before `nhwc`.

        Raises:
            PredictorError: it cannot be captured, or is no affine function of the batch.
        """
        found = self.fused
        if task.variant == "amp-unfused":
            if not self.fused.written_out_attention and task.mode == "infer":
                return SAME
            if self.fused.written_out_attention and self.unfused is self.fused:
                self.unfused = build_timm(task.model, image_size=task.size, fused_attention=False)
            found = self.unfused
        with self._memo:
            graph = op_graph(found, task, CAPTURE_BATCH)
        return affine_graph(graph, half="fp16" if "amp" in task.variant else None)


def op_graph(found: TimmModel, task: Task, batch: int) -> OpGraph:
    """The calls of one step."""
    module, images = found.module, found.images(batch)
    if task.layout == "nhwc":
        module = module.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    if task.mode == "infer":
        amp = "fp16" if "amp" in task.variant else None
        cast = None if amp else task.variant
        return capture_module(module, images, amp=amp, dtype=cast, name=task.model)
    module.train()
    target = torch.empty(batch, dtype=torch.int64, device="meta")
    sgd = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
    return capture_step(training_step, (module, sgd, images, target), name=task.model)


def training_step(module: Any, optimizer: Any, images: Any, target: Any) -> None:
    """A step of timm's benchmark under autocast."""
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        output = module(images)
        output = output[0] if isinstance(output, tuple) else output
        loss = functional.cross_entropy(output, target)
    loss.backward()
    optimizer.step()
