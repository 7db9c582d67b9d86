"""How device names are compared: normal forms, names shared by several devices, near names.

Pure text work: the catalogue gives the labels (ids, runtime names, aliases) of each device.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BRANDS = frozenset(
    {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "google", "qualcomm"}
)
"""Words that a name may carry or leave out without meaning another device."""

SHARED_NAMES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Orin": (
        ("nvidia-jetson-agx-orin-64gb", "nvidia-jetson-orin-nano-8gb"),
        "every Orin module reports this name",
    ),
    "Xavier": (
        ("nvidia-jetson-agx-xavier",),
        "every Xavier module reports this name, the 6-SM Xavier NX too",
    ),
    "AMD Instinct MI250X/MI250": (
        ("amd-mi250-gcd", "amd-mi250x-gcd"),
        "MI250 (104 CUs) and MI250X (110 CUs) share this name",
    ),
    "AMD Radeon Graphics": (
        ("amd-mi250-gcd", "amd-mi250x-gcd"),
        "some ROCm versions report this name for MI250 and for others",
    ),
}
"""Names as runtimes print them that several devices share, and why."""

FAMILY_NAMES: Mapping[str, tuple[str, ...]] = {
    "H200": ("nvidia-h200-sxm-141gb", "nvidia-h200-nvl-141gb"),
    "RTX 6000": (
        "nvidia-rtx-a6000",
        "nvidia-rtx-pro-6000-blackwell-ws",
        "nvidia-rtx-pro-6000-blackwell-maxq",
        "nvidia-rtx-pro-6000-blackwell-server",
    ),
}
"""Short names of a family that the words of the labels alone would not show as ambiguous."""

PRODUCT_NAMES: Mapping[str, tuple[str, ...]] = {
    "google-tpu-v5e": ("TPU v5litepod", "v5litepod"),
    "google-tpu-v6e": ("Trillium", "TPU Trillium"),
    "google-tpu7x-device": ("Ironwood", "TPU Ironwood", "TPU v7x"),
}
"""What a vendor calls a product beside the name that its runtime prints."""

_SLICE = re.compile(r"(?:tpu[\s_-]*)?v(2|3|4|5p|5e|5litepod|6e)-(\d+)", re.IGNORECASE)
_CORES_A_CHIP: Mapping[str, int] = {"2": 2, "3": 2, "4": 2, "5p": 2}
"""TPU generations whose slice names count TensorCores; the others count chips."""

PACKAGE_DIES: Mapping[str, str] = {
    "amd-mi250-package": "amd-mi250-gcd",
    "amd-mi250x-package": "amd-mi250x-gcd",
    "intel-max-1550-package": "intel-max-1550-stack",
    "google-tpu-v2-chip": "google-tpu-v2-core",
    "google-tpu-v3-chip": "google-tpu-v3-core",
    "google-tpu7x-chip": "google-tpu7x-device",
}
"""Package rows and the row of the device that the framework sees."""


def slice_of(name: str) -> str:
    """What the name of a TPU slice counts, as words; empty for any other name.

    A slice is several devices, and JAX shows v2 and v3 by TensorCore, the later ones by chip.
    """
    found = _SLICE.fullmatch(name.strip())
    if found is None:
        return ""
    generation, count = found[1].lower().replace("litepod", "e"), int(found[2])
    cores = _CORES_A_CHIP.get(generation, 1)
    chips = -(-count // cores)
    counts = f"counts TensorCores, {cores} a chip" if cores > 1 else "counts chips"
    device = f"google-tpu-v{generation}" + ("-core" if generation in ("2", "3") else "")
    return (
        f"{name!r} is a slice of {chips} chip{'' if chips == 1 else 's'} (its number {counts}), "
        f"and a prediction is for one device as JAX shows it: give {device}"
    )


def words(name: str, *, brands: bool = True) -> tuple[str, ...]:
    """Lower-case words of a name, without trademark signs; `brands=False` drops brand words."""
    bare = re.sub(r"[®™©]|\((?:r|tm|c)\)", " ", name, flags=re.IGNORECASE)
    text = unicodedata.normalize("NFKC", bare).lower()
    found = re.findall(r"[^\W_]+(?:\.[^\W_]+)*", text)
    return tuple(word for word in found if brands or word not in BRANDS)


def key(name: str, *, brands: bool = True) -> str:
    """Form in which names are compared: `words` run together, so `RTX-4090` is `rtx4090`."""
    return "".join(words(name, brands=brands))


_SHARED_BY_KEY = {key(name): entry for name, entry in SHARED_NAMES.items()}
_FAMILY_BY_KEY = {key(name): ids for name, ids in FAMILY_NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Outcome of a look-up: one id when it was found, else what it might have meant."""

    ids: tuple[str, ...]
    exact: bool
    """The name is the name of `ids`: one device when unique, else a name that they share."""
    reason: str = ""
    """Why several devices share the name."""


class NameIndex:
    """Labels of all devices, by the forms that names are compared in."""

    def __init__(self, labels: Mapping[str, Iterable[str]]) -> None:
        """Index the labels of each device id; labels `dataset/name` are scoped to the data set."""
        self._full: dict[str, set[str]] = defaultdict(set)
        self._brandless: dict[str, set[str]] = defaultdict(set)
        self._words: dict[str, set[frozenset[str]]] = defaultdict(set)
        self._scoped: dict[tuple[str, str], str] = {}
        self._datasets: set[str] = set()
        for device_id, device_labels in labels.items():
            for label in (device_id, *device_labels):
                dataset, slash, name = label.partition("/")
                if slash and label not in SHARED_NAMES:
                    self._scoped[dataset.lower(), key(name)] = device_id
                    self._datasets.add(dataset.lower())
                    continue
                self._full[key(label)].add(device_id)
                self._brandless[key(label, brands=False)].add(device_id)
                self._words[device_id].add(frozenset(words(label, brands=False)))

    def scoped(self, name: str, dataset: str | None) -> str | None:
        """Id of a data set's own name: `name` within `dataset`, or `name` as `dataset/name`."""
        if dataset is not None and (hit := self._scoped.get((dataset.lower(), key(name)))):
            return hit
        prefix, slash, rest = name.partition("/")
        return self._scoped.get((prefix.strip().lower(), key(rest))) if slash else None

    def find(self, name: str) -> Match:
        """Look up a name outside any data set."""
        full, brandless = key(name), key(name, brands=False)
        if shared := _SHARED_BY_KEY.get(full):
            return Match(ids=shared[0], exact=True, reason=shared[1])
        if full and (hit := self._full.get(full)):
            return Match(ids=tuple(sorted(hit)), exact=True)
        if family := _FAMILY_BY_KEY.get(brandless):
            return Match(ids=family, exact=False)
        if brandless and (hit := self._brandless.get(brandless)):
            return Match(ids=tuple(sorted(hit)), exact=True)
        wanted = frozenset(words(name, brands=False))
        partial = [
            device_id
            for device_id, forms in self._words.items()
            if wanted and any(wanted <= form for form in forms)
        ]
        return Match(ids=tuple(partial), exact=False)

    def near(self, name: str, *, count: int = 5) -> tuple[str, ...]:
        """Ids whose labels look most like `name`, best first."""
        wanted = key(name, brands=False)
        found: dict[str, None] = {}
        close = difflib.get_close_matches(wanted, self._brandless, n=4 * count, cutoff=0.5)
        for form in close or difflib.get_close_matches(wanted, self._brandless, n=3, cutoff=0.0):
            found.update(dict.fromkeys(sorted(self._brandless[form])))
        return tuple(found)[:count]
