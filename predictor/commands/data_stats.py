"""`predictor data stats`: what measured data holds, and how far its sources and releases differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predictor.commands import options
from predictor.commands.output import check_files, note, show, write_json
from predictor.commands.progress import row_progress
from predictor.errors import DataError


def stats(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Imports, a folder of imports, or data as published."
        ),
    ],
    json: options.Json = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the noise as a figure (plotly)."),
    ] = None,
) -> None:
    """Rows by source, device, op class and dtype; differences between repeats and releases."""
    check_files(json=json, html=html)
    for folder in folders:
        if not folder.exists():
            raise DataError(f"no folder or file {str(folder)!r}")
    from predictor.report.data_stats import check_figure_extra, stats_view, write_noise_figure
    from predictor.traces.reading import expected_rows
    from predictor.traces.stats import data_stats

    if html is not None:
        check_figure_extra()
    with row_progress("reading", expected_rows(folders)) as progress:
        found = data_stats(folders, progress=progress)
    if json is not None:
        write_json(found.to_json(), json)
    if html is not None and found.noise is not None:
        write_noise_figure(found.noise, html)
        note(f"wrote {html}")
    if json != "-":
        show(stats_view(found))


def register(app: typer.Typer) -> None:
    """Add `data` with its command `stats`."""
    data = typer.Typer(help="Measured data.", no_args_is_help=True)
    data.command("stats")(stats)

    @data.callback()
    def _group() -> None:
        """Measured data."""

    app.add_typer(data, name="data")
