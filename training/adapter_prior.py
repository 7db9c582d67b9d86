"""The prior of device adapters, from the devices that a run's cross-validation held out.

    python training/adapter_prior.py RUN --data DIR ... --checkpoint NAME \
        --out predictor/calibrate/prior.toml

RUN is the folder that `predictor train` wrote, NAME the checkpoint that came of it: it says how a
step's time is divided among its kernels, the run's held-out rows say how long it was predicted.
GPUs alone make the prior. The interval's scale is what covers 90% of the rows of a device after
fits of few other rows of it, every device alike.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from predictor.atomic import write_text
from predictor.calibrate.conformal import grouped_quantile
from predictor.calibrate.empirical_bayes import estimate_prior
from predictor.calibrate.posterior import NORMAL_90, apply, fit_adapter
from predictor.calibrate.prior import Prior, prior_of
from predictor.calibrate.readings import KINDS, Readings, joined
from predictor.calibrate.terms import GROUPS
from predictor.checkpoint import load_release
from predictor.errors import PredictorError
from predictor.fit.model_samples import banks_of, model_samples
from predictor.fit.readings import kernel_readings, model_readings, step_readings
from predictor.fit.samples import kernel_samples
from predictor.fit.step_samples import step_samples
from predictor.fit.train import HELD_OUT
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device_file import adopt_device_file
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.traces.sources.registry import SOURCES, read_source

SPREAD = dict.fromkeys(GROUPS, 0.15) | {"head": 1.0, "launch": 0.5, "host": 0.4}
NOISE = (0.25, 0.25, 0.1)
"""Where the estimate begins."""
KERNELS, STEPS = 40, 400
"""Kernels of one device, op and dtype, and steps of one device, that are looked at."""
DRAWN = (3, 10, 30)
"""Rows of the fits that the interval's scale is taken from."""
DRAWS, LEVEL = 5, 0.9
HEAD = """# Standard deviations in log time of a device's corrections, by group of terms
# (`predictor.calibrate.terms`), and of what no term explains, by kind of reading. Made by
# `python training/adapter_prior.py` from the GPUs that the cross-validation of {name} held out.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the prior."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--data", action="append", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--device-file", action="append", default=[], type=Path)
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for path in args.device_file:
            adopt_device_file(path)
        devices = _devices(args.run, args.data, load_predictor(load_release(args.checkpoint)))
        gpus = {n: r for n, r in devices.items() if resolve_device(n).kind == "gpu"}
        spread, noise = estimate_prior(list(gpus.values()), SPREAD, NOISE)
        scale = interval_scale(gpus, prior_of(spread, noise))
        write_text(args.out, text_of(args.checkpoint, spread, noise, scale))
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def text_of(name: str, spread: Mapping[str, float], noise: Sequence[float], scale: float) -> str:
    """The file's text."""
    lines = [HEAD.format(name=name), "[spread]"]
    lines += [f"{json.dumps(group)} = {value:.3f}" for group, value in spread.items()]
    lines += ["", "[noise]", *(f"{k} = {v:.3f}" for k, v in zip(KINDS, noise, strict=True))]
    return "\n".join([*lines, "", "[interval]", f"scale = {scale:.3f}", ""])


def interval_scale(devices: Mapping[str, Readings], prior: Prior) -> float:
    """Factor on the spread after a fit that covers `LEVEL` of the other rows of a device."""
    rng = np.random.default_rng(0)
    scores: list[NDArray[np.float64]] = []
    groups: list[str] = []
    for name, readings in devices.items():
        for rows in (r for r in DRAWN if 2 * r <= len(readings)):
            for _ in range(DRAWS):
                order = rng.permutation(len(readings))
                rest = readings.take(order[rows : rows + 200])
                log, variance = apply(fit_adapter(readings.take(order[:rows]), prior), rest)
                off = np.abs(rest.log_ratio_N - log)
                scores.append(off / (NORMAL_90 * np.sqrt(variance)))
                groups += [name] * len(off)
    return grouped_quantile(np.concatenate(scores), groups, LEVEL)


def _devices(run: Path, data: Sequence[Path], base: LatencyPredictor) -> dict[str, Readings]:
    """Readings of every device that was held out, against the predictions made without it."""
    found: dict[str, list[Readings]] = {}
    held = {
        name: pd.read_parquet(run / HELD_OUT / f"{name}.parquet")
        for name in ("kernels", "ops", "steps")
    }
    held = {name: rows[rows["fold_kind"] == "device"] for name, rows in held.items()}
    for source in SOURCES:
        own = {n: r[r["row_id"].str.startswith(f"{source}:")] for n, r in held.items()}
        if not any(len(rows) for rows in own.values()):
            continue
        logging.info("%s", source)
        for readings, device in _of_source(source, data, own, base):
            for name in np.unique(device):
                found.setdefault(str(name), []).append(readings.take(device == name))
    return {name: joined(parts) for name, parts in found.items()}


def _of_source(
    source: str,
    data: Sequence[Path],
    held: Mapping[str, pd.DataFrame],
    base: LatencyPredictor,
) -> Iterator[tuple[Readings, NDArray[np.str_]]]:
    """Readings of a source's held-out rows, with the device of each."""
    known = base.networks.devices
    kernels = _some(held["kernels"], ["device", "op", "dtype"], KERNELS)
    ids = set(kernels["row_id"])
    read = read_source(source, data, chosen=lambda rows: rows["row_id"].isin(ids))
    rows = read.kernels[read.kernels["row_id"].isin(ids)].reset_index(drop=True)
    if len(rows):
        samples = kernel_samples(rows, known)
        readings = kernel_readings(base.networks, samples, base.learned)
        device = rows["device"].to_numpy(dtype=np.str_)[samples.row_N]
        yield _predicted(readings, list(samples.row_id), kernels), device
    total = held["steps"]
    total = total[total["phase"] == "total"] if len(total) else total
    chosen = _some(total, ["device"], STEPS)
    steps = read.steps[read.steps["row_id"].isin(set(chosen["row_id"]))]
    models = model_samples(steps, banks_of(steps), known, base.networks.message_layers)
    if models is not None:
        readings = model_readings(base.networks, models, base.learned)
        device = models.rows["device"].to_numpy(dtype=np.str_)
        yield _predicted(readings, models.rows["row_id"].tolist(), chosen), device
    published = step_samples(read, steps, known)
    if published is not None:
        ops, whole = step_readings(base.networks, published, base.learned)
        device = published.steps["device"].to_numpy(dtype=np.str_)
        yield _predicted(whole, published.steps["row_id"].tolist(), chosen), device
        if ops is not None:
            there = published.ops["row_id"].isin(set(held["ops"]["row_id"])).to_numpy()
            names = published.ops["row_id"][there].tolist()
            device = published.ops["device"].to_numpy(dtype=np.str_)[there]
            yield _predicted(ops.take(there), names, held["ops"]), device


def _some(rows: pd.DataFrame, columns: list[str], most: int) -> pd.DataFrame:
    """At most so many rows with equal values in the columns, drawn."""
    if rows.empty:
        return rows
    mixed = rows.sample(frac=1.0, random_state=0)
    return mixed[mixed.groupby(columns).cumcount() < most]


def _predicted(readings: Readings, ids: Sequence[str], held: pd.DataFrame) -> Readings:
    """The readings with the predictions of the held-out rows; parts keep their shares."""
    times = held.drop_duplicates("row_id").set_index("row_id")["predicted_us"]
    log_N = np.log(times.loc[list(ids)].to_numpy(dtype=np.float64))
    off_N = np.repeat(log_N - readings.log_predicted_N, np.diff(readings.start_N))
    return replace(readings, log_predicted_N=log_N, part_us_P=readings.part_us_P * np.exp(off_N))


if __name__ == "__main__":
    sys.exit(main())
