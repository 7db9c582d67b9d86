"""`predictor measure --suggest`: the measurements that tell most of some programs on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.calibrate.adapted import program_reading
from predictor.calibrate.posterior import NORMAL_90
from predictor.calibrate.prior import Prior, shipped_prior
from predictor.calibrate.readings import Readings, joined
from predictor.calibrate.suggest import Choice, choose
from predictor.errors import DataError
from predictor.fit.measurable import (
    Wanted,
    bank_programs,
    grid_points,
    small_programs,
    smaller,
)
from predictor.fit.pool import Context, Pool, pool_of
from predictor.traces.measure.plan import Plan, Planned, PlannedFor, PlannedProgram

SECONDS = 300.0
"""How long all measurements may take when nothing is said."""
SHRUNK_TARGETS = 4
"""Programs of which smaller ones are tried: each must be captured."""


def suggest(
    targets: Sequence[Wanted],
    context: Context,
    *,
    most: int,
    seconds: float = SECONDS,
    prior: Prior | None = None,
    pool: Pool | None = None,
) -> Plan:
    """The measurements to make, most telling first.

    The programs themselves, as they are, are not among them: a device on which they run needs no
    prediction.

    Args:
        targets: programs to be predicted, captured.
        context: device and checkpoint.
        most: how many measurements at most.
        seconds: how long they may take together.
        prior: of the device's corrections; the shipped one when not given.
        pool: what could be measured; what the library can run when not given.

    Raises:
        DataError: nothing fits into the time, or nothing would tell of the programs.
        UnsupportedPrecision, UnknownRateError: the device cannot run a program.
    """
    found = shipped_prior() if prior is None else prior
    readings = target_readings(targets, context)
    pool = usual_pool(targets, context) if pool is None else pool
    choice = choose(pool.candidates, readings, found, most=most, seconds=seconds)
    if not choice.chosen:
        least = float(pool.candidates.seconds_C.min())
        raise DataError(
            f"nothing worth measuring in {seconds:.3g} s among {len(pool.entries)} measurements; "
            f"the quickest takes {least:.2g} s: give more --minutes"
        )
    return plan_of(targets, readings, pool, choice, context, found)


def target_readings(targets: Sequence[Wanted], context: Context) -> Readings:
    """What is predicted of the programs without an adapter, as an estimate says it.

    That is in no release of the framework in particular; what is measured runs in the one at hand.
    """
    return joined([
        program_reading(
            context.base, target.graph, context.device,
            replace(context.software_in(target.dtype), framework_version=None),
        )
        for target in targets
    ])  # fmt: skip


def plan_of(
    targets: Sequence[Wanted],
    readings: Readings,
    pool: Pool,
    choice: Choice,
    context: Context,
    prior: Prior,
) -> Plan:
    """A choice as a plan."""
    noise = float(prior.noise_of(readings.kind_N).mean())
    after = np.exp(NORMAL_90 * np.sqrt(np.array(choice.mean_variance[1:]) + noise))
    ends = (np.exp(NORMAL_90 * np.sqrt(v)) for v in (choice.before_G, choice.after_G))
    each = zip(targets, np.exp(readings.log_predicted_N), *ends, strict=True)
    return Plan(
        device=context.device.id, checkpoint=context.base.name,
        targets=tuple(
            PlannedFor(
                target=PlannedProgram(
                    target=t.target, mode=t.mode, dtype=t.dtype, batch=t.batch, seq=t.seq
                ).key,
                predicted_us=float(us),
                factor_before=float(before), factor_after=float(end),
            )
            for t, us, before, end in each
        ),
        measurements=tuple(
            Planned(
                what=pool.entries[c], seconds=float(pool.candidates.seconds_C[c]), factor=float(f)
            )
            for c, f in zip(choice.chosen, after, strict=True)
        ),
    )  # fmt: skip


def usual_pool(targets: Sequence[Wanted], context: Context) -> Pool:
    """What the library can run: banks' programs, smaller ones of the targets, and kernels."""
    banked = bank_programs(context.device, {t.dtype for t in targets})
    own = {(t.target, t.mode, t.dtype, t.batch, t.seq) for t in targets}
    keys = zip(*(banked[c] for c in ("target", "mode", "dtype", "batch", "size")), strict=True)
    taken = [
        any((*key[:3], int(key[3]), seq) in own for seq in (int(key[4]), None)) for key in keys
    ]
    small = small_programs(
        context.device, sorted({t.dtype for t in targets}), sorted({t.mode for t in targets})
    )
    captured = {p.key: (p, g) for p, g in (*smaller(targets[:SHRUNK_TARGETS]), *small)
                if (p.target, p.mode, p.dtype, p.batch, p.seq) not in own}  # fmt: skip
    return pool_of(
        context, banked=banked[~np.array(taken, dtype=bool)], captured=list(captured.values()),
        points=grid_points(targets),
    )  # fmt: skip
