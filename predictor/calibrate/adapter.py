"""The adapter folder: `adapter.toml` (to read), `adapter.safetensors` (to apply).

It belongs to one checkpoint and one device, both named with what tells them apart; nothing else
takes it. This module owns the folder and its checks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.atomic import replacing_folder
from predictor.calibrate.posterior import Posterior
from predictor.calibrate.prior import Prior
from predictor.calibrate.readings import KINDS
from predictor.calibrate.terms import TERMS
from predictor.errors import AdapterError
from predictor.hardware.device import Device
from predictor.version import code_version

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
CONFIG, WEIGHTS = "adapter.toml", "adapter.safetensors"
FOLDER_VARIABLE = "PREDICTOR_ADAPTERS"
"""Environment variable that names the user's folder of adapters."""
AUTO = "auto"
"""Name that asks for the adapter of a device in the user's folder."""
CORRECTIONS_HEAD: tuple[str, ...] = (
    "# Factor on the time, and its spread (one standard deviation in log), by term that the rows",
    "# tell of; adapter.safetensors holds what is applied.",
    "[corrections]",
)
SHOWN_SD = 0.95
"""A term whose spread is still so much of the prior's is not listed for reading."""
_REMEDY = "fit it again with `predictor calibrate`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What a few measurements of a device say of a checkpoint's predictions for it."""

    device: str
    """Id of the device."""
    device_facts: Mapping[str, Any]
    """What was known of it: another device of the same id is refused."""
    checkpoint: str
    checkpoint_key: str
    """Hash of the checkpoint's configuration and weights."""
    posterior: Posterior
    interval_scale: float
    """Factor on the spread that the fit leaves, from devices held out."""
    facts: Mapping[str, Any]
    """Rows by kind, errors before and after by leave-one-out, noise."""
    fitted_rows: NDArray[np.uint64]
    """Hashes of what it was fitted on, one a reading: rows of the same prove nothing."""

    @property
    def rows(self) -> int:
        """Rows that it was fitted on."""
        return int(self.facts["rows"])

    @property
    def line(self) -> str:
        """What it is, in one line."""
        of = "step_" if self.facts["rows_step"] else ""
        before, after = (
            100 * float(self.facts[f"{of}error_{when}"]) for when in ("before", "after")
        )
        head = (
            f"calibrated for {self.device} on {self.rows} measured row"
            f"{'' if self.rows == 1 else 's'}: "
        )
        if self.rows == 1:
            return f"{head}{before:.1f}% off before; how far off after, one row cannot tell"
        return (
            f"{head}leave-one-out error of {'steps' if of else 'kernels'} {before:.1f}% before, "
            f"{after:.1f}% after"
        )

    def check_device(self, device: Device) -> bool:
        """Whether it is for a device.

        Raises:
            AdapterError: the device has the same id and other facts.
        """
        if device.id != self.device:
            return False
        facts = device_facts(device)
        if facts != self.device_facts:
            names = sorted({*facts, *self.device_facts})
            other = next(n for n in names if facts.get(n) != self.device_facts.get(n))
            raise AdapterError(
                f"the adapter of {self.device} was fitted where {other} = "
                f"{self.device_facts.get(other)!r}, and here it is {facts.get(other)!r}: {_REMEDY}"
            )
        return True

    def check_checkpoint(self, name: str, key: str) -> None:
        """Refuse another checkpoint than its own.

        Raises:
            AdapterError: names both.
        """
        if key != self.checkpoint_key:
            raise AdapterError(
                f"the adapter of {self.device} belongs to checkpoint {self.checkpoint!r} "
                f"({self.checkpoint_key[:12]}…), not to {name!r} ({key[:12]}…): give "
                f"--checkpoint {self.checkpoint}, or {_REMEDY}"
            )

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all.

        Raises:
            AdapterError: the folder holds something else than an adapter of the device.
        """
        from safetensors.numpy import save

        _check_place(folder, self.device)
        found = self.posterior
        data = save({
            "active": found.active_A.astype(np.int64), "mean": found.mean_A,
            "covariance": found.covariance_AA.astype(np.float32),
            "prior_variance": found.prior.variance_T, "noise_variance": found.prior.noise_K,
            "fitted_rows": self.fitted_rows,
        })  # fmt: skip
        text = self._config_text(hashlib.sha256(data).hexdigest())
        with replacing_folder(folder) as fresh:
            (fresh / WEIGHTS).write_bytes(data)
            (fresh / CONFIG).write_text(text, encoding="utf-8")

    def _config_text(self, weights_sha256: str) -> str:
        top = {
            "format_version": FORMAT_VERSION, "code_version": code_version(),
            "checkpoint": self.checkpoint, "checkpoint_key": self.checkpoint_key,
            "device": self.device, "noise_scale": self.posterior.noise_scale,
            "interval_scale": self.interval_scale, "weights_sha256": weights_sha256,
        }  # fmt: skip
        lines = [f"{key} = {_toml(value)}" for key, value in top.items()]
        for table, values in (("rows", self.facts), ("device_facts", self.device_facts)):
            lines += ["", f"[{table}]", *(f"{k} = {_toml(v)}" for k, v in values.items())]
        lines += ["", *CORRECTIONS_HEAD]
        found = self.posterior
        spread = np.sqrt(np.diag(found.covariance_AA))
        prior = np.sqrt(found.prior.variance_T[found.active_A] * found.noise_scale)
        order = np.argsort(spread / prior)
        lines += [
            f"{json.dumps(TERMS[found.active_A[i]])} = "
            f"{{ factor = {np.exp(found.mean_A[i]):.4f}, spread = {spread[i]:.4f} }}"
            for i in order if spread[i] < SHOWN_SD * prior[i]
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def _check_place(folder: Path, device: str) -> None:
    """Refuse a folder whose content writing an adapter would take away."""
    if not folder.exists():
        return
    others = sorted({entry.name for entry in folder.iterdir()} - {CONFIG, WEIGHTS})
    if others:
        raise AdapterError(
            f"{folder} holds something else than an adapter ({others[0]}): writing there would "
            "remove it; give another --out"
        )
    if not (folder / CONFIG).is_file():
        return
    try:
        held = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get("device")
    except ValueError:  # damaged: nothing is lost
        return
    if held != device:
        raise AdapterError(f"{folder} holds the adapter of {held}; give another --out")


def load_adapter(folder: str | Path) -> Adapter:
    """Read and check an adapter folder, named by itself or by its `adapter.toml`.

    Raises:
        AdapterError: no such folder, a missing or damaged file, or another version.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = Path(folder)
    if path.name == CONFIG and path.is_file():
        path = path.parent
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise AdapterError(f"{path} is no adapter: it has no {name}; {_REMEDY}")
    try:
        config = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
        data = (path / WEIGHTS).read_bytes()
        if config["format_version"] != FORMAT_VERSION:
            raise AdapterError(
                f"{path}: format_version {config['format_version']!r}; this package reads "
                f"{FORMAT_VERSION}: {_REMEDY}"
            )
        if config["weights_sha256"] != hashlib.sha256(data).hexdigest():
            raise ValueError(f"{WEIGHTS} is not what {CONFIG} was written with")
        return _from_parts(config, load(data))
    except KeyError as error:
        raise AdapterError(f"{path} is damaged ({error} is missing); {_REMEDY}") from error
    except (SafetensorError, ValueError, TypeError) as error:
        raise AdapterError(f"{path} is damaged ({error}); {_REMEDY}") from error


def adapters_given(
    adapter: str | Path | Adapter | None, places: Iterable[tuple[str, str]]
) -> list[Adapter]:
    """The adapters that are asked for, checked by themselves.

    Args:
        adapter: an adapter as loaded, its folder, `auto` for those of the user's folder, or None.
        places: ids of devices and names of the checkpoints that predict for them, for `auto`.

    Raises:
        AdapterError: it is neither, or as `load_adapter`.
    """
    if adapter is None:
        return []
    if isinstance(adapter, Adapter):
        return [adapter]
    if not isinstance(adapter, str | Path):
        raise AdapterError(
            f"adapter is {type(adapter).__name__}: give a folder that `predictor calibrate` "
            f"wrote, what `load_adapter` gave, or {AUTO!r}"
        )
    if str(adapter) != AUTO:
        return [load_adapter(adapter)]
    folders = [user_place(device, checkpoint) for device, checkpoint in places]
    found = [load_adapter(folder) for folder in folders if (folder / CONFIG).is_file()]
    if not found:
        logger.warning("adapter auto: no adapter in %s fits; nothing is corrected", user_folder())
    return found


def _from_parts(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Adapter:
    active, terms, kinds = arrays["active"], len(TERMS), len(KINDS)
    a = len(active)
    shapes = {
        "mean": (a,), "covariance": (a, a), "prior_variance": (terms,), "noise_variance": (kinds,)
    }  # fmt: skip
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not {shape} finite numbers")
    if a and not (active.min() >= 0 and active.max() < terms):
        raise ValueError("a term that does not exist")
    prior = Prior(
        variance_T=arrays["prior_variance"].astype(np.float64),
        noise_K=arrays["noise_variance"].astype(np.float64),
    )
    posterior = Posterior(
        active_A=active.astype(np.int64), mean_A=arrays["mean"].astype(np.float64),
        covariance_AA=arrays["covariance"].astype(np.float64), prior=prior,
        noise_scale=_number(config, "noise_scale", above=0.0),
    )  # fmt: skip
    return Adapter(
        device=_text(config, "device"), device_facts=dict(config["device_facts"]),
        checkpoint=_text(config, "checkpoint"), checkpoint_key=_text(config, "checkpoint_key"),
        posterior=posterior, interval_scale=_number(config, "interval_scale", above=0.0),
        facts=_facts(dict(config["rows"])), fitted_rows=arrays["fitted_rows"].astype(np.uint64),
    )  # fmt: skip


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the table of rows must hold, each of its type."""
    counts = {name: _count(facts, name) for name in ("rows", *(f"rows_{kind}" for kind in KINDS))}
    if counts["rows"] < 1 or sum(counts.values()) != 2 * counts["rows"]:
        raise ValueError(f"rows = {counts['rows']} is not the sum of its kinds, or not above 0")
    if _count(facts, "rows_device") > counts["rows_kernel"]:
        raise ValueError(f"rows_device = {facts['rows_device']} is more than rows_kernel")
    errors = ("error_before", "error_after")
    of_steps = [f"step_{name}" for name in errors] if counts["rows_step"] else []
    for name in (*errors, *of_steps, *(f"noise_{kind}" for kind in KINDS)):
        if _number(facts, name) < 0:
            raise ValueError(f"{name} = {facts[name]!r} is below 0")
    return dict(facts)


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} = {value!r} is no count")
    return value


def _number(values: Mapping[str, Any], name: str, above: float = -math.inf) -> float:
    value = values[name]
    if type(value) not in (int, float) or not math.isfinite(value) or value <= above:
        wanted = "finite number" if above == -math.inf else f"finite number above {above:g}"
        raise ValueError(f"{name} = {value!r} is no {wanted}")
    return float(value)


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} = {value!r} is no text")
    return value


def device_facts(device: Device) -> dict[str, Any]:
    """Known facts of a device that a prediction may read."""
    names = (n for n in device.__dataclass_fields__ if n not in ("notes", "confidence"))
    values = {name: getattr(device, name) for name in names}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items() if value is not None and value != ()
    }  # fmt: skip


def user_folder() -> Path:
    """Where a user's adapters stand: `PREDICTOR_ADAPTERS`, else the system's place for data."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "predictor" / "adapters"


def user_place(device: str, checkpoint: str) -> Path:
    """Folder of a device's adapter to a checkpoint in the user's folder."""
    return user_folder() / f"{device}@{checkpoint}"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
