"""TPU training recipes: one logged step each on v5p and v6e.

| rule | what happens |
|---|---|
| `no_step_time` | dropped: no time |
| `devices_from_log` | kept, flagged: the topology's chips are not those that the log implies; the \
log's are taken |
| `batch_from_log` | kept, flagged: the recipe's batch is not that of the log; the log's is taken |
| `config_unknown` | kept, flagged: no sequence length, so the batch in samples is unknown |
"""

from __future__ import annotations

import json
import re

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    number,
    plan,
    share,
    text,
)

BATCH_AGREES = 0.01
"""Rounding of the tokens a chip in the log."""
_COLUMNS = (
    "source_file", "chip", "chips", "chips_from_log", "slices", "model", "precision",
    "per_device_batch", "global_batch", "seq_len", "parallelism", "remat", "optimizer_notes",
    "tokens_per_chip_step", "step_time_s", "status",
)  # fmt: skip
_AXIS = re.compile(r"(?:ici|dcn)_(data|fsdp_transpose|fsdp|tensor|sequence|expert)_parallelism")
_SUFFIX = re.compile("-maxtext$", re.IGNORECASE)
_NAMES = {"data": "dp", "fsdp": "fsdp", "fsdp_transpose": "fsdp", "tensor": "tp",
          "sequence": "cp", "expert": "ep"}  # fmt: skip


def read(table: TableReader) -> None:
    """Add the rows."""
    for row in table.csv("training_steps", _COLUMNS):
        step_s = number(row["step_time_s"])
        if not step_s > 0:
            table.refuse(row, "step_time_s", row["step_time_s"], "no_step_time")
            continue
        stated, logged = number(row["chips"]), number(row["chips_from_log"])
        chips = logged if "WARNING" in text(row["status"]) and logged > 0 else stated
        tokens = tokens_of(row, chips)
        published, seq = number(row["global_batch"]), number(row["seq_len"])
        if not seq > 0 and published > 0:
            seq = tokens / published
        batch = round(tokens / seq) if seq > 0 and tokens > 0 else published
        precision = text(row["precision"])
        table.add(
            row, text(row["chip"]), chips, model=_SUFFIX.sub("", text(row["model"])),
            batch=batch, seq=seq, dtype=precision if precision in ("bf16", "fp8") else "",
            execution="xla", framework="jax", library="maxtext", plan=_plan(row, chips),
            recompute=text(row["remat"]), repeats=1, measure="wall", latency_us=step_s * 1e6,
            flags=(
                "devices_from_log" if chips != stated else "",
                "batch_from_log" if abs(batch - published) > BATCH_AGREES * published else "",
                "" if batch > 0 else "config_unknown",
            ),
        )  # fmt: skip


def tokens_of(row: Record, chips: float) -> float:
    """Tokens of the whole step, as logged (`total_weights`), else a chip's times the chips."""
    logged = re.search(r"total_weights=(\d+)", text(row["optimizer_notes"]))
    return float(logged[1]) if logged else number(row["tokens_per_chip_step"]) * chips


def _plan(row: Record, chips: float) -> str:
    """Published axes; -1 stands for the chips that are left, slices run data parallel."""
    try:
        published = json.loads(text(row["parallelism"]) or "{}")
    except ValueError:
        return ""
    if not isinstance(published, dict) or not published:
        return ""
    axes: dict[str, float] = {}
    rest = ""
    for key, value in published.items():
        axis = _AXIS.fullmatch(key)
        name, size = _NAMES[axis[1]] if axis else "", number(value)
        if not name or not (size >= 1 or size == -1):
            return ""
        if size == -1:
            rest = name
        else:
            axes[name] = axes.get(name, 1.0) * size
    slices = number(row["slices"])
    if rest and "dcn" not in "".join(published):
        axes["dp"] = axes.get("dp", 1.0) * slices
    left = share(chips, *axes.values())
    if left is None or (not rest and left != 1):
        return ""
    if rest:
        axes[rest] = axes.get(rest, 1.0) * left
    order = ("dp", "fsdp", "tp", "cp", "ep")
    return plan(**{a: axes[a] for a in order if a in axes})


TABLE = StepTable(
    folder="tpu_recipes", licence="Apache-2.0", files=("training_steps",), read=read,
    left_out={
        "microbench.csv*": "three single kernels: this source holds steps",
        "inference_rows.csv*": "lines of serving summaries, no steps",
    },
)  # fmt: skip
