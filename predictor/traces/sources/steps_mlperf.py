"""MLPerf Training runs on GPUs and Gaudi: seconds per optimizer step, joined to their configs.

Derived from MLPerf logs; result not verified by MLCommons Association.

| rule | what happens |
|---|---|
| `no_step_time` | dropped: no step, throughput or readable block was logged, so there is no label |
| `config_unknown` | kept, flagged: linked to no config, so plan and precision are unknown |
| `derived_from_epoch` | kept, flagged: the logged throughput is per GPU for some submitters |
| `inconsistent` | kept, flagged: at the stated rate an evaluation block would hold more than \
twice its samples (LoRA on Llama-2-70B evaluates every 384), so samples were counted a device |
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    number,
    plan,
    share,
    text,
)

SEQ: Mapping[str, int] = {"bert": 512, "gpt3": 2048, "llama2_70b_lora": 8192}
"""Tokens a sample (the longest; BERT packs shorter ones), as the benchmark rules fix them."""
PIXELS: Mapping[str, int] = {"resnet": 224, "ssd": 800, "stable_diffusion": 512}
BLOCK_SAMPLES: Mapping[str, int] = {"llama2_70b_lora": 384}
"""Samples between two evaluations, where the benchmark rules fix them."""
DATA_PARALLEL = frozenset({"resnet", "ssd", "bert", "gnn", "stable_diffusion", "unet3d"})
"""Benchmarks whose configs know no other axis."""
_AXES: Mapping[str, tuple[str, ...]] = {
    "tp": ("TP", "TENSOR_MODEL_PARALLEL"), "pp": ("PP", "PIPELINE_MODEL_PARALLEL"), "cp": ("CP",),
}  # fmt: skip
_LAYOUT = re.compile(r"tp(?P<tp>\d+)pp(?P<pp>\d+)(?:cp(?P<cp>\d+))?")
_COLUMNS = (
    "submitter", "system", "benchmark", "accelerator", "n_accelerators", "framework",
    "global_batch_size", "gradient_accumulation_steps", "max_sequence_length", "step_time_s",
    "step_time_source", "config_match", "block_ms_median",
)  # fmt: skip
_CONFIG_COLUMNS = ("submitter", "benchmark", "implementation", "config_file", "key", "value")

Config = Mapping[str, str]


def read(table: TableReader) -> None:
    """Add the runs."""
    configs = _configs(table.csv("mlperf_configs_long", _CONFIG_COLUMNS, aside=True))
    runs = table.csv("mlperf_training_runs", _COLUMNS)
    spreads = _spreads(runs)
    for run in runs:
        step_s = number(run["step_time_s"])
        if not step_s > 0:
            table.refuse(run, "step_time_s", run["step_time_s"], "no_step_time")
            continue
        config = configs.get((text(run["submitter"]), text(run["benchmark"]),
                              text(run["config_match"])))  # fmt: skip
        repeats, spread_us = spreads[_submission(run)]
        benchmark, source = text(run["benchmark"]), text(run["step_time_source"])
        batch, devices = number(run["global_batch_size"]), number(run["n_accelerators"])
        axes = _axes(run, config)
        parallel = share(devices, *axes.values()) if axes is not None else None
        micro = None
        if parallel is not None and axes is not None:
            micro = share(batch, parallel, number(run["gradient_accumulation_steps"]))
        table.add(
            run, text(run["accelerator"]), devices, model=benchmark, batch=batch,
            seq=_first(number(run["max_sequence_length"]), SEQ.get(benchmark)),
            size=_first(PIXELS.get(benchmark)), micro_batch=_first(micro),
            dtype="fp8" if (config or {}).get("FP8", "").lower() == "true" else "",
            plan=plan(dp=parallel, **axes) if parallel is not None and axes is not None else "",
            framework=text(run["framework"]), repeats=repeats, spread_us=spread_us,
            measure="throughput" if "throughput" in source else "wall", latency_us=step_s * 1e6,
            flags=(
                "" if config is not None else "config_unknown",
                "derived_from_epoch" if "epoch" in source else "",
                "inconsistent" if _overfull_block(run, step_s) else "",
            ),
        )  # fmt: skip


def _configs(rows: Iterable[Record]) -> dict[tuple[str, str, str], Config]:
    """Keys and values of each config, by submitter, benchmark and path."""
    found: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
    for row in rows:
        path = f"{text(row['implementation'])}/{text(row['config_file'])}"
        entry = found[text(row["submitter"]), text(row["benchmark"]), path]
        entry[text(row["key"])] = text(row["value"])
    return dict(found)


def _axes(run: Record, config: Config | None) -> dict[str, float] | None:
    """Tensor, pipeline and context parallel sizes; None where the config leaves them open."""
    if config is None:
        return None
    named = {a: number(next((config[k] for k in keys if k in config), None))
             for a, keys in _AXES.items()}  # fmt: skip
    if layout := _LAYOUT.search(text(run["config_match"])):
        named = {a: _first(n, number(layout[a])) for a, n in named.items()}
    if all(n != n for n in named.values()):
        return {} if text(run["benchmark"]) in DATA_PARALLEL else None
    return {a: _first(n, 1.0) for a, n in named.items()}


def _submission(run: Record) -> tuple[str, ...]:
    keys = ("submitter", "system", "benchmark", "global_batch_size")
    return tuple(text(run[k]) for k in keys)


def _spreads(runs: Iterable[Record]) -> dict[tuple[str, ...], tuple[float, float]]:
    """Runs of each submission that have a step time, and the standard deviation between them."""
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for run in runs:
        if (step_s := number(run["step_time_s"])) > 0:
            times[_submission(run)].append(step_s * 1e6)
    return {
        key: (len(us), statistics.stdev(us) if len(us) > 1 else float("nan"))
        for key, us in times.items()
    }


def _overfull_block(run: Record, step_s: float) -> bool:
    expected = BLOCK_SAMPLES.get(text(run["benchmark"]))
    rate = number(run["global_batch_size"]) / step_s
    return expected is not None and number(run["block_ms_median"]) / 1e3 * rate > 2 * expected


def _first(*values: float | None) -> float:
    """The first known number, else NaN."""
    return next((v for v in values if v is not None and v == v), float("nan"))


TABLE = StepTable(
    folder="mlperf_training", licence="Apache-2.0; MLPerf result-use guidelines",
    files=("mlperf_training_runs",), read=read,
)  # fmt: skip
