"""Which files of a folder are profiler traces or execution graphs, by how they begin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from predictor.errors import DataError
from predictor.traces.kineto.content import head_of
from predictor.traces.layouts import nothing_found

NAMES: tuple[str, ...] = ("*.json", "*.json.gz", "*.json.tar.gz", "*.json.tar")
_TRACE = re.compile(r'"(schemaVersion|traceEvents|deviceProperties|displayTimeUnit)"\s*:')
_GRAPH = re.compile(r'"schema"\s*:\s*"[\d.]+[^"]*"[\s\S]*"nodes"\s*:|"nodes"\s*:\s*\[')
_EVENTS = re.compile(r'^\s*\[\s*\{\s*"(ph|cat|name|pid)"')
_HEAD_CHARS = 2048
UNSTATED = "unstated"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file to read."""

    path: Path
    name: str
    """Below the root, with forward slashes."""
    root: Path


def trace_files(data: Path, folder: str) -> tuple[list[TraceFile], dict[str, str]]:
    """Traces and execution graphs at `data` in order of their names; other files with the reason.

    Args:
        data: one file, or a folder (at any depth; only `folder` in it where it is there).
        folder: name of the source's own folder.

    Raises:
        LayoutNotFoundError: `data` does not exist.
    """
    if data.is_file():
        return [TraceFile(data, data.name, data.parent)], {}
    root = data / folder if (data / folder).is_dir() else data
    if not root.is_dir():
        raise nothing_found(data, NAMES)
    found = sorted({p for pattern in NAMES for p in root.rglob(pattern) if p.is_file()})
    files, left_out = [], {}
    for path in found:
        name = path.relative_to(root).as_posix()
        try:
            head = head_of(path, _HEAD_CHARS)
        except DataError:
            files.append(TraceFile(path, name, root))  # reading it says what is wrong
            continue
        if _TRACE.search(head) or _GRAPH.search(head) or _EVENTS.match(head):
            files.append(TraceFile(path, name, root))
        else:
            left_out[name] = "neither a profiler trace nor an execution graph"
    return files, left_out


def licence_of(file: TraceFile) -> str:
    """Licence of a file: what a LICENSE file beside or above it (up to the root) says."""
    for folder in (file.path.parent, *file.path.parent.parents):
        licence = folder / "LICENSE"
        if licence.is_file() and "MIT License" in licence.read_text(
            encoding="utf-8", errors="replace"
        ):
            return "MIT"
        if folder == file.root:
            break
    return UNSTATED
