"""The checkpoint folder: `config.json`, `model.safetensors`, `metrics.json`, `README.md`.

This module owns the folder and its checks; what the values mean is the network's business
(`predictor.nn`). Nothing here unpickles, and nothing that fails a check is ever returned.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.atomic import replacing_folder
from predictor.errors import CheckpointError
from predictor.version import code_version

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
MAX_BYTES = 20_000_000
CONFIG, WEIGHTS, METRICS, CARD = "config.json", "model.safetensors", "metrics.json", "README.md"
RELEASE_FOLDER = "release"
"""Folder of a run that holds its checkpoint."""
FILES: tuple[str, ...] = (CONFIG, WEIGHTS, METRICS, CARD)

GIVEN_KEYS: tuple[str, ...] = (
    "name",  # immutable release name
    "model",  # every value the network is built from
    "features",  # node, device and context columns, with their hash
    "vocabulary",  # op tokens the embedding rows stand for
    "calibration",  # interval scales
    "data",  # sources with their hashes
    "training",  # the resolved recipe
)
WRITTEN_KEYS: tuple[str, ...] = ("format_version", "code_version", "weights_sha256")
CONFIG_KEYS: frozenset[str] = frozenset(GIVEN_KEYS + WRITTEN_KEYS)

_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"})
DEFAULT_CHECKPOINT = "base-v2"
"""The shipped release that estimates and evaluations take where none is named."""
DEFAULT_OF_KIND: Mapping[str, str] = {"tpu": "tpu-v1"}
"""The same for devices of kinds that it learned nothing of."""
_RETRAIN = f"train it again with `predictor train`, or name a shipped one (`{DEFAULT_CHECKPOINT}`)"


def default_checkpoint(kinds: Iterable[str]) -> str:
    """The shipped release for devices of some kinds, where none is named.

    Args:
        kinds: of the devices together; several kinds take the one for all.
    """
    found = {DEFAULT_OF_KIND.get(kind, DEFAULT_CHECKPOINT) for kind in kinds}
    return found.pop() if len(found) == 1 else DEFAULT_CHECKPOINT


@dataclass(frozen=True, kw_only=True)
class Release:
    """A checkpoint folder that passed its checks."""

    name: str
    path: Path
    config: Mapping[str, object]
    """`config.json`: exactly the keys of `CONFIG_KEYS`."""
    metrics: Mapping[str, object]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Weights and scaler buffers, read on first use.

        Raises:
            CheckpointError: the file is not safetensors, or holds NaN or infinite values.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.path / WEIGHTS
        try:
            tensors = load_file(path, device="cpu")
        except SafetensorError as error:
            raise CheckpointError(
                f"{path} is not a safetensors file ({error}); {_RETRAIN}"
            ) from error
        _check_finite(tensors, str(path))
        return tensors

    @property
    def key(self) -> str:
        """Identity of the content: equal for equal configuration and weights."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def list_releases() -> list[str]:
    """Names of the checkpoints installed with the package, sorted."""
    root = _shipped_root()
    if root is None:
        return []
    return sorted(p.name for p in root.iterdir() if (p / CONFIG).is_file())


def load_release(name_or_dir: str | Path) -> Release:
    """Read and check a checkpoint.

    Args:
        name_or_dir: a shipped name (`base-v1`) or the folder of a checkpoint. A shipped name wins
            over a folder of the same name; write `./base-v1` for the folder.

    Returns:
        The checked folder; its weights are read on first use of `tensors`.

    Raises:
        CheckpointError: unknown name, missing file, wrong hash, unknown version or key, a pickle
            where safetensors belongs, or more than 20 MB.
    """
    folder, shipped = _find(name_or_dir)
    for file in FILES:
        if not (folder / file).is_file():
            raise CheckpointError(_missing(folder, file))
    size = sum((folder / file).stat().st_size for file in FILES)
    if size > MAX_BYTES:
        raise CheckpointError(
            f"checkpoint {folder} holds {size:,} bytes; at most {MAX_BYTES:,} are allowed: "
            "use a smaller network or store weights as float16"
        )
    config = _read_json(folder / CONFIG)
    _check_config(config, folder)
    _check_weights(folder / WEIGHTS, str(config["weights_sha256"]))
    name = str(config["name"])
    if shipped and name != folder.name:
        raise CheckpointError(
            f"checkpoint folder {folder.name!r} says its name is {name!r}; names are immutable: "
            "rename the folder or save the release again"
        )
    return Release(name=name, path=folder, config=config, metrics=_read_json(folder / METRICS))


def save_release(
    folder: Path,
    *,
    config: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    metrics: Mapping[str, object],
    card: str,
    overwrite: bool = False,
) -> Release:
    """Write a checkpoint folder, whole or not at all, and read it back.

    Args:
        folder: where; an existing checkpoint is refused unless `overwrite`.
        config: the keys of `GIVEN_KEYS`, JSON-able; the format version, code version and hash
            of the weights are added here.
        tensors: weights and scaler buffers, all finite.
        metrics: what the release was measured to do.
        card: text of the model card.
        overwrite: replace a checkpoint that is there (scratch runs, not releases).

    Raises:
        CheckpointError: an unknown or missing key, a value JSON cannot hold, a NaN weight, more
            than 20 MB, or a folder that is there already.
    """
    from safetensors.torch import save

    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder} exists and release names are immutable: choose a new name or folder"
        )
    _check_keys(config, frozenset(GIVEN_KEYS), f"config for {folder}")
    if not _NAME.fullmatch(str(config["name"])):
        raise CheckpointError(
            f"release name {config['name']!r}: lower-case letters, digits, '-' and '.' only"
        )
    _check_finite(tensors, f"weights for {folder}")
    data = save({k: v.detach().cpu().contiguous().clone() for k, v in sorted(tensors.items())})
    written = {
        "format_version": FORMAT_VERSION,
        "code_version": code_version(),
        "weights_sha256": hashlib.sha256(data).hexdigest(),
    }
    config_text = _dump_json({**written, **config}, f"config for {folder}")
    metrics_text = _dump_json(metrics, f"metrics for {folder}")
    size = len(data) + len(config_text) + len(metrics_text) + len(card.encode())
    if size > MAX_BYTES:
        raise CheckpointError(
            f"release {config['name']} would hold {size:,} bytes; at most {MAX_BYTES:,} are allowed"
        )
    with replacing_folder(folder) as fresh:
        (fresh / WEIGHTS).write_bytes(data)
        (fresh / CONFIG).write_text(config_text, encoding="utf-8")
        (fresh / METRICS).write_text(metrics_text, encoding="utf-8")
        (fresh / CARD).write_text(card, encoding="utf-8")
    return load_release(folder)


def _shipped_root() -> Path | None:
    """Folder of the shipped checkpoints, None when the package is not installed."""
    try:
        root = resources.files("predictor._weights")
    except ModuleNotFoundError:
        return None
    return root if isinstance(root, Path) else None


def _find(name_or_dir: str | Path) -> tuple[Path, bool]:
    """The folder meant, and whether it is a shipped one."""
    root = _shipped_root()
    text = str(name_or_dir)
    if isinstance(name_or_dir, str) and root is not None and _NAME.fullmatch(text):
        shipped = root / text
        if (shipped / CONFIG).is_file():
            return shipped, True
    path = Path(name_or_dir)
    if text.startswith("~") and not path.is_dir():
        path = Path(os.path.expanduser(path))  # leaves an unknown user's as it is
    if text and path.is_dir():
        return path, False
    if path.is_file():
        raise CheckpointError(f"{path} is a file; a checkpoint is a folder with {', '.join(FILES)}")
    known = ", ".join(list_releases()) or "none installed (pip install the package, see README)"
    raise CheckpointError(
        f"no checkpoint {text!r}; shipped: {known}; or give the folder of one that "
        "`predictor train` wrote"
    )


def _missing(folder: Path, file: str) -> str:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLE_SUFFIXES)
    if file == WEIGHTS and pickles:
        return (
            f"checkpoint {folder} has {pickles[0]} but no {WEIGHTS}: pickled weights are never "
            "loaded; save the release again as safetensors"
        )
    if (folder / RELEASE_FOLDER / CONFIG).is_file():
        return f"{folder} is the folder of a run; its checkpoint is {folder / RELEASE_FOLDER}"
    return f"checkpoint {folder} has no {file}; it needs {', '.join(FILES)}: {_RETRAIN}"


def _no_number(text: str) -> float:
    """JSON has no NaN and no infinity, and no release is written with one."""
    raise ValueError(f"{text} is no number")


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); {_RETRAIN}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object; {_RETRAIN}")
    return value


def _dump_json(value: Mapping[str, object], what: str) -> str:
    try:
        return json.dumps(value, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{what}: {error}; only finite numbers, text, lists and mappings can be stored"
        ) from error


def _check_keys(config: Mapping[str, object], allowed: frozenset[str], what: str) -> None:
    unknown, absent = sorted(set(config) - allowed), sorted(allowed - set(config))
    if unknown:
        raise CheckpointError(
            f"{what}: unknown key {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}; "
            "a newer release needs a newer package (pip install -U latency-predictor)"
        )
    if absent:
        raise CheckpointError(f"{what}: key {absent[0]!r} is missing; {_RETRAIN}")


def _check_config(config: Mapping[str, object], folder: Path) -> None:
    version = config.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise CheckpointError(
            f"{folder / CONFIG}: format_version {version!r}; this package reads {FORMAT_VERSION}: "
            "install the package version the checkpoint was made with, or train it again"
        )
    _check_keys(config, CONFIG_KEYS, str(folder / CONFIG))


def _check_weights(path: Path, expected: str) -> None:
    data = path.read_bytes()
    if data[8:9] != b"{":  # safetensors: eight bytes of header length, then a JSON object
        raise CheckpointError(
            f"{path} is not a safetensors file (a pickle?); pickled weights are never loaded: "
            f"{_RETRAIN}"
        )
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        raise CheckpointError(
            f"{path}: sha256 {actual[:12]}… differs from {expected[:12]}… in {CONFIG}; the file "
            "was changed or cut short: restore it or install the package again"
        )


def _check_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{what}: tensor {name!r} holds NaN or infinite values; {_RETRAIN}"
            )
