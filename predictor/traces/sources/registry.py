"""Sources by name: which importers exist, and reading one from several folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import DataError
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.import_folder import check_target, imported_at, warn_beside_import
from predictor.traces.import_report import ImportReport
from predictor.traces.merge import merged
from predictor.traces.progress import Progress, told
from predictor.traces.sampling import sampled
from predictor.traces.schema import Imported
from predictor.traces.sources import (
    aiconfigurator,
    aiter,
    deepbench,
    enzyme,
    gptbench,
    kineto,
    neusight,
    own,
    rows,
    scalesim,
    steps,
    timm,
    tpugraphs,
    tpurecipes,
    vidur,
)
from predictor.traces.store import read_parts, write_imported

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One importer of a public layout."""

    name: str
    """What the command line calls it."""
    folders: tuple[str, ...]
    """Its folders below a folder of data folders."""
    licence: str
    parts: Callable[[Path], Iterator[Imported]]
    """Rows of the layout at a path, in parts of bounded size that passed `keep_valid`.

    The path is a folder of data folders, the source's own folder, an upstream clone, or one file.
    Raises `LayoutNotFoundError` (before the first part) where nothing of it is there.
    """
    sample_rows: int | None = None
    """Kernel rows that training and evaluation take at most (`predictor.traces.sampling`)."""
    unstated_facts: bool = False
    """Whether it publishes facts of a kernel that rows have no column for (strides, transposes)."""
    expected_rows: Callable[[Path], int] | None = None
    """Rows that reading a path will give, kept or dropped, where that is quickly told."""


_SOURCES = (
    Source(name="neusight", folders=("neusight",), licence="MIT", parts=neusight.parts),
    Source(name="timm", folders=(timm.FOLDER,), licence=timm.LICENCE, parts=timm.parts),
    Source(
        name="aiconfigurator",
        folders=(aiconfigurator.SOURCE,),
        licence=aiconfigurator.LICENCE,
        parts=aiconfigurator.parts,
        sample_rows=500_000,
        expected_rows=aiconfigurator.expected_rows,
    ),
    Source(
        name="gptbench", folders=(gptbench.FOLDER,), licence=gptbench.LICENCE, parts=gptbench.parts
    ),
    Source(
        name=enzyme.SOURCE, folders=(enzyme.FOLDER,), licence=enzyme.LICENCE, parts=enzyme.parts
    ),
    Source(name="steps", folders=steps.FOLDERS, licence=steps.LICENCE, parts=steps.parts),
    Source(name=own.SOURCE, folders=(), licence=own.LICENCE, parts=own.parts),
    Source(name=rows.SOURCE, folders=(rows.FOLDER,), licence=rows.UNSTATED, parts=rows.parts),
    Source(name="vidur", folders=(vidur.SOURCE,), licence=vidur.LICENCE, parts=vidur.parts),
    Source(name="aiter", folders=(aiter.FOLDER,), licence=aiter.LICENCE, parts=aiter.parts),
    Source(
        name=kineto.SOURCE, folders=(kineto.FOLDER,), licence=kineto.LICENCE, parts=kineto.parts
    ),
    Source(
        name=tpugraphs.SOURCE,
        folders=(tpugraphs.FOLDER,),
        licence=tpugraphs.LICENCE,
        parts=tpugraphs.parts,
    ),
    Source(
        name=scalesim.SOURCE,
        folders=(scalesim.FOLDER,),
        licence=scalesim.LICENCE,
        parts=scalesim.parts,
    ),
    Source(
        name=tpurecipes.SOURCE,
        folders=(tpurecipes.FOLDER,),
        licence=tpurecipes.LICENCE,
        parts=tpurecipes.parts,
    ),
    Source(
        name="deepbench",
        folders=(deepbench.SOURCE,),
        licence=deepbench.LICENCE,
        parts=deepbench.parts,
        unstated_facts=True,
    ),
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _SOURCES}


def source_of(name: str) -> Source:
    """The source of a name.

    Raises:
        DataError: unknown.
    """
    if name not in SOURCES:
        raise DataError(f"no source {name!r}; known: {', '.join(SOURCES)}")
    return SOURCES[name]


def expected_rows(name: str, data: Path) -> int | None:
    """Rows that an import of `data` will read; None where they must be read to know.

    Raises:
        DataError: the source is unknown, or nothing of it is at `data`.
    """
    source = source_of(name)
    return None if source.expected_rows is None else source.expected_rows(data)


def import_source(
    name: str, data: Path, out: Path, *, progress: Progress | None = None
) -> ImportReport:
    """Read the layout at `data` and write it to the folder `out` in the one schema (Parquet).

    Args:
        name: of the source.
        data: what its `parts` takes.
        out: a new folder, or one that holds an import.
        progress: told the rows done after each part.

    Raises:
        DataError: the source is unknown, nothing of it is at `data`, a file is damaged, or `out`
            holds something else.
    """
    source = source_of(name)
    check_target(out)
    return write_imported(name, told(source.parts(data), progress), out)


def read_source(
    name: str,
    folders: Sequence[Path],
    *,
    progress: Progress | None = None,
    sample_rows: int = 0,
    chosen: Callable[[pd.DataFrame], pd.Series[bool]] | None = None,
) -> Imported:
    """Rows of one source from all `folders` that hold part of its layout, or an import of it.

    Of a source that does not fit in memory a sample is read; the other rows are counted as
    `not_sampled`.

    Args:
        name: of the source.
        folders: any of them may hold nothing of it.
        progress: told the rows read after each part.
        sample_rows: kernel rows of such a source at most, other than its own number.
        chosen: tells the kernel rows that are wanted; a sample is taken of those. All, when not
            given.

    Raises:
        DataError: the source is unknown, or no folder holds any of it.
    """
    source = source_of(name)
    found: list[Imported] = []
    failed: list[str] = []
    rows = 0

    def heard(count: int) -> None:
        nonlocal rows
        rows = count
        if progress is not None:
            progress(count)

    for folder in folders:
        try:
            found.append(_read(source, folder, heard, rows, sample_rows, chosen))
        except LayoutNotFoundError as error:
            failed.append(str(error))
    if not found:
        raise DataError("; ".join(failed) or f"no folder given for source {name!r}")
    return merged(found, repeated=len(found) > 1)


def _read(
    source: Source,
    folder: Path,
    progress: Progress,
    before: int,
    sample_rows: int,
    chosen: Callable[[pd.DataFrame], pd.Series[bool]] | None,
) -> Imported:
    parts = told(_parts(source, folder), progress, before=before)
    read = 0

    def counted() -> Iterator[Imported]:
        nonlocal read
        for part in parts:
            if chosen is not None and len(part.kernels):
                part.kernels = part.kernels[chosen(part.kernels)].reset_index(drop=True)
            read += len(part.kernels)
            yield part

    if source.sample_rows is None:
        return merged(counted())
    data = sampled(counted(), limit=sample_rows or source.sample_rows)
    order = ["file", "row", "row_id"]  # as published, whatever the sample's own order
    data.kernels = data.kernels.sort_values(order, kind="stable", ignore_index=True)
    if len(data.kernels) < read:
        data.dropped["not_sampled"] += read - len(data.kernels)
    return data


def _parts(source: Source, folder: Path) -> Iterator[Imported]:
    imported = imported_at(folder, source.name)
    if imported is None:
        return source.parts(folder)
    warn_beside_import(imported)
    return read_parts(imported)
