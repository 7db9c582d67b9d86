"""Suggested against random measurements of equal measuring time, on rows measured before.

    python training/suggest_replay.py --data ../shared/traces --data datasets --out suggest.json

For every (program, device) the device is one that the checkpoint never saw, and the pool is what
was measured on that device of other models: whole steps, with the ops inside where these were
timed, and kernels alone. The suggested measurements calibrate the checkpoint; so do random ones,
drawn until they take as long. `ratio` is the error of the program's step after the suggested ones
over the mean error after the random ones. A random choice in place of the suggested one gives a
median ratio below 1 as well, since the median of an error lies below its mean: it is told beside
(`null`).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from predictor.atomic import write_text
from predictor.calibrate.posterior import NORMAL_90, apply, fit_adapter
from predictor.calibrate.prior import shipped_prior
from predictor.calibrate.readings import Readings, joined
from predictor.calibrate.suggest import Candidates, choose
from predictor.checkpoint import load_release
from predictor.errors import DataError, PredictorError
from predictor.fit.adapting import FLAGS_LEFT_OUT
from predictor.fit.data import sampled_rows, usable_models, usable_steps
from predictor.fit.model_samples import banks_of, family_folds, model_samples, shipped_bank
from predictor.fit.pool import CALLS, KERNEL_SECONDS, PROGRAM_SECONDS, STEPS
from predictor.fit.readings import kernel_readings, model_readings, step_readings
from predictor.fit.samples import kernel_samples
from predictor.fit.step_samples import step_samples
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.traces.measure.rows_file import is_measured, read_rows
from predictor.traces.schema import Imported
from predictor.traces.sources.registry import read_source

DRAWS = 20
ALONE = 400
"""Kernels alone of a pool, at most so many of each device."""
SEED = 0

Owners = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on one device that the checkpoint never saw."""

    device: str
    steps: Readings
    """M whole steps."""
    names: Sequence[str]
    """Of their programs."""
    family_M: NDArray[np.str_]
    """Steps of one family do not tell of each other here."""
    inside: Readings | None
    """Ops inside steps."""
    owner_I: Owners
    """Step of each."""
    alone: Readings | None

    def pool(self, without: str) -> tuple[Candidates, Readings]:
        """Measurements of other families than one."""
        kept = np.flatnonzero(self.family_M != without)
        place = np.full(len(self.steps), -1)
        place[kept] = np.arange(len(kept))
        parts, owners = [self.steps.take(kept)], [np.arange(len(kept))]
        seconds = [PROGRAM_SECONDS + STEPS * 1e-6 * np.exp(parts[0].log_measured_N)]
        if self.inside is not None:
            own = place[self.owner_I]
            parts.append(self.inside.take(own >= 0))
            owners.append(own[own >= 0])
        if self.alone is not None:
            parts.append(self.alone)
            owners.append(len(kept) + np.arange(len(self.alone)))
            seconds.append(KERNEL_SECONDS + CALLS * 1e-6 * np.exp(self.alone.log_measured_N))
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        readings = joined(parts).take(order)
        found = Candidates(
            readings=readings, owner_N=owner[order], seconds_C=np.concatenate(seconds)
        )
        return found, readings


def own_device(folders: Sequence[Path], checkpoint: str) -> Iterator[Measured]:
    """The project's own processor: steps, the kernels inside, kernels alone."""
    base = load_predictor(load_release(checkpoint))
    data = read_source("own", folders)
    steps = usable_models(data, data.steps["device"].unique())
    index = shipped_bank("own").index
    families = dict(zip(index["graph"], index["family"], strict=True))
    for device in sorted(set(steps["device"]) - set(base.networks.devices)):
        models, whole = _models(base, steps[steps["device"] == device])
        rows = models["model"] + " " + models["mode"] + " " + models["dtype"]
        place = {key: i for i, key in enumerate(rows)}
        kernels = _sound(data, device)
        owner = kernels["row_id"].map(_step_keys(folders, device)).map(place)
        inside = kernels[owner.notna()]
        taken, readings = _kernels(base, inside)
        yield Measured(
            device=device, steps=whole, names=list(rows),
            family_M=models["graph"].map(families).to_numpy(dtype=np.str_), inside=readings,
            owner_I=owner[owner.notna()].to_numpy(dtype=np.int64)[taken],
            alone=_alone(base, kernels),
        )  # fmt: skip


def _step_keys(folders: Sequence[Path], device: str) -> Mapping[str, str]:
    """Step of every row of kernels inside steps, by row id."""
    found: dict[str, str] = {}
    for path in (p for f in folders for p in f.glob(f"{device}/in_step.parquet")):
        if is_measured(path):
            keys: Mapping[str, int] = read_rows(path)[1]["keys"]
            owners = np.repeat(list(keys), list(keys.values()))
            found |= {f"own:{device}/{path.name}:{i}": str(k) for i, k in enumerate(owners)}
    return found


def neusight_devices(folders: Sequence[Path], checkpoint: str) -> Iterator[Measured]:
    """Transformer steps on GPUs, with the ops inside and kernels alone."""
    base = load_predictor(load_release(checkpoint))
    data = read_source("neusight", folders)
    for device in sorted(set(data.steps["device"]) - set(base.networks.devices)):
        rows = usable_steps(data, [device])
        samples = step_samples(data, rows, base.networks.devices)
        if samples is None or len(rows) < 2:
            continue
        inside, whole = step_readings(base.networks, samples, base.learned)
        steps = samples.steps
        owner = samples.ops["graph_index"].to_numpy(dtype=np.int64)
        sound = ~samples.ops["flag"].isin(FLAGS_LEFT_OUT).to_numpy()
        yield Measured(
            device=device, steps=whole,
            names=[f"{g} {m}" for g, m in zip(steps["graph"], steps["mode"], strict=True)],
            family_M=steps["model"].to_numpy(dtype=np.str_),
            inside=None if inside is None else inside.take(sound), owner_I=owner[sound],
            alone=_alone(base, _sound(data, device)),
        )  # fmt: skip


def timm_devices(folders: Sequence[Path], checkpoint: str) -> Iterator[Measured]:
    """Whole vision models on devices that the checkpoint never saw."""
    base = load_predictor(load_release(checkpoint))
    data = read_source("timm", folders)
    folds = family_folds(["timm"])
    index = shipped_bank("timm").index
    families = dict(zip(index["model"], index["family"], strict=True))
    for device in sorted(set(data.steps["device"]) - set(base.networks.devices)):
        rows = usable_models(data, [device])
        groups = ["mode", "execution", "framework_version", "dtype", "layout"]
        rows = sampled_rows(rows[rows["model"].isin(list(folds))], 40, groups)
        models, whole = _models(base, rows)
        yield Measured(
            device=device, steps=whole, names=list(models["model"] + " " + models["row_id"]),
            family_M=models["model"].map(families).to_numpy(dtype=np.str_), inside=None,
            owner_I=np.zeros(0, dtype=np.int64), alone=None,
        )  # fmt: skip


SUITES: Mapping[str, tuple[Callable[[Sequence[Path], str], Iterator[Measured]], str]] = {
    "own": (own_device, "base-v2-nocpu"),
    "neusight": (neusight_devices, "neusight-protocol-v2"),
    "timm": (timm_devices, "timm-families-unseen-maxq-v1"),
}
"""What reads a suite's devices, and the checkpoint that did not see them."""


def _models(base: LatencyPredictor, rows: pd.DataFrame) -> tuple[pd.DataFrame, Readings]:
    networks = base.networks
    models = model_samples(rows, banks_of(rows), networks.devices, networks.message_layers)
    assert models is not None
    return models.rows, model_readings(networks, models, base.learned)


def _sound(data: Imported, device: str) -> pd.DataFrame:
    rows = data.kernels[data.kernels["device"] == device]
    return rows[~rows["flag"].isin(FLAGS_LEFT_OUT)].reset_index(drop=True)


def _kernels(base: LatencyPredictor, rows: pd.DataFrame) -> tuple[Owners, Readings]:
    samples = kernel_samples(rows.reset_index(drop=True), base.networks.devices)
    return samples.row_N, kernel_readings(base.networks, samples, base.learned)


def _alone(base: LatencyPredictor, kernels: pd.DataFrame) -> Readings | None:
    rows = kernels[kernels["context"] == "isolated"]
    return _kernels(base, rows.sample(min(ALONE, len(rows)), random_state=SEED))[1] if len(
        rows) else None  # fmt: skip


def replay(found: Measured, target: int, count: int, minutes: float) -> dict[str, Any]:
    """Errors of one program after suggested and after random measurements."""
    prior = shipped_prior()
    asked = found.steps.take(np.array([target]))
    candidates, readings = found.pool(str(found.family_M[target]))
    choice = choose(candidates, asked, prior, most=count, seconds=60.0 * minutes)

    def error(chosen: NDArray[np.int64] | Sequence[int]) -> tuple[float, bool, float]:
        taken = np.flatnonzero(np.isin(candidates.owner_N, np.asarray(chosen)))
        log, variance = apply(fit_adapter(readings.take(taken), prior), asked)
        off = float(asked.log_predicted_N[0] + log[0] - asked.log_measured_N[0])
        half = NORMAL_90 * float(np.sqrt(variance[0]))
        return abs(np.expm1(off)), abs(off) <= half, half

    draw = np.random.default_rng([SEED, target])
    random = []
    for _ in range(DRAWS):
        order = draw.permutation(len(candidates))
        spent = np.cumsum(candidates.seconds_C[order])
        random.append(error(order[: max(1, int(np.searchsorted(spent, choice.seconds)))])[0])
    suggested, covered, half = error(choice.chosen)
    kinds = candidates.readings.kind_N[np.searchsorted(candidates.owner_N, choice.chosen)]
    return {
        "device": found.device, "program": found.names[target], "count": count,
        "seconds": choice.seconds, "whole_steps": int((kinds == 2).sum()),
        "measurements": len(choice.chosen), "suggested": suggested, "covered": covered,
        "half_width": half, "random": float(np.mean(random)),
        "random_median": float(np.median(random)),
        "zero_shot": abs(float(np.expm1(asked.log_predicted_N[0] - asked.log_measured_N[0]))),
        "ratio": suggested / float(np.mean(random)),
        "null": float(np.median([r / np.mean(random[:i] + random[i + 1 :])
                                 for i, r in enumerate(random)])),
        "random_sd": float(np.std(random)),
    }  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians and means by device and number of measurements, and over all devices."""

    def line(group: pd.DataFrame) -> pd.Series:
        return pd.Series({
            "pairs": len(group), "median_ratio": group["ratio"].median(),
            "null": group["null"].median(),
            "ratio_of_means": group["suggested"].mean() / group["random"].mean(),
            "better": (group["suggested"] < group["random_median"]).mean(),
            "zero_shot": group["zero_shot"].mean(), "random": group["random"].mean(),
            "suggested": group["suggested"].mean(), "covers": group["covered"].mean(),
            "seconds": group["seconds"].mean(),
        })  # fmt: skip

    each = rows.groupby(["count", "device"]).apply(line, include_groups=False)
    every = rows.groupby("count").apply(line, include_groups=False)
    every.index = pd.MultiIndex.from_tuples([(c, "all") for c in every.index])
    return pd.concat([each, every]).sort_index()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", required=True, type=Path, metavar="DIR")
    parser.add_argument("--suite", action="append", choices=tuple(SUITES))
    parser.add_argument("--count", action="append", type=int, help="measurements (3, 10, 20)")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--programs", type=int, default=30, help="of each device at most")
    parser.add_argument("--checkpoint", help="in place of the one that a suite names")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for suite in given.suite or SUITES:
        read, checkpoint = SUITES[suite]
        try:
            for found in read(given.data, given.checkpoint or checkpoint):
                order = np.random.default_rng(SEED).permutation(len(found.steps))
                for target in np.sort(order[: given.programs]).tolist():
                    for count in given.count or (3, 10, 20):
                        rows.append(replay(found, target, count, given.minutes))
                logging.info("%s: %d steps", found.device, len(found.steps))
        except DataError as error:
            logging.info("%s is left out: %s", suite, error)
        except PredictorError as error:
            parser.error(str(error))
    frame = pd.DataFrame(rows)
    write_text(given.out, json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(summary(frame).round(3).to_string() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
