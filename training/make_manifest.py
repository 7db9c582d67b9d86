"""Make or check a data source's manifest: every file of it with rows and SHA-256.

    python training/make_manifest.py DIR OUT           remake OUT from the files below DIR
    python training/make_manifest.py DIR OUT --check   compare the files below DIR with OUT

`--also .md` takes files of a further kind (tables in Markdown). DIR is the root of the published
layout. Paths are relative to it and name the uncompressed file;
hashes are of the uncompressed content, so a gzipped copy and the original agree. Facts about the
source that stand in OUT (origin, commit, licence) are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from predictor.atomic import write_text
from predictor.errors import DataError
from predictor.traces.files import content_of, parse_csv

SUFFIXES = (".csv", ".csv.gz", ".json", ".parquet")


def manifest_files(root: Path, also: Sequence[str] = ()) -> dict[str, dict[str, list[Any]]]:
    """Rows and SHA-256 of every CSV, Parquet and JSON file below `root`, by folder and name.

    Args:
        root: the folder.
        also: endings of further files, which count as one row.
    """
    folders: dict[str, dict[str, list[Any]]] = {}
    for path in sorted(root.rglob("*")):
        if not path.is_file() or not path.name.endswith((*SUFFIXES, *also)):
            continue
        name = path.relative_to(root).as_posix()
        content = content_of(path, name)
        rows = _rows(content, name, one=(".json", *also))
        folder, _, plain = name.removesuffix(".gz").rpartition("/")
        folders.setdefault(folder, {})[plain] = [rows, hashlib.sha256(content).hexdigest()]
    return folders


def _rows(content: bytes, name: str, *, one: tuple[str, ...]) -> int:
    """Rows of a file: 1 for endings in `one`; of a Parquet table as its metadata say."""
    if name.endswith(one):
        return 1
    if not name.endswith(".parquet"):
        return len(parse_csv(content, name))
    try:
        return int(pq.read_metadata(io.BytesIO(content)).num_rows)
    except pa.ArrowException as error:
        raise DataError(f"{name}: not readable as Parquet ({error})") from error


def differences(
    recorded: dict[str, dict[str, list[Any]]], found: dict[str, dict[str, list[Any]]]
) -> Iterator[str]:
    """What differs, a line a file; files that only one side has are named too."""
    left = {f"{d}/{n}": v for d, names in recorded.items() for n, v in names.items()}
    right = {f"{d}/{n}": v for d, names in found.items() for n, v in names.items()}
    for name in sorted(left.keys() | right.keys()):
        if name not in right:
            yield f"missing: {name}"
        elif name not in left:
            yield f"not in the manifest: {name}"
        elif left[name] != right[name]:
            yield f"other content: {name}"


def render(manifest: dict[str, Any]) -> str:
    """JSON with a line a file."""
    head = {k: v for k, v in manifest.items() if k != "folders"}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
    folders = []
    for folder, names in manifest["folders"].items():
        files = ",\n".join(f"{json.dumps(n)}:{json.dumps(v, separators=(',', ':'))}"
                           for n, v in names.items())  # fmt: skip
        folders.append(f"{json.dumps(folder)}: {{\n{files}}}")
    return "{\n" + "\n".join(lines) + '\n "folders": {\n' + ",\n".join(folders) + "\n}}\n"


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 when all is well, 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--also", action="append", default=[], metavar="ENDING")
    given = parser.parse_args(arguments)
    manifest = json.loads(given.out.read_text()) if given.out.is_file() else {}
    found = manifest_files(given.folder, given.also)
    if given.check:
        lines = list(differences(manifest.get("folders", {}), found))
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 1 if lines else 0
    files = sum(len(names) for names in found.values())
    rows = sum(v[0] for names in found.values() for v in names.values())
    head = {k: v for k, v in manifest.items() if k not in ("folders", "files", "rows")}
    write_text(given.out, render({**head, "files": files, "rows": rows, "folders": found}))
    sys.stdout.write(f"{given.out}: {files:,} files, {rows:,} rows\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
