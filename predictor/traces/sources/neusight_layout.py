"""Where the files of the NeuSight layout lie, whole or in part, plain or gzipped."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from predictor.errors import UnknownDeviceError
from predictor.hardware.catalogue import resolve_device
from predictor.traces.files import FolderReader, LayoutNotFoundError, csv_at, one_of_each

logger = logging.getLogger(__name__)

SOURCE = "neusight"
LICENCE = "MIT"
_PARTS = ("label", "results", "data/dataset", "data/dataset_amd")
_ROOTS = ("neusight", "", "scripts/asplos", "NeuSight/scripts/asplos")
_MERGED = (("vec", "habitat", "elem", "ln", "softmax"), ("habitat", "elem", "ln", "softmax"))
"""Merged test files: where the first stands, the others repeat its rows."""


def find_root(data: Path) -> Path:
    """The NeuSight folder below `data` (`data/neusight`, `data` itself, or a clone's folder).

    Raises:
        LayoutNotFoundError: no part of the layout is there.
    """
    for name in _ROOTS:
        candidate = data / name
        if any((candidate / part).is_dir() for part in _PARTS):
            return candidate
    raise LayoutNotFoundError(
        f"{data}: no NeuSight layout (expected {', '.join(_PARTS)} below it, or below neusight/ "
        "or a clone's scripts/asplos/)"
    )


@dataclass(slots=True, kw_only=True)
class Layout:
    """Files of one layout; `only` narrows the measured files to a single one."""

    reader: FolderReader
    only: Path | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    """Files that are not read, and why."""
    node_shapes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Output shape of each node of the graphs built so far, as published."""
    _devices: dict[str, str | None] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Folder that holds `data`, `label` and `results`."""
        return self.reader.root

    def sweeps(self) -> list[Path]:
        """Kernel sweep files, without merged files that repeat them."""
        paths = [
            *self._csvs(self.root.glob("data/dataset/train/collect/*/*/*")),
            *self._csvs(self.root.glob("data/dataset_amd/*/collect/*/*/*")),
        ]
        found = self._csvs(self.root.glob("data/dataset/test/*"))
        if self.only is not None:
            return [*paths, *found]
        tests = {p.name.split(".csv")[0]: p for p in found}
        repeated = next((names for names in _MERGED if names[0] in tests), (None,))
        for name in repeated[1:]:
            if path := tests.pop(str(name), None):
                self.left_out[self.reader.name(path)] = f"repeats the rows of {repeated[0]}"
        return [*sorted(paths), *tests.values()]

    def labels(self) -> list[Path]:
        """Step labels."""
        return self._narrowed(sorted(self.root.glob("label/*/*.json")))

    def graph(self, name: str) -> Path | None:
        """The op graph of a step."""
        return csv_at(self.root / "results/opgraph", name)

    def graph_details(self, name: str) -> Path | None:
        """A file with module stacks, contiguity and dtypes of a graph's nodes."""
        folders = [self.root / "results/opgraph_raw", *sorted(self.root.glob("label/*/"))]
        return next((p for p in (csv_at(f, name) for f in folders) if p is not None), None)

    def predictions(self, pattern: str) -> list[Path]:
        """Published predictions, `results/prediction/DEVICE/PEER/STEP.json` or `.csv`."""
        paths = self.root.glob(f"results/prediction/*/*/{pattern}")
        if self.only is not None:
            return []
        return sorted(paths) if pattern.endswith(".json") else self._csvs(paths)

    def device(self, name: object) -> str | None:
        """Catalogue id of a device as a column or a folder names it, None when unknown."""
        if not isinstance(name, str) or name.lower().endswith(".toml"):
            return None
        if name not in self._devices:
            self._devices[name] = _device_id(name)
        return self._devices[name]

    def _csvs(self, paths: Iterable[Path]) -> list[Path]:
        every = list(paths)
        if self.only is not None:
            return [path for path in every if path == self.only]
        keep, copies = one_of_each(every)
        for path in copies:
            self.left_out[self.reader.name(path)] = "a second copy, gzipped"
        return keep

    def _narrowed(self, paths: list[Path]) -> list[Path]:
        return paths if self.only is None else [p for p in paths if p == self.only]


def open_layout(data: Path) -> Layout:
    """The layout at `data`: a folder that holds it, or one measured file inside one.

    Raises:
        LayoutNotFoundError: no part of the layout is there, or the file is no measured one of it.
    """
    if not data.is_file():
        return Layout(reader=FolderReader(root=find_root(data)))
    file = data.absolute()
    for folder in file.parents:
        if any((folder / part) in file.parents for part in _PARTS):
            layout = Layout(reader=FolderReader(root=folder), only=file)
            if layout.sweeps() or layout.labels():
                return layout
    raise LayoutNotFoundError(
        f"{data}: neither a sweep (data/dataset/…/*.csv) nor a label (label/DEVICE/*.json) of a "
        "NeuSight layout; keep the file in its published folder, or give the folder"
    )


def _device_id(name: str) -> str | None:
    for form in (name.replace(" ", "_"), name):
        try:
            return resolve_device(form, source=SOURCE).id
        except UnknownDeviceError:
            continue
    logger.warning("device %r is not in the catalogue", name)
    return None
