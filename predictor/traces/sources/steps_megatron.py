"""Megatron-Bridge's pretraining summary: vendor-tuned LLM steps with their parallel layout.

| rule | what happens |
|---|---|
| `no_step_time` | dropped: neither tokens/s nor a step time |
| `tokens_and_flops_disagree` | dropped: TFLOP/s over tokens/s is the work of a token, the same \
for all rows of one model and sequence length; where two differ by more than a quarter, those far \
from the row nearest to 6 FLOP a parameter are refused (the name's count, its active count for an \
MoE; the median where no row comes near) |
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    number,
    plan,
    share,
    text,
)

AGREE = 1.25
"""Rows of one model count the work of a token alike up to this factor."""
DTYPES: Mapping[str, str] = {"FP8": "fp8", "FP4": "fp4", "BF16": "bf16", "FP16": "fp16"}
"""Step dtype by what the published precision contains (`FP8-CS`, `NVFP4`, …)."""
_PARAMETERS = re.compile(r"(?:^|[ _-])(a?)(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
_COLUMNS = (
    "nemo_container", "system", "model", "n_gpus", "precision", "gbs", "mbs", "seq_len", "fsdp",
    "tp", "pp", "cp", "vp", "ep", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
)  # fmt: skip


def read(table: TableReader) -> None:
    """Add the rows."""
    rows = table.csv("pretraining_throughput", _COLUMNS)
    refused = disagreeing(rows)
    for i, row in enumerate(rows):
        rate = number(row["tokens_per_s_per_gpu"])
        batch, seq, devices = (number(row[c]) for c in ("gbs", "seq_len", "n_gpus"))
        if not rate > 0 or not batch * seq * devices > 0:
            table.refuse(row, "tokens_per_s_per_gpu", row["tokens_per_s_per_gpu"], "no_step_time")
            continue
        if i in refused:
            table.refuse(row, "tokens_per_s_per_gpu", rate, "tokens_and_flops_disagree")
            continue
        axes = {a: number(row[a]) for a in ("tp", "pp", "cp")}
        sharded = number(row["fsdp"]) == 1
        parallel = share(devices, *(n for n in axes.values() if n == n))
        precision = text(row["precision"]).upper()
        table.add(
            row, text(row["system"]), devices, model=text(row["model"]), batch=batch, seq=seq,
            micro_batch=number(row["mbs"]),
            dtype=next((d for part, d in DTYPES.items() if part in precision), ""),
            plan=plan(**{"fsdp" if sharded else "dp": parallel}, **axes, vp=number(row["vp"]),
                      ep=number(row["ep"])),
            framework="nemo", framework_version=text(row["nemo_container"]),
            library="megatron-bridge", measure="throughput",
            latency_us=batch * seq / (rate * devices) * 1e6,
        )  # fmt: skip


def disagreeing(rows: Sequence[Record]) -> set[int]:
    """Positions of rows whose tokens/s and TFLOP/s belie the other rows of their model."""
    groups: dict[tuple[str, float], dict[int, float]] = defaultdict(dict)
    for i, row in enumerate(rows):
        speed, rate = number(row["model_tflops_per_gpu"]), number(row["tokens_per_s_per_gpu"])
        if speed > 0 and rate > 0:
            groups[text(row["model"]), number(row["seq_len"])][i] = speed * 1e12 / rate
    refused: set[int] = set()
    for (model, _), work in groups.items():
        if max(work.values()) <= AGREE * min(work.values()):
            continue
        expected = 6 * parameters(model)
        if not any(max(w, expected) <= 2 * min(w, expected) for w in work.values()):
            expected = statistics.median(work.values())  # an MoE whose name has its total alone
        sound = min(work.values(), key=lambda w: max(w / expected, expected / w))
        refused |= {i for i, w in work.items() if max(w / sound, sound / w) > AGREE}
    return refused


def parameters(model: str) -> float:
    """Parameters that a token meets, from a model's name; 0 where it tells none."""
    found = [(active, float(n)) for active, n in _PARAMETERS.findall(model)]
    return next((n for active, n in found if active), found[0][1] if found else 0.0) * 1e9


TABLE = StepTable(
    folder="megatron_bridge", licence="Apache-2.0", files=("pretraining_throughput",), read=read
)
