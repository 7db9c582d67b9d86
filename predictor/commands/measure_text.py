"""What `predictor measure` says of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.report.units import duration

if TYPE_CHECKING:
    from predictor.traces.measure.step_parts import MeasuredStep, StepParts


def step_text(key: str, measured: MeasuredStep) -> str:
    """A step and its parts as lines.

    Args:
        key: what tells the step from others.
        measured: what came of it.
    """
    parts, row = measured.parts, measured.step
    spread = row["spread_us"] / row["latency_us"]
    flag = f", {row['flag']}" if row["flag"] else ""
    steps = "1 step" if row["repeats"] == 1 else f"{row['repeats']} steps"
    lines = [f"{key}: {duration(parts.wall_us)} a step, spread {spread:.1%} ({steps}{flag})"]
    if row["mode"] == "train":
        phases = {"forward": row["forward_us"], "backward": row["backward_us"],
                  "optimizer": parts.optimizer_us}  # fmt: skip
        lines.append("  " + ", ".join(f"{name} {duration(us)}" for name, us in phases.items()))
    if parts.captured:
        lines += _inside(parts, written=bool(measured.kernels))
    return "\n".join(lines)


def _inside(parts: StepParts, *, written: bool) -> list[str]:
    """The parts of a step that was not compiled."""
    if parts.differs:
        return [f"  its steps differ: {parts.alike} of {parts.tried} profiled ones made the calls "
                "of the first; the kernels inside are not written"]  # fmt: skip
    sums = {"kernels": parts.kernels_us, "other calls": parts.unmatched_us, "gap": parts.gap_us}
    shares = ", ".join(f"{name} {us / parts.wall_us:.1%}" for name, us in sums.items())
    whole = sum(sums.values()) / parts.wall_us
    apart = "" if written else ": too far apart, the kernels inside are not written"
    lines = [
        f"  {parts.matched} of {parts.captured} captured calls found: {shares}: "
        f"together {whole:.1%} of the step that nothing watched{apart}"
    ]
    return lines + [f"  not seen: {count} {name}" for name, count in parts.not_seen.items()]
