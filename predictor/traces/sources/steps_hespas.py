"""Hespas' reference training steps, rounded to 10 ms: small Llamas and ResNets, 4 GPUs or 8 cores.

| rule | what happens |
|---|---|
| `no_step_time` | dropped: no time |
| `rounded` | kept, flagged: half of the last published digit is more than a tenth of the time; \
`spread_us` of every row is that half |
| `config_unknown` | kept, flagged: the batch of the ResNet rows is not published, nor the plan of \
the TPU rows |
"""

from __future__ import annotations

import re

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    device_and_count,
    number,
    plan,
    text,
)

ROUNDING_HALF_S = 0.005
"""Half of the last digit of `runtime_s`."""
ROUNDED = 0.1
LLAMA_SEQ = 4096
LLAMA_BATCH_A_DEVICE = 1
RESNET_PIXELS = 224
_COUNT = re.compile(r"^(?P<before>\d+)x(?P<one>.+)$|^(?P<two>.+)_(?P<after>\d+)GPU$")


def read(table: TableReader) -> None:
    """Add the rows of every reference file."""
    names = {path.name.partition(".csv")[0] for path in table.root.glob("refs_*.csv*")}
    for name in sorted(names):
        for row in table.csv(name, ("system", "workload", "runtime_s")):
            _add(table, row)


def _add(table: TableReader, row: Record) -> None:
    step_s = number(row["runtime_s"])
    if not step_s > 0:
        table.refuse(row, "runtime_s", row["runtime_s"], "no_step_time")
        return
    device, count = system(text(row["system"]), table.table.folder)
    workload = text(row["workload"])
    llama, gpus = workload.startswith("llama"), text(row["system"]).endswith("GPU")
    table.add(
        row, device, count, model=workload,
        batch=LLAMA_BATCH_A_DEVICE * count if llama else float("nan"),
        seq=LLAMA_SEQ if llama else float("nan"),
        size=RESNET_PIXELS if workload.startswith("resnet") else float("nan"),
        dtype="bf16" if llama else "", plan=plan(fsdp=count) if llama and gpus else "",
        measure="wall",
        micro_batch=LLAMA_BATCH_A_DEVICE if llama else float("nan"),
        latency_us=step_s * 1e6, spread_us=ROUNDING_HALF_S * 1e6,
        flags=(
            "rounded" if ROUNDED * step_s < ROUNDING_HALF_S else "",
            "" if llama and gpus else "config_unknown",
        ),
    )  # fmt: skip


def system(name: str, dataset: str) -> tuple[str, float]:
    """Device and count of a system, `A100_40GB_4GPU` or `8xTPUv3`: the number counts devices."""
    match = _COUNT.match(name)
    if match is None:
        return name, float("nan")
    one = match["one"] or match["two"]
    return (one if device_and_count(one, dataset) else name), float(
        match["before"] or match["after"]
    )


TABLE = StepTable(
    folder="hespas_ispass2026", licence="MIT", files=("refs_*",), read=read,
    left_out={
        "*.mlir": "StableHLO fixtures without a time",
        "roofline_nodes.csv*": "device sheets of the authors' simulator, no times",
    },
)  # fmt: skip
