"""Kernel rows of the schema from what a reader found in a chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import kernel_cost
from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.graph.ops import DIM_NAMES, OPS
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import MATRIX_CLASSES, max_clock_peak_tflops
from predictor.traces.schema import Imported, filled
from predictor.traces.sources.aiconfigurator_attention import FULL
from predictor.traces.sources.aiconfigurator_chunk import Chunk, Kernels, Reader
from predictor.traces.sources.aiconfigurator_host import HOST_BOUND, host_bound
from predictor.traces.sources.aiconfigurator_layout import LICENCE, SOURCE

if TYPE_CHECKING:
    import pandas as pd

ABOVE_PEAK = "above_peak"
WINDOW_UNKNOWN = "window_unknown"
ABOVE_PEAK_SHARE = 0.05
"""Share of a table's windowless rows above the peak, beyond which none of them is believed."""
_TEXTS = ("op", "dtype", "scheme", "context", "execution", "routing", "flag")


class _Text:
    """A text column of few values, filled by position."""

    def __init__(self, rows: int) -> None:
        self.codes = np.zeros(rows, dtype=np.int32)
        self.values: dict[str, int] = {"": 0}

    def set(self, rows: NDArray[np.intp], value: str) -> None:
        self.codes[rows] = self.values.setdefault(value, len(self.values))

    def column(self) -> Any:
        return text_column(self.codes, list(self.values))


def text_column(codes: NDArray[Any], values: list[str]) -> Any:
    """(N,) texts from codes, as pandas keeps them."""
    import pandas as pd
    import pyarrow as pa

    coded = pa.DictionaryArray.from_arrays(
        pa.array(codes, pa.int32()), pa.array(values, pa.string())
    )
    return pd.array(coded.cast(pa.string()), dtype="str")


def kernel_rows(
    chunk: Chunk, first: NDArray[np.int64], reader: Reader, out: Imported
) -> pd.DataFrame:
    """Rows of a chunk in the schema; what a reader refuses is counted in `out`.

    Args:
        chunk: N rows.
        first: (N,) their numbers in the file.
        reader: tells what they are.
        out: counts refused rows.
    """
    n = len(chunk)
    dims = {name: np.full(n, -1, dtype=np.int64) for name in DIM_NAMES}
    work = {name: np.full(n, np.nan) for name in ("flops", "read_bytes", "write_bytes")}
    text = {name: _Text(n) for name in _TEXTS}
    kept, together = np.zeros(n, dtype=bool), np.full(n, np.nan)
    latency_us = chunk.floats("latency") * 1e3
    for found in reader(chunk):
        if not isinstance(found, Kernels):
            out.reject(
                file=chunk.table.name, row=int(first[found.rows[0]]), column=found.column,
                value=found.value, rule=found.rule, rows=len(found.rows),
            )  # fmt: skip
            continue
        kept[found.rows] = True
        _place(found, dims, work, text)
        if found.ranks_per_node is not None:
            together[found.rows] = found.ranks_per_node
        _flag(found, work["flops"][found.rows], latency_us[found.rows], chunk.device, text["flag"])
        if found.op == "matmul":
            _host_bound(found, chunk, work, latency_us, text["flag"])
    _windowless(chunk, dims["window"], text["flag"])
    values = {
        **_origin(chunk, first), "latency_us": latency_us, "phase": "forward",
        "device": chunk.device.id, "power_limit_w": _power_limit(chunk), "ranks_per_node": together,
        **{name: column.column() for name, column in text.items()}, **work,
        **{f"dim_{name}": numbers for name, numbers in dims.items()},
    }  # fmt: skip
    rows = filled("kernels", values, n)
    return rows if kept.all() else rows[kept].reset_index(drop=True)


def _place(
    found: Kernels,
    dims: Mapping[str, NDArray[np.int64]],
    work: Mapping[str, NDArray[np.float64]],
    text: Mapping[str, _Text],
) -> None:
    """Put what a reader found into the columns."""
    rows = found.rows
    own = {
        d: np.broadcast_to(np.asarray(v, dtype=np.int64), len(rows)) for d, v in found.dims.items()
    }
    sound = {d: np.maximum(v, 0) if d in OPS[found.op].dims else v for d, v in own.items()}
    stored = found.form.stored_bytes if found.stored_bytes is None else found.stored_bytes
    with np.errstate(divide="ignore", invalid="ignore"):  # rows of zero ranks or groups: dropped
        cost = kernel_cost(
            found.op, sound, found.form.dtype, input_bytes=found.input_bytes,
            stored_bytes=stored, output_bytes=found.output_bytes,
        )  # fmt: skip
    for name, numbers in own.items():
        dims[name][rows] = numbers
    for name, values in work.items():
        values[rows] = getattr(cost, name)
    for name, value in (
        ("op", found.op), ("dtype", found.form.dtype), ("scheme", found.form.scheme),
        ("context", found.context), ("execution", found.execution), ("routing", found.routing),
    ):  # fmt: skip
        text[name].set(rows, value)


def _flag(
    found: Kernels,
    flops: NDArray[np.float64],
    latency_us: NDArray[np.float64],
    device: Device,
    flag: _Text,
) -> None:
    """Mark rows of a reader's flag, and those that would beat the device's peak."""
    marked = np.broadcast_to(np.asarray(found.flag), len(found.rows))
    flag.set(found.rows[marked], found.flag_name)
    op_class = OPS[found.op].op_class
    if op_class not in MATRIX_CLASSES:
        return
    try:
        peak = max_clock_peak_tflops(
            device, op_class=op_class, dtype=found.form.dtype, software=Software()
        )
    except (UnknownRateError, UnsupportedPrecision):  # nothing to compare with
        return
    flag.set(found.rows[flops > peak * latency_us * 1e6], ABOVE_PEAK)


def _host_bound(
    found: Kernels,
    chunk: Chunk,
    work: Mapping[str, NDArray[np.float64]],
    latency_us: NDArray[np.float64],
    flag: _Text,
) -> None:
    """Mark products that waited for the host; it hides whether their weight was in the cache."""
    moved = work["read_bytes"] + work["write_bytes"]
    chunk.texts("kernel_source", "")  # tables without it are of one kernel
    for _, rows in chunk.split_rows(found.rows, ("kernel_source",)):
        marked = host_bound(
            latency_us[rows], work["flops"][rows], moved[rows], found.form.dtype, chunk.device
        )
        flag.set(rows[marked], HOST_BOUND)


def _windowless(chunk: Chunk, window: NDArray[np.int64], flag: _Text) -> None:
    """Prefill that says it has no window, in a table where that cannot be: mark all such rows.

    Two of SGLang's tables seem to hand window_size 0 on to the kernel, which then sees next to
    nothing: a quarter and a third of those rows beat the peak, elsewhere almost none does.
    """
    rows = np.flatnonzero(window == FULL)
    if chunk.table.kind != "context_attention" or not len(rows):
        return
    above = flag.codes[rows] == flag.values.get(ABOVE_PEAK, -1)
    if above.mean() > ABOVE_PEAK_SHARE:
        flag.set(rows, WINDOW_UNKNOWN)


def _origin(chunk: Chunk, first: NDArray[np.int64]) -> dict[str, Any]:
    """Columns that say where a row comes from."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    table = chunk.table
    numbers = pc.cast(pa.array(first), pa.string())
    ids = pc.binary_join_element_wise(f"{SOURCE}:{table.name}", numbers, ":")
    codes, versions = chunk.texts("version", table.version)
    library = chunk.texts("kernel_source", "")
    model = chunk.texts("model_name", "")
    return {
        "row_id": pd.array(ids, dtype="str"), "source": SOURCE, "file": table.name, "row": first,
        "licence": LICENCE, "library": text_column(*library), "model": text_column(*model),
        "framework": "nccl" if table.kind == "nccl" else table.framework,
        "framework_version": text_column(codes, [v or table.version for v in versions]),
    }  # fmt: skip


def _power_limit(chunk: Chunk) -> NDArray[np.float64] | float:
    return chunk.floats("power_limit") if chunk.has("power_limit") else np.nan
