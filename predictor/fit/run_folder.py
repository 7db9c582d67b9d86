"""The folder of a run: it belongs to one recipe, one state of the data and one set of features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from predictor.atomic import write_text
from predictor.errors import RecipeError
from predictor.features.columns import columns_hash

RESOLVED = "recipe.json"


def check_folder(out_dir: Path, recipe: Mapping[str, object], what: str = "run") -> None:
    """Refuse a folder that cannot be the run's, before any data is read.

    Args:
        out_dir: folder of the run; need not exist.
        recipe: every resolved value of the recipe that matters.
        what: a `run` or a `study`.

    Raises:
        RecipeError: it is a file or below one, or holds a run of another recipe or other features.
    """
    above = next(path for path in (out_dir, *out_dir.absolute().parents) if path.exists())
    if not above.is_dir():
        raise RecipeError(f"{out_dir}: {above} is no folder; give another --out")
    path = out_dir / RESOLVED
    if not path.is_file() or _is_bare(out_dir):
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        same = held["recipe"] == json.loads(json.dumps(recipe)) and (
            held["features"] == columns_hash()
        )
    except (ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise _other(out_dir, what)


def claim_folder(
    out_dir: Path, recipe: Mapping[str, object], facts: Mapping[str, object], what: str = "run"
) -> None:
    """Write what a run depends on beside it, or refuse a folder that holds another one.

    Args:
        out_dir: folder of the run; made when missing.
        recipe: every resolved value of the recipe that matters.
        facts: rows and their hash, by source.
        what: a `run` or a `study`.

    Raises:
        RecipeError: the folder holds a run of another recipe, other data or other features, with
            something of it done.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    resolved = {"recipe": recipe, "data": facts, "features": columns_hash()}
    text = json.dumps(resolved, indent=1, sort_keys=True)
    path = out_dir / RESOLVED
    if path.is_file() and path.read_bytes() != text.encode() and not _is_bare(out_dir):
        raise _other(out_dir, what)
    write_text(path, text)


def _is_bare(out_dir: Path) -> bool:
    """Whether a run came to nothing yet: its folder holds what it would have been, no result."""
    return all(path.name == RESOLVED for path in out_dir.iterdir())


def _other(out_dir: Path, what: str) -> RecipeError:
    return RecipeError(
        f"{out_dir} holds a {what} of another recipe, other data or other features (see "
        f"{RESOLVED}); give another --out, or remove it"
    )
