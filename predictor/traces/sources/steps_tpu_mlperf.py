"""MLPerf Training on TPU v3 and v4: seconds per step from logged blocks.

Derived from MLPerf logs; result not verified by MLCommons Association. The derived table is the
label; runs give the number of repeats and the spread between them, blocks are what the derived rows
were made of.

| rule | what happens |
|---|---|
| `not_usable` | dropped: blocks were logged asynchronously, cover too little of the run or have \
no clear meaning (`usable` is not `yes`) |
| `includes_evaluation` | kept, flagged: evaluation is inside the block, an upper bound |
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from predictor.traces.sources.steps_table import StepTable, TableReader, number, plan, text

PIXELS: Mapping[str, int] = {"resnet": 224}
_COLUMNS = (
    "source_dir", "round", "chip", "chips", "model", "framework", "global_batch", "seq_len",
    "n_runs", "steps_per_block", "step_time_s", "usable", "block_includes_eval",
)  # fmt: skip
_RUN_COLUMNS = ("round", "source_file", "median_block_seconds")


def read(table: TableReader) -> None:
    """Add the derived rows."""
    blocks: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in table.csv("mlperf_tpu_runs", _RUN_COLUMNS, aside=True):
        seconds = number(run["median_block_seconds"])
        if seconds > 0:
            folder = text(run["source_file"]).rpartition("/")[0]
            blocks[text(run["round"]), folder].append(seconds)
    for row in table.csv("mlperf_tpu_steps_derived", _COLUMNS):
        step_s = number(row["step_time_s"])
        if text(row["usable"]) != "yes" or not step_s > 0:
            table.refuse(row, "usable", row["usable"], "not_usable")
            continue
        runs = blocks[text(row["round"]), text(row["source_dir"])]
        spread_us = float("nan")
        if len(runs) > 1:
            spread_us = statistics.stdev(runs) / number(row["steps_per_block"]) * 1e6
        framework, _, version = text(row["framework"]).partition(" ")
        model = text(row["model"])
        table.add(
            row, f"TPU {text(row['chip'])}", row["chips"], model=model,
            batch=number(row["global_batch"]), seq=number(row["seq_len"]),
            size=PIXELS.get(model, float("nan")), execution="xla", framework=framework.lower(),
            framework_version=version.removeprefix("v"), measure="throughput",
            latency_us=step_s * 1e6, repeats=number(row["n_runs"]), spread_us=spread_us,
            plan=plan(),
            flags=(
                "config_unknown",
                "includes_evaluation"
                if text(row["block_includes_eval"]).startswith("yes") else "",
            ),
        )  # fmt: skip


TABLE = StepTable(
    folder="tpu_mlperf_training", licence="Apache-2.0; MLPerf result-use guidelines",
    files=("mlperf_tpu_steps_derived",), read=read,
    left_out={"mlperf_tpu_blocks.csv*": "block durations: the derived table is their medians"},
)  # fmt: skip
