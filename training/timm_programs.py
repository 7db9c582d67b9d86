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
from predictor.traces.graph_bank import REPARAM
from predictor.traces.sources.timm import campaign_of

VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "infer": (
        ("bf16", "nchw"), ("amp", "nchw"), ("amp", "nhwc"), ("amp-unfused", "nchw"),
        ("amp-unfused", "nhwc"), ("fp32", "nchw"), ("amp-reparam", "nchw"),
        ("bf16-reparam", "nchw"), ("amp-unfused-fastnorm", "nchw"),
        ("amp-unfused-fastnorm", "nhwc"),
    ),
    "train": (("amp-unfused", "nchw"), ("amp-unfused", "nhwc")),
}  # fmt: skip
"""Variant and layout of the programs that tables time, by mode."""
SAME = "same as fused"
"""Kept in place of a graph that a model without attention (and, for `amp-unfused`, without norms
that have a fast form) shares with its `amp` variant."""
FAST_NORM = ("amp", "amp-reparam", "amp-unfused-fastnorm")
"""Variants whose layer and group norms run in the autocast dtype: what the tables time from PyTorch
1.13 on. Group-normalised models took half the fp32 kernels' time there, and not before."""
NOT_FOLDED = "nothing to fold"
"""Kept in place of the reparameterised graph of a model without branches to fold."""


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
        self._first = task
        self._built: dict[tuple[bool, bool, bool], TimmModel] = {}
        self._memo = MetaMemo()
        self.model("amp")  # a name that timm does not know fails here

    def model(self, variant: str) -> TimmModel:
        """The module that a variant runs, built once."""
        key = ("unfused" not in variant, variant in FAST_NORM, variant.endswith(REPARAM))
        if key not in self._built:
            fused, fast, folded = key
            self._built[key] = build_timm(
                self._first.model, image_size=self._first.size, fused_attention=fused,
                fast_norm=fast, reparameterized=folded,
            )  # fmt: skip
        return self._built[key]

    def parameters(self, task: Task) -> int:
        """Parameters of the module that a task runs."""
        folds = task.variant.endswith(REPARAM) and self.model("amp").folds
        variant = task.variant if folds else "amp"
        return sum(p.numel() for p in self.model(variant).module.parameters())

    def captured(self, task: Task) -> AffineGraph | str:
        """The kernels at any batch, `SAME` or `NOT_FOLDED`; `nchw` comes before `nhwc`.

        Raises:
            PredictorError: it cannot be captured, or is no affine function of the batch.
        """
        plain = self.model("amp")
        if task.variant.endswith(REPARAM) and not plain.folds:
            return NOT_FOLDED
        if "unfused" in task.variant and task.mode == "infer":
            norms = plain.fast_norms and task.variant not in FAST_NORM
            if not plain.written_out_attention and not norms:
                return SAME
        found = self.model(task.variant)
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
        cast = None if amp else task.variant.removesuffix(REPARAM)
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
