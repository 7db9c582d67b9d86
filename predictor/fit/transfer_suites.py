"""What a transfer report is made of: which rows are measured on a new device, which are predicted.

A suite draws `evidence` rows of one device and scores `target` rows of it. Rows in one `group` (a
model, a shape) stay on one side: a model whose step was measured is not scored at another batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from predictor.errors import DataError
from predictor.traces.import_folder import imported_at
from predictor.traces.sources.registry import source_of

Kind: TypeAlias = Literal["alone", "inside", "step"]
"""Kernels timed alone, kernels or ops timed inside steps, whole steps."""
KIND_TEXT: Mapping[Kind, str] = {
    "alone": "kernels alone", "inside": "ops inside steps", "step": "whole steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSuite:
    """One kind of measurement on a new device, and what it is asked to predict."""

    name: str
    source: str
    evidence: Kind
    target: Kind
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of columns of kernel rows; rows of other values are left out."""
    by_setting: bool = False
    """Whether each software setting of the device is measured and scored by itself."""
    newest: bool = False
    """Whether of each setting only the newest release of the framework counts."""
    per_sample: bool = False
    """Whether devices ran the same model at other batches: a proxy's time is then by sample."""

    @property
    def same_kind(self) -> bool:
        """Whether what is measured is of the kind that is predicted: baselines need it."""
        return self.evidence == self.target

    @property
    def spread(self) -> bool:
        """Whether draws spread over groups; a timer inside steps reads one step after another."""
        return self.evidence != "inside"


_SUITES = (
    TransferSuite(
        name="timm", source="timm", evidence="step", target="step", newest=True, by_setting=True,
        per_sample=True,
    ),
    TransferSuite(
        name="timm-any-setting", source="timm", evidence="step", target="step", newest=True,
        per_sample=True,
    ),
    TransferSuite(name="gptbench", source="gptbench", evidence="step", target="step"),
    TransferSuite(name="neusight-steps", source="neusight", evidence="step", target="step"),
    TransferSuite(name="neusight-ops-to-steps", source="neusight", evidence="inside",
                  target="step"),
    TransferSuite(name="neusight-alone-to-steps", source="neusight", evidence="alone",
                  target="step"),
    TransferSuite(name="neusight-ops", source="neusight", evidence="inside", target="inside"),
    TransferSuite(name="neusight-kernels", source="neusight", evidence="alone", target="alone"),
    TransferSuite(
        name="aiconfigurator-gemm", source="aiconfigurator", evidence="alone", target="alone",
        only={"op": ("matmul",), "dtype": ("bf16",), "framework": ("trtllm",), "scheme": ("",)},
    ),
    TransferSuite(name="own-steps", source="own", evidence="step", target="step"),
    TransferSuite(name="own-ops-to-steps", source="own", evidence="inside", target="step"),
    TransferSuite(name="own-alone-to-steps", source="own", evidence="alone", target="step"),
    TransferSuite(name="own-kernels", source="own", evidence="alone", target="alone"),
    TransferSuite(name="deepbench", source="deepbench", evidence="alone", target="alone"),
    TransferSuite(name="aiter", source="aiter", evidence="alone", target="alone"),
    TransferSuite(name="vidur", source="vidur", evidence="alone", target="alone"),
)  # fmt: skip
SUITES: Mapping[str, TransferSuite] = {suite.name: suite for suite in _SUITES}


def suites_of(names: Sequence[str], folders: Sequence[Path]) -> tuple[TransferSuite, ...]:
    """The suites of some names; without names, all whose source is in one of the folders.

    Raises:
        DataError: a name is unknown, or none of the sources is there.
    """
    for name in names:
        if name not in SUITES:
            raise DataError(f"no transfer suite {name!r}; known: {', '.join(SUITES)}")
    found = tuple(SUITES[n] for n in names) or tuple(
        suite for suite in _SUITES if _present(suite.source, folders)
    )
    if not found:
        sources = ", ".join(dict.fromkeys(suite.source for suite in _SUITES))
        raise DataError(
            f"{', '.join(map(str, folders))}: none of the sources of a transfer report is there "
            f"({sources})"
        )
    return found


def _present(source: str, folders: Sequence[Path]) -> bool:
    names = source_of(source).folders or (source,)
    return any(
        (folder / name).is_dir() or folder.name == name or imported_at(folder, source) is not None
        for folder in folders
        for name in names
    )
