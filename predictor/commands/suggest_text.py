"""What `predictor measure --suggest` says of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.report.units import duration

if TYPE_CHECKING:
    from predictor.traces.measure.plan import Plan

SHOWN_TARGETS = 5


def plan_text(plan: Plan) -> str:
    """A plan and what is expected of it, as lines."""
    count = len(plan.measurements)
    steps, kernels = len(plan.programs), len(plan.points)
    lines = [
        f"{plan.device}: {count} measurement{'' if count == 1 else 's'}, {steps} whole steps and "
        f"{kernels} kernels alone, about {plan.seconds / 60:.2g} minutes, to predict with "
        f"{plan.checkpoint}:"
    ]
    for target in plan.targets[:SHOWN_TARGETS]:
        lines.append(f"  {target.target}: {duration(target.predicted_us)}")
        for when, factor in (("now", target.factor_before), ("then", target.factor_after)):
            low, high = target.predicted_us / factor, target.predicted_us * factor
            lines.append(
                f"    90% interval expected {when:<5} {duration(low)} to {duration(high)} "
                f"(x/÷ {factor:.2f})"
            )
    if len(plan.targets) > SHOWN_TARGETS:
        lines.append(f"  and {len(plan.targets) - SHOWN_TARGETS} more")
    lines.append("    x/÷ after it   takes   measure")
    lines += [
        f"{number:>3} {planned.factor:>13.2f} {planned.seconds:>6.1f}s   {planned.what.key}"
        for number, planned in enumerate(plan.measurements, 1)
    ]
    return "\n".join(lines)
