"""The folder of a run: it belongs to one recipe, one state of the data and one set of features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from predictor.atomic import write_text
from predictor.errors import RecipeError
from predictor.features.columns import columns_hash

RESOLVED = "recipe.json"


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
        RecipeError: the folder holds a run of another recipe, other data or other features.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    resolved = {"recipe": recipe, "data": facts, "features": columns_hash()}
    text = json.dumps(resolved, indent=1, sort_keys=True)
    path = out_dir / RESOLVED
    if path.is_file() and path.read_bytes() != text.encode():
        raise RecipeError(
            f"{out_dir} holds a {what} of another recipe, other data or other features (see "
            f"{RESOLVED}); "
            "give another --out, or remove it"
        )
    write_text(path, text)
