"""Estimates as text: for a terminal, a file or a notebook cell."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from predictor.graph.ir import PHASES
from predictor.hardware.device import FUSED, TELL_TF32, Software
from predictor.report.assemble import itemised
from predictor.report.estimate import Estimate, StepCorrection
from predictor.report.groups import KernelGroup
from predictor.report.units import count, duration, duration_range, gib, percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MIN_WIDTH = 120
"""Below this, ids and numbers would be cut."""
TEXT_WIDTH = 160
TOP_GROUPS = 10
TOP_TERMS = 4
"""Terms of a step's correction that are named."""
_EXCLUDED = "inputs already on the device; no data loading, no host-to-device copy"
_NAME_WIDTH = 44
"""Longer kernel names are cut in the table, in the middle: both ends tell."""
_OF_TRACE = ("step", "estimated", "opaque")
"""Parts of a recorded step that are in the estimate, or no part."""
_MISSING = {"unknown": "calls of which nothing is known"}


def plain_text(view: RenderableType, width: int = TEXT_WIDTH) -> str:
    """A view as plain text, `width` columns at most."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, force_jupyter=False)
    console.print(view)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def estimate_text(estimate: Estimate) -> str:
    """The estimate as plain text."""
    return plain_text(estimate_view(estimate))


def estimate_html(estimate: Estimate) -> str:
    """A `<pre>` block with inline styles, for notebooks."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=TEXT_WIDTH, record=True, force_jupyter=False)
    console.print(estimate_view(estimate))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def estimate_view(estimate: Estimate) -> RenderableType:
    """What the command line prints: memory first when the program does not fit."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"{headline(estimate)}  on  {estimate.device.id}", style="bold")
    ]
    parts.append(_facts(estimate))
    if estimate.groups:
        parts += [Text(), _groups_table(estimate)]
    if estimate.warnings:
        parts.append(Text())
        parts += [Text(f"warning: {text}", style="yellow") for text in estimate.warnings]
    return Group(*parts)


def headline(estimate: Estimate) -> str:
    """What was captured, in a line: `gpt2, train, fp32, batch 4 × 1024 tokens, adamw`."""
    workload = estimate.graph.workload
    parts = [estimate.target, workload.mode, workload.dtype]
    if workload.batch is not None:
        size = f"batch {workload.batch}"
        if workload.tokens is not None and workload.batch:
            size += f" × {workload.tokens // workload.batch} tokens"
        parts.append(size)
    if workload.optimizer is not None:
        parts.append(workload.optimizer)
    return ", ".join(parts)


def _facts(estimate: Estimate) -> Table:
    """Two columns: what, and its value."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(overflow="fold")
    rows = [("memory", _memory_line(estimate))]
    times = _time_rows(estimate)
    rows = rows + times if estimate.hypothetical else times + rows
    rows += [
        ("captured", _captured_line(estimate)),
        ("work", _work_line(estimate)),
        ("coverage", _coverage_line(estimate)),
        ("context", _context_line(estimate)),
    ]
    for name, value in rows:
        style = "bold red" if name == "memory" and estimate.hypothetical else ""
        grid.add_row(name, Text(value, style="bold" if name == "step" else style))
    return grid


def _time_rows(estimate: Estimate) -> list[tuple[str, str]]:
    step = estimate.step
    line = (
        f"{duration(step.latency_us)}   {step.level:.0%} interval "
        f"{duration_range(step.lower_us, step.upper_us)}"
    )
    if rate := throughput(estimate):
        line += f"   {rate}"
    if estimate.hypothetical:
        line += "   (hypothetical: does not fit)"
    rows = [("step", line)]
    for phase in PHASES:
        if (interval := estimate.phases.get(phase)) is not None and len(estimate.phases) > 1:
            span = duration_range(interval.lower_us, interval.upper_us)
            rows.append((f"  {phase}", f"{duration(interval.latency_us)}   {span}"))
    recorded = estimate.graph.workload.recorded_us
    excluded = _excluded_of_trace(recorded) if recorded else _EXCLUDED
    rows.append(("  holds", f"{', '.join(step.includes)}; {excluded}"))
    if step.correction is not None:
        rows.append(("  corrected", _correction_line(step.correction)))
    if recorded:
        rows.append(("recorded", _recorded_line(recorded)))
    return rows


def _correction_line(correction: StepCorrection) -> str:
    """`x 1.042 for what kernels and host miss: release -0.05, compiled +0.03, …`."""
    largest = list(correction.terms.items())[:TOP_TERMS]
    parts = ", ".join(f"{name} {value:+.3f}" for name, value in largest)
    return f"x {correction.factor:.3f} for what kernels and host miss; log terms: {parts}"


def _not_estimated(recorded: Mapping[str, float]) -> dict[str, float]:
    """Parts of a recorded step that the estimate does not hold, with their times."""
    return {
        _MISSING.get(name, name): us
        for name, us in recorded.items()
        if name not in _OF_TRACE and us > 0
    }


def _excluded_of_trace(recorded: Mapping[str, float]) -> str:
    missing = _not_estimated(recorded)
    return "; left out: ".join(["no data loading", *([", ".join(missing)] if missing else [])])


def _recorded_line(recorded: Mapping[str, float]) -> str:
    """What the trace measured of the same part, and of what the estimate does not hold."""
    missing = _not_estimated(recorded)
    line = f"{duration(recorded['estimated'])} kernel time of the part that is estimated"
    if recorded["opaque"] > 0:
        line += f" (opaque calls {duration(recorded['opaque'])})"
    if missing:
        parts = ", ".join(f"{name} {duration(us)}" for name, us in missing.items())
        line += f"; not estimated {parts}"
    return f"{line}; whole step {duration(recorded['step'])}"


def _recorded_shares(recorded: Mapping[str, float]) -> str:
    """Kernel time of the trace by what the estimate knows of it: three shares of the whole."""
    missing = sum(us for name, us in recorded.items() if name not in _OF_TRACE)
    whole = recorded["estimated"] + missing
    known = recorded["estimated"] - recorded["opaque"]
    return (
        f"known calls {percent(known / whole)}, opaque {percent(recorded['opaque'] / whole)}, "
        f"not estimated {percent(missing / whole)}"
    )


def throughput(estimate: Estimate) -> str:
    """Samples, or tokens, a second; empty when the batch is unknown."""
    workload, seconds = estimate.graph.workload, estimate.step.latency_us / 1e6
    if workload.batch is None or not seconds > 0:
        return ""
    if workload.tokens is not None:
        return f"{workload.tokens / seconds:,.0f} tokens/s"
    return f"{workload.batch / seconds:,.1f} samples/s"


def _memory_line(estimate: Estimate) -> str:
    memory = estimate.memory
    verdict = {True: "fits", False: "DOES NOT FIT", None: "device memory unknown"}[memory.fits]
    capacity = "" if memory.capacity_bytes is None else f" of {gib(memory.capacity_bytes)} usable"
    return f"{gib(memory.peak_bytes)} peak{capacity}, {verdict}: {itemised(memory)}"


def _captured_line(estimate: Estimate) -> str:
    figures, tokens = estimate.workload, estimate.graph.workload.tokens
    parts = [f"{figures.parameters:,} parameters"]
    if tokens is not None:
        parts.append(f"{tokens:,} tokens")
    parts += [f"{figures.ops:,} framework calls", f"{figures.kernels:,} kernel launches"]
    return ", ".join(parts)


def _work_line(estimate: Estimate) -> str:
    figures = estimate.workload
    return (
        f"{count(figures.flops, 'FLOP')}, by the published dense convention "
        f"{count(figures.matmul_flops, 'FLOP')} in matrix products; "
        f"{count(figures.bytes, 'B')} moved"
    )


def _coverage_line(estimate: Estimate) -> str:
    coverage = estimate.coverage
    labels = ("learned", "measured", "transferred", "roofline", "opaque")
    shares = [(name, getattr(coverage, name)) for name in labels]
    shown = ", ".join(f"{name} {percent(share)}" for name, share in shares if share > 0)
    recorded = estimate.graph.workload.recorded_us
    of = "estimated kernel time" if recorded else "kernel time"
    line = f"{shown} of {of}; {percent(coverage.in_distribution)} in distribution"
    if recorded:
        line += f"; of the trace's kernel time: {_recorded_shares(recorded)}"
    return line


def _context_line(estimate: Estimate) -> str:
    software = estimate.software
    on = {True: "on", False: "off"}
    key = estimate.provenance.get("checkpoint_key")
    content = f" (content {key[:8]})" if key else ""
    line = f"checkpoint {estimate.checkpoint}{content}; {_runs_in(software)}"
    if estimate.device.peak_tf32_tflops is None or estimate.device.vendor != "nvidia":
        return line  # the switches exist there only
    if software.framework in TELL_TF32:
        unless = (
            "in TF32 unless the program asks for HIGHEST" if software.matmul_tf32 else "in fp32"
        )
        return f"{line}; fp32 products {unless}"
    fused = software.framework == FUSED
    default = "; the default of TensorRT and ONNX Runtime, --no-tf32 turns it off"
    return (
        f"{line}; TF32 matmul {on[software.matmul_tf32]}, "
        f"TF32 convolution {on[software.conv_tf32]} "
        f"(fp32 work{default if fused and software.matmul_tf32 else ''})"
    )


def _runs_in(software: Software) -> str:
    """`pytorch eager`, `jax, compiled by XLA`: eager is a word for frameworks that can be."""
    if software.framework in TELL_TF32:
        return f"{software.framework}, compiled by XLA"
    if software.framework == FUSED:
        return software.framework
    return f"{software.framework} {software.mode}"


def _groups_table(estimate: Estimate) -> Table:
    from rich.table import Table

    shown = estimate.groups[:TOP_GROUPS]
    share = percent(sum(g.share for g in shown))
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title=f"costliest kernel groups: {len(shown)} of {len(estimate.groups)}, {share} of time",
        title_justify="left",
        title_style="bold",
        header_style="cyan",
    )
    for name in ("share", "count"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("kernel", "phase"):
        table.add_column(name, no_wrap=True)
    table.add_column("dims", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    for name in ("each", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("bound", "label"):
        table.add_column(name, no_wrap=True)
    for group in shown:
        table.add_row(*_group_cells(group))
    return table


def _short(name: str) -> str:
    """A kernel's name, at most `_NAME_WIDTH` characters of it."""
    if len(name) <= _NAME_WIDTH:
        return name
    tail = _NAME_WIDTH // 3
    return f"{name[: _NAME_WIDTH - tail - 1]}…{name[-tail:]}"


def _group_cells(group: KernelGroup) -> tuple[str, ...]:
    implied = {"batch": 1, "groups": 1, "kv_heads": group.dims.get("heads")}
    dims = " ".join(f"{k}={n}" for k, n in group.dims.items() if implied.get(k) != n)
    return (
        percent(group.share),
        f"{group.count:,}",
        _short(group.name),
        group.phase,
        dims,
        group.dtype,
        duration(group.latency_us),
        duration_range(group.lower_us, group.upper_us),
        group.bound,
        group.label,
    )
