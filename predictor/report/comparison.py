"""`Comparison`: one program on several devices, one row a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.report.estimate import Estimate
from predictor.report.text import headline, plain_text, throughput
from predictor.report.units import duration, duration_range, gib, percent

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Estimates of one program by device; a device that cannot run it has a reason instead."""

    target: str
    estimates: tuple[Estimate, ...]
    refused: Mapping[str, str]
    """Device id to reason (precision, unknown rate, …)."""

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def frame(self) -> pd.DataFrame:
        """One row a device: step, interval, memory, throughput."""
        import pandas as pd

        return pd.DataFrame([_row(e) for e in self.estimates])

    def to_json(self) -> dict[str, object]:
        """JSON-able: the rows, and the devices refused with their reasons."""
        rows = [_row(e) for e in self.estimates]
        return {"target": self.target, "devices": rows, "refused": dict(self.refused)}

    def table(self) -> str:
        """The comparison as plain text."""
        return plain_text(self.view())

    def __str__(self) -> str:
        return self.table()

    def view(self) -> RenderableType:
        """One row a device in the order asked for, then a line for each one refused."""
        from rich.console import Group
        from rich.text import Text

        refused = [Text(f"refused {name}: {why}") for name, why in self.refused.items()]
        if not self.estimates:
            return Group(*refused)
        notes = [Text(f"warning: {text}", style="yellow") for text in self._warnings()]
        names = {e.checkpoint: [o.device.id for o in self.estimates if o.checkpoint == e.checkpoint]
                 for e in self.estimates}  # fmt: skip
        if len(names) > 1:
            told = "; ".join(f"{name} for {', '.join(ids)}" for name, ids in names.items())
            refused.append(Text(f"checkpoints: {told}"))
        title = Text(headline(self.estimates[0]), style="bold")
        return Group(title, self._rows_view(), *refused, *notes)

    def _warnings(self) -> list[str]:
        """Every warning once, with its devices unless it names one or holds for all."""
        holds: dict[str, list[str]] = {}
        for estimate in self.estimates:
            for text in estimate.warnings:
                holds.setdefault(text, []).append(estimate.device.id)
        return [
            text
            if len(ids) == len(self.estimates) or any(i in text for i in ids)
            else f"{', '.join(ids)}: {text}"
            for text, ids in holds.items()
        ]

    def _rows_view(self) -> Table:
        from rich.table import Table

        level = self.estimates[0].step.level
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
        table.add_column("device", no_wrap=True)
        for name in ("step", f"{level:.0%} interval", "throughput", "peak memory"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("fits", no_wrap=True)
        for name in ("learned", "transferred", "in distribution"):
            table.add_column(name, justify="right", no_wrap=True)
        for estimate in self.estimates:
            table.add_row(*_cells(estimate))
        return table


def _row(estimate: Estimate) -> dict[str, object]:
    workload, step = estimate.graph.workload, estimate.step
    seconds = step.latency_us / 1e6
    counts = {"samples_per_s": workload.batch, "tokens_per_s": workload.tokens}
    return {
        "device": estimate.device.id,
        "latency_us": step.latency_us,
        "lower_us": step.lower_us,
        "upper_us": step.upper_us,
        "peak_bytes": estimate.memory.peak_bytes,
        "fits": estimate.memory.fits,
        **{k: None if n is None or seconds <= 0 else n / seconds for k, n in counts.items()},
        "learned": estimate.coverage.learned,
        "transferred": estimate.coverage.transferred,
        "in_distribution": estimate.coverage.in_distribution,
        "level": step.level,
        "mode": workload.mode,
        "dtype": workload.dtype,
        "checkpoint": estimate.checkpoint,
        "warnings": list(estimate.warnings),
    }


def _cells(estimate: Estimate) -> tuple[str, ...]:
    step, memory = estimate.step, estimate.memory
    fits = {True: "yes", False: "NO: hypothetical", None: "unknown"}[memory.fits]
    return (
        estimate.device.id,
        duration(step.latency_us),
        duration_range(step.lower_us, step.upper_us),
        throughput(estimate),
        gib(memory.peak_bytes),
        fits,
        percent(estimate.coverage.learned),
        percent(estimate.coverage.transferred),
        percent(estimate.coverage.in_distribution),
    )
