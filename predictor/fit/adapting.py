"""`predictor calibrate`: from a file of measured rows to an adapter of one device."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.adapted import program_reading
from predictor.calibrate.adapter import Adapter, device_facts
from predictor.calibrate.posterior import Posterior, fit_adapter, leave_one_out
from predictor.calibrate.prior import shipped_interval_scale, shipped_prior
from predictor.calibrate.readings import KINDS, Readings, joined
from predictor.calibrate.terms import DTYPES
from predictor.checkpoint import default_checkpoint, load_release
from predictor.errors import AdapterError, CaptureError, CostRuleError, UnknownTargetError
from predictor.fit.model_samples import banks_of, in_bank, model_samples
from predictor.fit.readings import kernel_readings, model_readings
from predictor.fit.samples import kernel_samples
from predictor.fit.software import software_of
from predictor.hardware.catalogue import adopt_device, resolve_device
from predictor.hardware.device import Device
from predictor.lower.eager import lower_eager
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.program import capture
from predictor.traces.schema import KERNEL_COLUMNS, STEP_COLUMNS, Imported
from predictor.traces.sources.own import own_bank, with_graphs
from predictor.traces.sources.registry import read_source

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

MOST_ROWS = 1000
FLAGS_LEFT_OUT: tuple[str, ...] = (
    "noisy", "other_load", "cold_cache", "several_kernels", "below_floor", "throttled",
)  # fmt: skip
FLAGS_OF_LOAD: tuple[str, ...] = ("noisy", "other_load")
"""Of rows that `predictor measure --resume` measures once more."""
FAR_OFF = 30.0
"""Median ratio of measured and predicted from which the unit of the times is doubted."""
MOSTLY = 0.5
FAR = 4.0
"""The same, from which it is said that the rows are unlike the device."""
DISAGREE = 1.5
"""Ratio of the longest and shortest time of equal rows from which they contradict each other."""
_SAME = "same"
_OF_ONE_RUN: Mapping[str, tuple[str, ...]] = {
    "kernels": ("latency_us", "spread_us", "repeats", "model", "clock_mhz"),
    "steps": ("latency_us", "forward_us", "backward_us", "spread_us", "repeats", "power_limit_w"),
}
"""Columns of what is measured and not of what it is measured of, by table."""
_PROVENANCE = ("row_id", "source", "file", "row", "licence", "part", "flag", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a fit reads."""

    readings: Readings
    hashes: NDArray[np.uint64]
    left_out: Counter[str]
    """Rows that cannot be used, by reason."""
    device_times: int = 0
    """Readings of kernels in a loop, device time alone."""


def fit_from_rows(
    device: str | Path | Device,
    rows: Sequence[Path],
    *,
    checkpoint: str | Path | None = None,
) -> Adapter:
    """Fit a device's adapter on measured rows.

    Args:
        device: catalogue name, device file or a `Device`.
        rows: files or folders in the columns of own rows (docs/data.md), or as `predictor measure`
            writes them: kernels by themselves, kernels inside steps, whole steps.
        checkpoint: what the adapter corrects; the default of the device's kind when not given.

    Raises:
        UnknownDeviceError: no such device.
        AdapterError: no usable row, rows of another device, or times in another unit.
        DataError, CheckpointError: as reading rows and checkpoints does.
    """
    described = resolve_device(device)
    release = load_release(checkpoint or default_checkpoint([described.kind]))
    base = load_predictor(release)
    adopt_device(described)
    data = read_source("rows", rows)
    _check_device(data, described, rows)
    measured = readings_of(data, base)
    found = measured.readings
    _check_readings(found, measured.left_out, described)
    for reason, count in sorted(measured.left_out.items()):
        logger.info("%s rows left out: %s", f"{count:,}", reason)
    posterior = fit_adapter(found, shipped_prior())
    return Adapter(
        device=described.id, device_facts=device_facts(described), checkpoint=release.name,
        checkpoint_key=release.key, posterior=posterior, fitted_rows=measured.hashes,
        interval_scale=shipped_interval_scale(), facts=_facts(measured, posterior),
    )  # fmt: skip


def readings_of(data: Imported, base: LatencyPredictor) -> Measured:
    """Readings of the rows that a fit can use, `MOST_ROWS` at most: steps first.

    Rows of equal description and context are one reading, of their median time.
    """
    left_out: Counter[str] = Counter({f"import rule {k}": n for k, n in data.dropped.items()})
    flagged = {t: getattr(data, t)["flag"].isin(FLAGS_LEFT_OUT) for t in ("kernels", "steps")}
    for mask, table in ((flagged["kernels"], data.kernels), (flagged["steps"], data.steps)):
        for flag, count in table["flag"][mask].value_counts().items():
            left_out[f"flag {flag}"] += int(count)
    kernels, steps = data.kernels[~flagged["kernels"]], data.steps[~flagged["steps"]]
    steps = _at_most(_equal_as_one(steps, "steps"), MOST_ROWS, "steps", left_out)
    known = kernels["dtype"].str.startswith(DTYPES)
    for dtype, count in kernels["dtype"][~known].value_counts().items():
        left_out[f"kernels in {dtype}, which no correction knows"] += int(count)
    kernels = _equal_as_one(kernels[known], "kernels")
    kernels = _at_most(kernels, MOST_ROWS - len(steps), "kernels", left_out)
    device_times = 0
    parts: list[Readings] = []
    hashes: list[NDArray[np.uint64]] = []
    if len(kernels):
        samples = kernel_samples(kernels.reset_index(drop=True), base.networks.devices, left_out)
        if len(samples.row_N):
            parts.append(kernel_readings(base.networks, samples, base.learned))
            read = kernels.iloc[samples.row_N]
            hashes.append(row_hashes(read, "kernels"))
            device_times = int((read["context"] == "device").sum())
    if len(steps):
        for part, rows in _steps(steps, base, left_out):
            parts.append(part)
            hashes.append(row_hashes(rows, "steps"))
    if not parts:
        return Measured(readings=_NOTHING, hashes=np.zeros(0, dtype=np.uint64), left_out=left_out)
    return Measured(
        readings=joined(parts), hashes=np.concatenate(hashes), left_out=left_out,
        device_times=device_times,
    )  # fmt: skip


def _equal_as_one(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """A row each of equal kernels or steps, with their median time.

    Says so where the times of equal rows contradict each other.
    """
    import pandas as pd

    if rows.empty:
        return rows
    same = pd.Series(row_hashes(rows, table), index=rows.index)
    times = rows["latency_us"].groupby(same)
    spread = times.max() / times.min()
    if odd := int((spread > DISAGREE).sum()):
        logger.warning(
            "equal rows contradict each other: %s of %s that were measured more than once differ "
            "by a factor of %.1f or more (up to %.1f); the median of each counts",
            f"{odd:,}", f"{int((times.size() > 1).sum()):,}", DISAGREE, float(spread.max()),
        )  # fmt: skip
    one = rows[~same.duplicated()]
    return one.assign(latency_us=same[one.index].map(times.median()).astype(np.float64))


def _steps(
    steps: pd.DataFrame, base: LatencyPredictor, left_out: Counter[str]
) -> list[tuple[Readings, pd.DataFrame]]:
    """Readings of whole steps: those of a graph bank together, the others captured one by one."""
    own = with_graphs(steps.assign(source="own", graph=""), own_bank())
    named = steps["graph"] == ""
    steps = steps.assign(
        source=steps["source"].mask(named & (own["graph"] != ""), "own"),
        graph=steps["graph"].mask(named, own["graph"]),
    )
    banked = in_bank(steps, banks_of(steps))
    found: list[tuple[Readings, pd.DataFrame]] = []
    if banked.any():
        rows = steps[banked]
        depth = base.networks.message_layers
        models = model_samples(rows, banks_of(rows), base.networks.devices, depth, left_out)
        if models is not None:
            found.append((model_readings(base.networks, models, base.learned), models.rows))
    for at in np.flatnonzero(~banked).tolist():
        row = steps.iloc[at : at + 1]
        reading = _captured(row.to_dict("records")[0], base, left_out)
        if reading is not None:
            found.append((reading, row))
    return found


def _captured(
    row: Mapping[Any, Any], base: LatencyPredictor, left_out: Counter[str]
) -> Readings | None:
    """The reading of a step whose program a name tells; None where it does not."""
    if row["execution"] == "compiled":
        left_out["compiled step without a graph"] += 1
        return None
    batch, seq = (int(row[k]) if np.isfinite(row[k]) else None for k in ("batch", "seq"))
    try:
        graph = capture(
            str(row["model"]), mode=row["mode"], dtype=row["dtype"], batch=batch, seq=seq
        )
        kernels = lower_eager(graph, allow_opaque=False)
    except UnknownTargetError:
        left_out[
            f"step of {row['model']!r}, which names no program (a model of the zoo, timm:NAME, "
            "FILE.py:FUNCTION)"
        ] += 1
        return None
    except (CaptureError, CostRuleError) as error:
        left_out[f"step of {row['model']!r}, which cannot be captured ({error})"] += 1
        return None
    reading = program_reading(base, kernels, resolve_device(str(row["device"])), software_of(row))
    return replace(reading, log_measured_N=np.log([float(row["latency_us"])]))


def row_hashes(rows: pd.DataFrame, table: str) -> NDArray[np.uint64]:
    """(N,) what tells what was measured from another, wherever it is read from."""
    import pandas as pd

    columns = KERNEL_COLUMNS if table == "kernels" else STEP_COLUMNS
    names = [c for c in columns if c not in (*_PROVENANCE, *_OF_ONE_RUN[table])]
    return np.asarray(pd.util.hash_pandas_object(rows[names], index=False), dtype=np.uint64)


def _at_most(rows: pd.DataFrame, most: int, table: str, left_out: Counter[str]) -> pd.DataFrame:
    """So many rows, those whose hashes are smallest: spread over the file whatever its order."""
    if len(rows) <= most:
        return rows
    left_out[f"{table} beyond {MOST_ROWS} different rows"] += len(rows) - most
    order = np.argsort(row_hashes(rows, table), kind="stable")
    return rows.iloc[np.sort(order[:most])]


def _check_device(data: Imported, device: Device, rows: Sequence[Path]) -> None:
    names = sorted({*data.kernels["device"], *data.steps["device"]})
    if names and names != [device.id]:
        raise AdapterError(
            f"{', '.join(map(str, rows))}: rows of {', '.join(names)}, and the adapter is for "
            f"{device.id}; give rows of that device alone, or name the other with --device"
        )


def _check_readings(found: Readings, left_out: Counter[str], device: Device) -> None:
    below = left_out["flag below_floor"]
    if below > MOSTLY * (len(found) + below):
        raise AdapterError(
            f"{below} of {len(found) + below} rows are faster than {device.id} can be: are the "
            "times microseconds, and is it the device?"
        )
    if not len(found):
        why = "; ".join(f"{n} {reason}" for reason, n in sorted(left_out.items())) or "none given"
        loaded = left_out.keys() <= {f"flag {flag}" for flag in FLAGS_OF_LOAD} and left_out
        raise AdapterError(
            f"no measured row of {device.id} can be used ({why}); at least one is needed: "
            + (
                "measure again on a quiet machine, with `predictor measure … --resume`"
                if loaded
                else "measure kernels or whole steps with `predictor measure`"
            )
        )
    middle = float(np.median(found.log_ratio_N))
    if abs(middle) > np.log(FAR_OFF):
        raise AdapterError(
            f"the measured times are {np.exp(abs(middle)):,.0f} times "
            f"{'longer' if middle > 0 else 'shorter'} than predicted for {device.id} (median of "
            f"{len(found)} rows): times are microseconds (`latency_us`); check their unit and the "
            "device"
        )
    if abs(middle) > np.log(FAR):
        logger.warning(
            "the measured times are %.1f times %s than predicted for %s (median of %s rows): is it "
            "the device, and are they microseconds?",
            np.exp(abs(middle)), "longer" if middle > 0 else "shorter", device.id,
            f"{len(found):,}",
        )  # fmt: skip


def _facts(measured: Measured, posterior: Posterior) -> dict[str, Any]:
    """What the adapter's file tells of its rows."""
    found = measured.readings
    before, after = (
        np.abs(np.exp(-ratio) - 1.0)
        for ratio in (found.log_ratio_N, leave_one_out(posterior, found, shipped_prior()))
    )
    facts: dict[str, Any] = {"rows": len(found)}
    for i, kind in enumerate(KINDS):
        facts[f"rows_{kind}"] = int((found.kind_N == i).sum())
    facts["rows_device"] = measured.device_times
    facts |= {"error_before": float(before.mean()), "error_after": float(after.mean())}
    steps = found.kind_N == KINDS.index("step")
    if steps.any():
        facts |= {
            "step_error_before": float(before[steps].mean()),
            "step_error_after": float(after[steps].mean()),
        }
    noise = np.sqrt(posterior.prior.noise_K * posterior.noise_scale)
    return facts | {f"noise_{kind}": float(s) for kind, s in zip(KINDS, noise, strict=True)}


_NOTHING = Readings(
    log_predicted_N=np.zeros(0), log_measured_N=np.zeros(0), kind_N=np.zeros(0, dtype=np.int64),
    start_N=np.zeros(1, dtype=np.int64), part_us_P=np.zeros(0),
    part_PT=np.zeros((0, 0), dtype=np.float32), host_us_N=np.zeros(0), sharpness_N=np.zeros(0),
    row_NT=np.zeros((0, 0), dtype=np.float32), host_term=0,
)  # fmt: skip
