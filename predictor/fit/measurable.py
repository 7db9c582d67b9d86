"""What `predictor measure` can run on a device: bundled and timm models, smaller steps, kernels."""

from __future__ import annotations

import importlib.util
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from predictor import zoo
from predictor.capture.timm_models import PREFIX
from predictor.errors import PredictorError
from predictor.fit.model_samples import shipped_bank
from predictor.graph.ir import DTYPE_BYTES, KernelGraph, OpGraph
from predictor.hardware.device import Device
from predictor.lower.eager import lower_eager
from predictor.program import DEFAULT_OPTIMIZER, Mode, capture
from predictor.traces.measure.grid import Point, read_grid
from predictor.traces.measure.plan import PlannedProgram
from predictor.traces.measure.points import points_of

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.6
"""Of the device's memory that a program to be measured may take."""
STATE = {"infer": 1.0, "train": 4.0}
"""Parameters, their gradients and the optimizer's two moments, in parameters."""
TIMM_VARIANTS: Mapping[str, str] = {"fp32": "fp32", "bf16": "bf16", "amp-fp16": "amp"}
"""Variant of the timm bank by dtype."""
TIMM_FAMILIES = 40
TIMM_BATCH = {"cpu": 2}
TIMM_BATCH_ELSE = 32
SHRUNK = (2, 4, 8)
"""By what batch and sequence length of a program are divided for smaller ones of it."""
GRID = "quick"
SMALL_SEQ = 64
SMALL: tuple[str, ...] = (
    "bert-base", "gpt2", "t5-base", "lstm-lm", "whisper-base", "vit-b-16", "dlrm",
)  # fmt: skip
"""Bundled models that run on a processor, at batch 1 and `SMALL_SEQ` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A program to be predicted."""

    target: str
    graph: KernelGraph
    dtype: str
    batch: int | None = None
    seq: int | None = None

    @property
    def mode(self) -> Mode:
        """Of its step."""
        return self.graph.workload.mode


def wanted(
    target: str,
    *,
    mode: Mode | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    optimizer: str | None = None,
) -> Wanted:
    """A program to be predicted, captured; arguments as of `predictor.capture`.

    Raises:
        PredictorError: as `predictor.capture`.
    """
    graph = capture(target, mode=mode, dtype=dtype, batch=batch, seq=seq, optimizer=optimizer)
    return of_graph(target, graph, batch=batch, seq=seq)


def of_graph(
    target: str, graph: OpGraph, *, batch: int | None = None, seq: int | None = None
) -> Wanted:
    """A captured program to be predicted."""
    work = graph.workload
    length = work.tokens // work.batch if work.tokens and work.batch else None
    return Wanted(
        target=target, graph=lower_eager(graph, allow_opaque=True), dtype=work.dtype,
        batch=work.batch if batch is None else batch, seq=length if seq is None else seq,
    )  # fmt: skip


def bank_programs(device: Device, dtypes: Iterable[str]) -> pd.DataFrame:
    """Rows of the shipped graph banks that `predictor measure` can run on a device."""
    import pandas as pd

    own = shipped_bank("own").index
    runs = own["model"].isin(list(zoo.ZOO)) | own["model"].str.startswith(PREFIX)
    parts = [own[runs].assign(source="own", batch=own["batch_from"], dtype=own["variant"])]
    parts[0]["target"] = parts[0]["model"]
    timm = importlib.util.find_spec("timm") is not None
    for dtype in sorted({d for d in dtypes if d in TIMM_VARIANTS}) if timm else ():
        index = shipped_bank("timm").index
        rows = index[
            (index["variant"] == TIMM_VARIANTS[dtype]) & (index["mode"] == "infer")
            & (index["layout"] == "nchw")
        ]  # fmt: skip
        small = rows.sort_values(["parameters", "model"]).drop_duplicates("family")
        order = pd.util.hash_pandas_object(small["family"], index=False).to_numpy()
        small = small.iloc[np.argsort(order, kind="stable")[:TIMM_FAMILIES]]
        batch = TIMM_BATCH.get(device.kind, TIMM_BATCH_ELSE)
        target = PREFIX + small["model"] + "@" + small["size"].astype(str)
        parts.append(small.assign(source="timm", batch=batch, dtype=dtype, target=target))
    found = pd.concat(parts, ignore_index=True)
    size = found["dtype"].map(lambda d: DTYPE_BYTES.get(str(d), 4.0))
    needed = found["parameters"] * size * found["mode"].map(STATE)
    held = (device.memory_gib or np.inf) * 2**30 * MEMORY_SHARE
    return found[needed <= held].reset_index(drop=True)


def grid_points(targets: Sequence[Wanted]) -> list[Point]:
    """Kernels of a grid and of the programs, each once, with a warm cache."""
    points = [*read_grid(GRID), *points_of(k for t in targets for k in t.graph.kernels)]
    return list({point.key: point for point in points if not point.cold}.values())


def small_programs(
    device: Device, dtypes: Sequence[str], modes: Sequence[Mode]
) -> Iterator[tuple[PlannedProgram, KernelGraph]]:
    """Small steps of bundled models for a processor, captured; GPUs have larger ones in a bank."""
    if device.kind != "cpu":
        return
    for target, dtype, mode in itertools.product(SMALL, dtypes, modes):
        seq = None if zoo.ZOO[target].seq is None else SMALL_SEQ
        program = PlannedProgram(
            target=target, mode=mode, dtype=dtype, batch=1, seq=seq,
            optimizer=DEFAULT_OPTIMIZER if mode == "train" else None,
        )  # fmt: skip
        yield from _captured(program)


def kernels_of(program: PlannedProgram) -> KernelGraph:
    """The kernels of a program, captured; raises as `predictor.capture` does."""
    graph = capture(
        program.target, mode=program.mode, dtype=program.dtype, batch=program.batch,
        seq=program.seq, optimizer=program.optimizer,
    )  # fmt: skip
    return lower_eager(graph, allow_opaque=True)


def _captured(program: PlannedProgram) -> Iterator[tuple[PlannedProgram, KernelGraph]]:
    """A program with its kernels; nothing where it cannot be captured."""
    try:
        yield program, kernels_of(program)
    except PredictorError as error:
        logger.debug("%s is left out: %s", program.key, error)


def smaller(targets: Sequence[Wanted]) -> Iterator[tuple[PlannedProgram, KernelGraph]]:
    """The programs at smaller sizes, where they take sizes."""
    for target in targets:
        sizes = {
            ((target.batch or 1) // by if name == "batch" else target.batch,
             (target.seq or 1) // by if name == "seq" else target.seq)
            for by in SHRUNK for name in ("batch", "seq")
            if ((target.batch if name == "batch" else target.seq) or 1) >= by
        }  # fmt: skip
        for batch, seq in sorted(sizes, key=str):
            program = PlannedProgram(
                target=target.target, mode=target.mode, dtype=target.dtype, batch=batch, seq=seq,
                optimizer=target.graph.workload.optimizer,
            )  # fmt: skip
            yield from _captured(program)
