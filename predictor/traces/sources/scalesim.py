"""Importer of SCALE-Sim's latency models of a TPU v4: published fits, sampled at stated sizes.

The repository publishes lines fitted to measurements, not the measurements: `linear_models_mit.csv`
has one a row, time in **us** over the number of elements (f16). Its model of matrix products is a
line over cycles of a systolic array; it stands here as published in the same file. Both become
kernel rows at the sizes below, every row flagged `fit`: a row says what the fit says, over a range
that is not told, so that the noise of the measurements is gone and its error is not known.

Rules:

* `no_line`: an expression that is no line over `size`: dropped;
* `shape_not_told`: pooling, whose window and result are not published: dropped;
* `unknown_function`: a function that no row of `FUNCTIONS` names: dropped;
* a fit that beats the datasheet at a size: kept, flagged `fit+above_peak`;
* a product whose line gives more than twice what the line of the range below gives for as many
  cycles (the lines jump at their borders): kept, flagged `fit+inconsistent`;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.cost.rules import kernel_cost
from predictor.graph.ir import Kernel
from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla_backends import Backend, backend_of
from predictor.lower.xla_matrix import padded_flops
from predictor.traces.cells import floor_share
from predictor.traces.hlo_kernels import rows_of_kernels
from predictor.traces.layouts import sole_table
from predictor.traces.schema import Imported
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "scalesim"
FOLDER = "scalesim_tpu_v4"
LICENCE = "MIT"
FILE = "linear_models_mit.csv"
DEVICE = "google-tpu-v4"
SIZES: tuple[int, ...] = (2**12, 2**14, 2**16, 2**18, 2**20, 2**22)
"""Elements at which a line is sampled: 8 KiB to 8 MiB of f16, what one tensor of a program has."""
PRODUCTS: tuple[tuple[int, int, int], ...] = tuple(
    (m, n, k)
    for m in (64, 512, 4096)
    for n, k in ((64, 64), (512, 512), (1024, 4096), (2048, 2048), (4096, 1024), (4096, 4096))
)
"""(m, n, k) at which the model of products is sampled."""
SIDE = 128
JUMP = 2.0
"""Ratio of two lines from which one of them is not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Time over cycles for products whose sides are all below a limit."""

    below: float
    us_per_cycle: float
    start_us: float

    def us(self, cycles: float) -> float:
        """Time of so many cycles, microseconds."""
        return self.us_per_cycle * cycles + self.start_us


PRODUCT_LINES: tuple[Line, ...] = (
    Line(below=128, us_per_cycle=0.002762, start_us=0.059902),
    Line(below=1024, us_per_cycle=0.00036, start_us=0.780070),
    Line(below=math.inf, us_per_cycle=0.00020227, start_us=29.721747),
)
"""As published (SCALE-Sim-validation, commit d6b88ca238144ca25acc8c03468fe165d61cec5f)."""
FUNCTIONS: Mapping[str, tuple[str, int]] = {
    "elementwise_add": ("add", 2), "elementwise_subtract": ("add", 2),
    "elementwise_multiply": ("mul", 2), "elementwise_divide": ("div", 2),
    "activation_binary": ("where", 1), "activation_elu": ("exp", 1),
    "activation_leaky": ("where", 1), "activation_linear": ("pointwise", 1),
    "activation_parametric": ("where", 1), "activation_relu": ("relu", 1),
    "activation_selu": ("exp", 1), "activation_sigmoid": ("exp", 1),
    "activation_tanh": ("tanh", 1), "normalization_layer_norm": ("layer_norm", 1),
    "normalization_rms_norm": ("rms_norm", 1), "normalization_batch_norm": ("batch_norm", 1),
}  # fmt: skip
"""Op, and tensors of full size read, by the published name without rank."""
_NAME = re.compile(r"linear_model_(\w+?)_(?:[12]d|s[12])|linear_model_(\w+)")
_LINE = re.compile(r"\s*([\d.eE+-]+)\s*\*\s*size\s*\+\s*([\d.eE+-]+)\s*")


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`.

    Args:
        data: a folder that holds `scalesim_tpu_v4`, the folder itself, or its table.

    Raises:
        LayoutNotFoundError: the table is not there.
        DataError: it is damaged.
    """
    import pandas as pd

    out, raw, name = sole_table(
        data, source=SOURCE, folder=FOLDER, file=FILE,
        columns=("function", "args", "expression_us"),
    )  # fmt: skip
    lines = _lines(raw, name, out)
    products = _products(name, len(raw))
    out.kernels = pd.concat([lines, products], ignore_index=True)
    keep_valid(out)
    above = floor_share(out.kernels) > 1.0
    out.kernels["flag"] = np.where(above, "fit+above_peak", out.kernels["flag"])
    yield out


def _lines(raw: pd.DataFrame, file: str, out: Imported) -> pd.DataFrame:
    """The lines at `SIZES`."""
    kernels, values = [], []
    for row, (name, text) in enumerate(zip(raw["function"], raw["expression_us"], strict=True)):
        named, line = _NAME.fullmatch(str(name)), _LINE.fullmatch(str(text))
        function = "" if named is None else named[1] or named[2]
        if line is None:
            out.reject(file=file, row=row, column="expression_us", value=text, rule="no_line")
        elif function.startswith("pooling"):
            out.reject(file=file, row=row, column="function", value=name, rule="shape_not_told")
        elif function not in FUNCTIONS:
            out.reject(file=file, row=row, column="function", value=name, rule="unknown_function")
        else:
            for size in SIZES:
                kernels.append(_elementwise(function, size))
                latency = float(line[1]) * size + float(line[2])
                values.append((row, f"{SOURCE}:{name}:{size}", latency))
    return rows_of_kernels(kernels, _values(values, file))


def _elementwise(function: str, size: int) -> Kernel:
    op, inputs = FUNCTIONS[function]
    dims = {"numel": size, "inputs": inputs, "outputs": 1}
    if op.endswith("norm"):  # squares: the sides are not published
        cols = 2 ** (int(math.log2(size)) // 2)
        dims = {"rows": size // cols, "cols": cols}
    return _kernel(op, dims, "fp16", None)


def _products(file: str, first: int) -> pd.DataFrame:
    """The model of products at `PRODUCTS`, counted on behind the rows of the file."""
    backend = backend_of(resolve_device(DEVICE))
    kernels = [
        _kernel("matmul", {"batch": 1, "m": m, "n": n, "k": k}, "bf16", backend)
        for m, n, k in PRODUCTS
    ]
    values = [(first + i, f"{SOURCE}:gemm:{m}x{n}x{k}", product_us(m, n, k))
              for i, (m, n, k) in enumerate(PRODUCTS)]  # fmt: skip
    flags = ["fit+inconsistent" if jumps(*sides) else "fit" for sides in PRODUCTS]
    return rows_of_kernels(kernels, _values(values, file) | {"flag": flags})


def jumps(m: int, n: int, k: int) -> bool:
    """Whether the line of a product and that of the range below disagree twofold there."""
    cycles = min(_cycles(m, n, k), _cycles(n, m, k))
    at = next(i for i, one in enumerate(PRODUCT_LINES) if max(m, n, k) < one.below)
    if at == 0:
        return False
    here, below = PRODUCT_LINES[at], PRODUCT_LINES[at - 1]
    return here.us(cycles) > JUMP * below.us(cycles)


def product_us(m: int, n: int, k: int) -> float:
    """Time of a product by the published model, microseconds: a line over cycles."""
    cycles = min(_cycles(m, n, k), _cycles(n, m, k))
    return next(one for one in PRODUCT_LINES if max(m, n, k) < one.below).us(cycles)


def _cycles(m: int, n: int, k: int) -> int:
    """Cycles of a weight-stationary array: rows stream through each tile of the weights."""
    return (3 * SIDE + m - 2) * math.ceil(n / SIDE) * math.ceil(k / SIDE)


def _kernel(op: str, dims: dict[str, int], dtype: str, backend: Backend | None) -> Kernel:
    """A kernel with the work and traffic that the lowering would give it."""
    arrays = {name: np.array([value]) for name, value in dims.items()}
    cost = kernel_cost(op, arrays, dtype)
    flops = float(np.asarray(cost.flops).reshape(-1)[0])
    return Kernel(
        op=op, phase="forward", dims=dims, dtype=dtype,
        flops=flops if backend is None else padded_flops(dims, flops, backend),
        read_bytes=float(np.asarray(cost.read_bytes).reshape(-1)[0]),
        write_bytes=float(np.asarray(cost.write_bytes).reshape(-1)[0]),
    )  # fmt: skip


def _values(found: list[tuple[int, str, float]], file: str) -> dict[str, Any]:
    return {
        "row": [row for row, _, _ in found], "row_id": [name for _, name, _ in found],
        "latency_us": [us for _, _, us in found], "source": SOURCE, "file": file,
        "licence": LICENCE, "device": DEVICE, "context": "isolated", "framework": "jax",
        "execution": "xla", "layout": "nhwc", "flag": "fit",
    }  # fmt: skip
