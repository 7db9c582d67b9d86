"""Kinds of kernel that a fit learns from, and on which devices: of rows with weight alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from predictor.errors import RecipeError
from predictor.fit.candidates import RATES
from predictor.fit.coverage import KernelKind
from predictor.fit.data import usable_kernels
from predictor.fit.fitting import FitData
from predictor.fit.recipe import Recipe
from predictor.fit.splits import Split
from predictor.fit.step_samples import StepSamples
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.peaks import MATRIX_CLASSES
from predictor.nn.learned import CLASS_OF_TOKEN
from predictor.traces.schema import Imported

NETWORK = "network"
"""The kind of model that weighs its rows; the simple ones take every timed kernel."""
VECTOR_DTYPES: tuple[str, ...] = ("fp32", "bf16", "int32", "int8", "bool")
"""Dtypes of kernels that memory bounds."""
NEVER_BY_CLASS: tuple[str, ...] = ("opaque", "collective", "transfer")
"""Classes of which one kind says nothing of another."""
_TERMS: Mapping[str, str] = {
    "kernel": "kernel_rows", "op": "op_rows", "step": "step_rows", "model": "step_rows",
}  # fmt: skip
"""Rows behind each term of the loss, as `TrainedRows.facts` counts them."""


def check_weights(recipe: Recipe, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a recipe whose rows all have weight 0: a network of it would have learned nothing.

    Raises:
        RecipeError: names the weights.
    """
    rows = {term: sum(fact[name] for fact in facts.values()) for term, name in _TERMS.items()}
    there = [term for term in rows if rows[term]]
    if there and not any(getattr(recipe.loss, term) > 0 for term in there):
        zero = ", ".join(f"loss.{term}" for term in there)
        raise RecipeError(
            f"recipe {recipe.name!r}: no row trains, {zero} {'is' if len(there) == 1 else 'are'} "
            "0 and there are no rows of another kind: give one a weight above 0"
        )


def learned_kinds(
    kind: str, recipe: Recipe, data: Imported, split: Split, fitted: FitData
) -> set[KernelKind]:
    """Kinds of the kernels alone, of ops in steps and in whole models, that have taught the model.

    Args:
        kind: of model (`predictor.fit.candidates.KINDS`).
        recipe: weights of the loss.
        data: rows that train.
        split: training devices.
        fitted: samples of the final fit.
    """
    weighs, loss = kind == NETWORK, recipe.loss
    found: set[KernelKind] = set()
    if not weighs or loss.kernel > 0:
        found |= _of_kernels(data, recipe, split)
    if fitted.steps is not None and (not weighs or loss.op > 0 or loss.step > 0):
        found |= _behind_ops(fitted.steps, alone=not weighs)
    if kind == RATES:
        if fitted.models is not None:
            found |= set(fitted.models.coverage.kinds)
        return _of_classes(found)
    if not weighs:
        return found
    if fitted.ratios is not None and loss.backward_ratio > 0:
        found |= _behind_ops(fitted.ratios)
    if fitted.models is not None and loss.model > 0:
        found |= set(fitted.models.coverage.kinds)
    return found


def _of_classes(found: set[KernelKind]) -> set[KernelKind]:
    """All kinds of the op classes found: a model by class tells no kinds of a class apart.

    Of classes that matrix units work for in the dtypes that were found; memory bounds the others,
    whatever the dtype, and bytes tell it.
    """
    out = {k for k in found if CLASS_OF_TOKEN[k.token] not in NEVER_BY_CLASS}
    for kind in tuple(out):
        op_class = CLASS_OF_TOKEN[kind.token]
        dtypes = (kind.dtype,) if op_class in MATRIX_CLASSES else VECTOR_DTYPES
        out |= {
            kind._replace(token=token, dtype=dtype)
            for token, own in CLASS_OF_TOKEN.items() if own == op_class for dtype in dtypes
        }  # fmt: skip
    return out


def _of_kernels(data: Imported, recipe: Recipe, split: Split) -> set[KernelKind]:
    columns = ["op", "dtype", "device"]
    measured = usable_kernels(data, recipe, split.train)[columns].drop_duplicates()
    return {
        KernelKind(OPS[op].token, str(dtype), resolve_device(device).kind, str(device))
        for op, dtype, device in measured.itertuples(index=False)
    }


def _behind_ops(steps: StepSamples, *, alone: bool = False) -> set[KernelKind]:
    """Kinds of the kernels behind timed ops; `alone`: of ops that are one kernel."""
    kernels = steps.kernel_K
    if alone:
        count_R = torch.bincount(steps.label_K, minlength=len(steps.op_us_R))
        kernels = kernels[count_R[steps.label_K] == 1]
    behind = np.unique(steps.coverage.kind_N[kernels.numpy()])
    return {steps.coverage.kinds[i] for i in behind}
