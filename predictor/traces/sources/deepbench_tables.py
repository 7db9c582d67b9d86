"""DeepBench's tables: which kernels a row holds, with shape, dtype, library and time.

| table | kernels of a row | shape |
|---|---|---|
| Dense Matrix … | `matmul` | m = N, n = M, k = K: operands there are column-major |
| Sparse Matrix … | `sparse_mm`; in dense `matmul` | M x K, of which (1 - sparsity) M K values |
| Convolution (`W`) | `conv`; training `conv_dgrad`, `conv_wgrad` | N, C, H, W; K filters of R x S |
| Recurrent Layers | `rnn`; training `rnn_backward` | gates: GRU 3, LSTM 4, vanilla 1 |
| All-Reduce | `all_reduce` | floats of fp32 |

Recurrent layers run with the input product left out (cuDNN's and MIOpen's skip mode): `input_size`
is 0, the input itself is read. A backward of one time is that of the data alone; where data and
weights are apart, the row has their sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from predictor.traces.sources.deepbench_workbook import Record, plain_name
from predictor.traces.validate import DIM_LIMIT

UNITS_US: Mapping[str, float] = {"msec": 1e3, "ms": 1e3, "usec": 1.0, "us": 1.0, "sec": 1e6}
"""Units that a header may name; ms where it names none."""
GATES: Mapping[str, int] = {"vanilla": 1, "gru": 3, "lstm": 4}
LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "NV": {
        "matmul": "cublas", "sparse_mm": "cusparse", "conv": "cudnn", "rnn": "cudnn",
        "all_reduce": "nccl",
    },
    "AMD": {"matmul": "rocblas", "conv": "miopen", "rnn": "miopen", "all_reduce": "rccl"},
    "IA": {"matmul": "mkl", "sparse_mm": "mkl", "conv": "mkl", "all_reduce": "mlsl"},
}  # fmt: skip
"""By the vendor that a device's name begins with."""
NODE_DEVICES = 8
"""GPUs of the publisher's nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a row, or why it is none."""

    op: str
    dims: Mapping[str, int]
    phase: str
    suffix: str
    """Tells kernels of a row apart."""
    column: str
    value: object
    """Published time, for a reject."""
    latency_us: float = math.nan
    spread_us: float = math.nan
    library: str = ""
    flag: str = ""
    rule: str = ""
    """What it breaks; empty for a sound one."""


Sizes: TypeAlias = Mapping[str, int]


def _number(value: object) -> float:
    """A cell as a number, NaN where it is none (`N/A*`, `#DIV/0!`, `Not Supported`, empty)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


class Row:
    """Cells of a record by plain name."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._headers = {plain_name(h): h for h in record.cells}
        self.vendor = record.device.split("_")[0]

    def has(self, *names: str) -> bool:
        """Whether there are columns of these names."""
        return set(names) <= set(self._headers)

    def number(self, *names: str) -> float:
        """The first of these columns that there is, NaN without one."""
        found = next((self._headers[n] for n in names if n in self._headers), None)
        return math.nan if found is None else _number(self.record.cells[found])

    def sizes(self, *names: str | tuple[str, ...], zero: tuple[str, ...] = ()) -> list[int] | None:
        """Whole sizes, None where one is not; those in `zero` may be 0."""
        out = []
        for name in names:
            options = (name,) if isinstance(name, str) else name
            value = self.number(*options)
            least = 0 if options[0] in zero else 1
            if not (least <= value <= DIM_LIMIT and value == math.floor(value)):
                return None
            out.append(int(value))
        return out

    def time(self, name: str) -> tuple[str, object, float]:
        """Header, cell and microseconds of a time; NaN where it is not published."""
        header = self._headers.get(name, name)
        cell = self.record.cells.get(header)
        unit = re.search(r"\((.*?)\)", header)
        scale = UNITS_US.get(unit[1].strip().lower() if unit else "msec", 1e3)
        return header, cell, _number(cell) * scale

    def kernel(
        self, op: str, dims: Mapping[str, int], column: str, *, suffix: str = "",
        library: str = "", flag: str = "",
    ) -> Kernel:  # fmt: skip
        """A kernel timed in one column."""
        header, cell, us = self.time(column)
        backward = op.endswith(("backward", "dgrad", "wgrad"))
        kind = op.split("_")[0] if op.startswith(("conv", "rnn")) else op
        rule = "" if us > 0 else ("not_measured" if math.isnan(us) or us == 0 else "not_positive")
        return Kernel(
            op=op, dims=dims, phase="backward" if backward else "forward", suffix=suffix,
            column=header, value=cell, latency_us=us, flag=flag, rule=rule,
            library=library or LIBRARIES.get(self.vendor, {}).get(kind, ""),
        )  # fmt: skip


def _refused(row: Row, rule: str, column: str = "") -> Kernel:
    return Kernel(op="", dims={}, phase="", suffix="", column=column, value="", rule=rule)


_BAD_SIZE = "dimension_not_a_positive_integer"


def _product(row: Row) -> Iterator[Kernel]:
    sizes = row.sizes("m", "n", "k")
    if sizes is None:
        yield _refused(row, _BAD_SIZE, "M")
        return
    m, n, k = sizes
    yield row.kernel("matmul", {"batch": 1, "m": n, "n": m, "k": k}, "time")


def _sparse(row: Row) -> Iterator[Kernel]:
    sizes, sparsity = row.sizes("m", "n", "k"), row.number("sparsity")
    if sizes is None or not 0 <= sparsity < 1:
        yield _refused(row, _BAD_SIZE, "M" if sizes is None else "Sparsity")
        return
    m, n, k = sizes
    nnz = round(m * k * (1 - sparsity))
    yield row.kernel("sparse_mm", {"m": m, "n": n, "k": k, "nnz": nnz}, "sparse time",
                     suffix=":sparse")  # fmt: skip
    yield row.kernel("matmul", {"batch": 1, "m": n, "n": m, "k": k}, "dense time", suffix=":dense")


def _convolution(row: Row) -> Iterator[Kernel]:
    sizes = row.sizes(
        "n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "vertical stride",
        "horizontal stride", zero=("pad_h", "pad_w"),
    )  # fmt: skip
    if sizes is None:
        yield _refused(row, _BAD_SIZE, "W")
        return
    n, c, h, w, k, r, s, pad_h, pad_w, down, across = sizes
    if r > h + 2 * pad_h or s > w + 2 * pad_w:
        yield _refused(row, "dimension_not_plausible", "R")
        return
    dims = {
        "batch": n, "c_in": c, "h_in": h, "w_in": w, "c_out": k, "kh": r, "kw": s, "groups": 1,
        "h_out": (h + 2 * pad_h - r) // down + 1, "w_out": (w + 2 * pad_w - s) // across + 1,
    }  # fmt: skip
    yield row.kernel("conv", dims, "forward", suffix=":forward")
    if row.record.mode != "inference":
        yield row.kernel("conv_dgrad", dims, "wrt inputs", suffix=":dgrad")
        yield row.kernel("conv_wgrad", dims, "wrt parameters", suffix=":wgrad")


def _recurrent(row: Row) -> Iterator[Kernel]:
    sizes = row.sizes(("hidden units", "input"), "n", "timesteps")
    gates = GATES.get(row.record.section.lower().split()[-1] if row.record.section else "")
    if sizes is None or gates is None:
        yield _refused(row, _BAD_SIZE if sizes is None else "unknown_op", "Hidden units")
        return
    hidden, batch, steps = sizes
    dims = {
        "steps": steps, "batch": batch, "input_size": 0, "hidden_size": hidden, "layers": 1,
        "directions": 1, "gates": gates,
    }  # fmt: skip
    yield row.kernel("rnn", dims, "time forward", suffix=":forward")
    if row.record.mode == "inference":
        return
    if not row.has("time backward wrt inputs") and not row.has("time backward wrt weights"):
        yield row.kernel("rnn_backward", dims, "time backward", suffix=":backward",
                         flag="data_gradient_only")  # fmt: skip
        return
    data = row.kernel("rnn_backward", dims, "time backward wrt inputs", suffix=":backward")
    weights = row.kernel("rnn_backward", dims, "time backward wrt weights", suffix=":backward")
    if data.rule or weights.rule:
        yield data if data.rule else weights
        return
    yield Kernel(
        op=data.op, dims=dims, phase=data.phase, suffix=data.suffix, column=data.column,
        value=data.value, latency_us=data.latency_us + weights.latency_us, library=data.library,
    )  # fmt: skip


def _all_reduce(row: Row) -> Iterator[Kernel]:
    sizes = row.sizes("size # floats", ("# chips / accelerator cards", "# nodes"))
    if sizes is None or sizes[1] < 2:
        yield _refused(row, _BAD_SIZE, "Size # floats")
        return
    floats, ranks = sizes
    far = row.has("# nodes") or ranks > NODE_DEVICES
    found = row.kernel("all_reduce", {"numel": floats, "ranks": ranks}, "mean all reduce time",
                       flag="multi_node" if far else "")  # fmt: skip
    spread = row.time("std dev all reduce time")[2]
    yield Kernel(
        op=found.op, dims=found.dims, phase=found.phase, suffix="", column=found.column,
        value=found.value, latency_us=found.latency_us, flag=found.flag, rule=found.rule,
        library=found.library, spread_us=spread if spread > 0 else math.nan,
    )  # fmt: skip


TABLES: tuple[tuple[str, frozenset[str], Callable[[Row], Iterator[Kernel]]], ...] = (
    ("sparse", frozenset({"m", "n", "k", "sparsity"}), _sparse),
    ("product", frozenset({"m", "n", "k"}), _product),
    ("convolution", frozenset({"w", "h", "c", "n", "k", "r", "s"}), _convolution),
    ("recurrent", frozenset({"n", "timesteps"}), _recurrent),
    ("all_reduce", frozenset({"size # floats"}), _all_reduce),
)
"""Kinds of table by the columns that they have; the first that fits."""
_NARROW: Mapping[str, tuple[str, ...]] = {
    "kernels": ("product", "sparse"), "": ("product", "convolution"),
}  # fmt: skip
"""Tables in int8 of an inference sheet by its name (phones: `Kernels`); the others are fp32."""


def kernels(record: Record) -> tuple[str, list[Kernel]]:
    """Kind of table and kernels of one row."""
    row = Row(record)
    for kind, columns, read in TABLES:
        if row.has(*columns):
            return kind, list(read(row))
    return "", [_refused(row, "unknown_op")]


def precision(record: Record, kind: str) -> tuple[str, str]:
    """Dtype and scheme of a table, by the name of its sheet.

    Training is single precision unless the sheet says 16 bits; `Psuedo FP16` keeps 16 bits and
    computes in 32. Inference multiplies 8 bits in products and convolutions of servers.
    """
    sheet = record.sheet.lower()
    if record.mode == "inference":
        narrow = _NARROW["kernels" if "kernels" in sheet else ""]
        return ("int8" if kind in narrow else "fp32"), ""
    if "16" not in sheet or kind == "all_reduce":
        return "fp32", ""
    return "fp16", "fp32_math" if "psuedo" in sheet or "pseudo" in sheet else ""
