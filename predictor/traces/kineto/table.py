"""The summary of a trace as text."""

from __future__ import annotations

from predictor.traces.kineto.names import short_name
from predictor.traces.kineto.summary import TraceSummary

_FOUND = {
    "annotated": "ProfilerStep", "optimizer": "by the optimizer's step",
    "repetition": "by repetition", "whole": "the whole trace as one",
}  # fmt: skip
_LEAST_US = 0.05
"""Shorter times show as none."""


def summary_text(summary: TraceSummary) -> str:
    """Lines for a reader; times are of one step, shares are of the step."""
    s = summary
    period = s.step_us
    noisy = ", noisy" if s.spread_us > s.median_step_us else ""
    left = f", {s.steps_left_out} left out" if s.steps_left_out else ""
    replayed = f", {s.replayed:,} by graph replay" if s.replayed else ""
    spent = [f"compute {time_text(s.compute_us)}"]
    if s.communication_us:
        beside = s.communication_us - s.overlap_us - s.exposed_communication_us
        copies = f"{time_text(beside)} beside copies only, " if beside >= _LEAST_US else ""
        spent.append(
            f"communication {time_text(s.communication_us)} ({time_text(s.overlap_us)} beside "
            f"compute, {copies}{time_text(s.exposed_communication_us)} alone)"
        )
    if s.copy_us:
        spent.append(f"copies {time_text(s.copy_us)}")
    if s.concurrent_us:
        spent.append(f"several streams {time_text(s.concurrent_us)}")
    idle = [
        f"{name} {time_text(value)}"
        for name, value in (
            ("launch gaps", s.launch_gap_us), ("waiting", s.waiting_us),
            ("unexplained", s.unexplained_us),
        )
        if value
    ]  # fmt: skip
    lines = [
        ("trace", s.file),
        ("device", f"{s.device or 'not named'}, rank {s.rank} of {s.world_size}"),
        (
            "steps",
            f"{s.steps} ({_FOUND[s.steps_found]}{left}), "
            f"{s.kernels:,} kernels and copies{replayed}",
        ),
        (
            "step",
            f"{time_text(s.step_us)}, mean of {s.steps} as all times here (median "
            f"{time_text(s.median_step_us)}, spread {time_text(s.spread_us)}{noisy})",
        ),
        ("busy", f"{time_text(s.busy_us)}  {s.busy_us / period:.1%}   {', '.join(spent)}"),
        ("idle", f"{time_text(s.idle_us)}  {s.idle_us / period:.1%}   {', '.join(idle)}"),
        *(("top kernels", _top_head(s)) for _ in s.top[:1]),
        *(
            (
                "",
                f"{top.share:6.1%}  {top.count:>6,} × {time_text(top.time_us / top.count):>9}  "
                f"{short_name(top.name)}",
            )
            for top in s.top
        ),
        *(("note", note) for note in s.notes),
    ]  # fmt: skip
    return "\n".join(f"{name:<13}{text}".rstrip() for name, text in lines)


def _top_head(s: TraceSummary) -> str:
    """What the shares of the top kernels are of."""
    first = s.top[0]
    each = first.time_us / first.share / s.steps if first.share else 0.0
    return f"shares of the sum over all streams, {time_text(each)} a step; calls of all {s.steps}"


def time_text(us: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:,.2f} {unit}"
    return f"{us:,.1f} µs"
