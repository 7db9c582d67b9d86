"""Writing files whole or not at all: an interrupted run leaves no half-written file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that becomes `path` when the block ends well.

    Args:
        path: the file to write; its folder is created when missing.

    Yields:
        A path in the same folder (same suffix) to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that takes its place when the block ends well.

    Args:
        path: the folder to write; what it held before is gone afterwards. Of a link, what it
            leads to.

    Yields:
        An empty folder to fill.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    fresh, old = scratch / "fresh", scratch / "old"
    fresh.mkdir()
    try:
        yield fresh
        if path.exists():
            path.rename(old)
        fresh.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(scratch, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all."""
    with replacing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _umask() -> int:
    """The process's umask (reading it means setting it twice)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
