"""Importer of aiconfigurator: kernels of the serving frameworks on NVIDIA data-centre GPUs.

Reads `systems/data/SYSTEM/FAMILY/FRAMEWORK/VERSION/OP_perf.parquet`, whole or in part, or one of
them. Times there are ms; message sizes are elements. What a table becomes: `aiconfigurator_matrix`,
`aiconfigurator_attention`, `aiconfigurator_collectives`; number formats: `aiconfigurator_formats`.
Rules, each counted where it drops a row:

* the folder's system names the device; rows whose `device` column names another one
  (`device_not_of_system`: tables copied from another system) and rows whose folder and column the
  catalogue does not know (`unknown_device`) are dropped; a short or absent name is the folder's;
* a table whose numbers are those of an earlier one of its kind (`copy_of_another_table`): dropped;
* several kernels in one time (`module_of_several_kernels`), exchanges of expert parallelism whose
  bytes the table does not tell (`expert_exchange`), the experts of SGLang's wide expert
  parallelism, whose tokens it does not tell (`routing_not_published`), differences of two timings
  (`difference_of_timings`), tables of other kinds (`unknown_kind`): dropped;
* a name that is in no table here (`unknown_format`, `unknown_op`, `unknown_routing`): dropped;
* vLLM's fp8_block and nvfp4 products whose weight fits the cache: kept, flagged `cache_warm`;
* products of one kernel that take 40 us at least, however small they are: those up to twice that
  floor are kept, flagged `host_bound` (`aiconfigurator_host`);
* collectives of GPUs without a link of their own: kept, flagged `topology` (hosts differ 10x);
* products that would beat the device's peak: kept, flagged `above_peak`; prefill without a window
  in a table where more than a twentieth of such rows do: all of them flagged `window_unknown`;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.traces.schema import Imported
from predictor.traces.sources import aiconfigurator_attention as attention
from predictor.traces.sources import aiconfigurator_collectives as collectives
from predictor.traces.sources import aiconfigurator_matrix as matrix
from predictor.traces.sources.aiconfigurator_chunk import Chunk, Reader
from predictor.traces.sources.aiconfigurator_layout import (
    LICENCE,
    SOURCE,
    Layout,
    Table,
    open_layout,
)
from predictor.traces.sources.aiconfigurator_rows import kernel_rows
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["LICENCE", "NOT_READ", "PART_ROWS", "READERS", "SOURCE", "expected_rows", "parts"]

PART_ROWS = 250_000
"""Rows of a part at most."""

READERS: Mapping[str, Reader] = {
    "gemm": matrix.gemm, "mla_bmm": matrix.mla_bmm, "moe": matrix.moe,
    "wideep_moe": matrix.wideep_moe, "scale_matrix": matrix.scale_matrix,
    "context_attention": attention.context_attention,
    "generation_attention": attention.generation_attention,
    "encoder_attention": attention.encoder_attention, "context_mla": attention.context_mla,
    "generation_mla": attention.generation_mla, "gdn": attention.gdn, "mamba2": attention.mamba2,
    "nccl": collectives.nccl, "custom_allreduce": collectives.custom_allreduce,
}  # fmt: skip
"""Tables that are read, by kind."""

NOT_READ: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("mla_context_module", "mla_generation_module", "wideep_context_mla",
         "wideep_generation_mla", "wideep_context_mlp", "wideep_generation_mlp",
         "dsv4_megamoe_module"),
        ("module_of_several_kernels", "times a module of several kernels"),
    ),
    **dict.fromkeys(
        ("trtllm_alltoall", "wideep_deepep_ll", "wideep_deepep_normal"),
        ("expert_exchange", "exchanges of expert parallelism: their bytes depend on the routing"),
    ),
    **dict.fromkeys(
        ("wideep_context_moe", "wideep_generation_moe"),
        ("routing_not_published", "the tokens of the measured rank are not told"),
    ),
    "computescale": ("difference_of_timings", "a difference of two timings, clipped at 0"),
}  # fmt: skip
"""Tables that are not, by kind: the rule that drops their rows, and why."""
_OTHER_KIND = ("unknown_kind", "no reader for this kind of table")


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data` in parts of at most `PART_ROWS`, whatever part of the layout is there.

    Args:
        data: a folder that holds the layout or part of it, an upstream clone, or one table in it.

    Raises:
        LayoutNotFoundError: no part of the layout is there.
        DataError: a table is damaged or lacks a column.
    """
    layout = open_layout(data)
    return _parts(layout)


def expected_rows(data: Path) -> int:
    """Rows of all tables at `data`, as `parts` takes it; nothing but their footers is read.

    Raises:
        LayoutNotFoundError: no part of the layout is there.
        DataError: a table is damaged.
    """
    layout = open_layout(data)
    return sum(layout.rows(table) for table in layout.tables())


def _parts(layout: Layout) -> Iterator[Imported]:
    out = Imported.empty(SOURCE)
    frames: list[pd.DataFrame] = []
    for table in layout.tables():
        for rows in _table_rows(layout, table, out):
            if frames and sum(map(len, frames)) + len(rows) > PART_ROWS:
                yield _closed(out, frames)
                out, frames = Imported.empty(SOURCE), []
            frames.append(rows)
        out.files[table.name] = layout.files[table.name]
    yield _closed(out, frames)


def _closed(out: Imported, frames: list[pd.DataFrame]) -> Imported:
    """A part of the rows so far, checked."""
    import pandas as pd

    if frames:
        out.kernels = pd.concat(frames, ignore_index=True)
    keep_valid(out)
    return out


def _table_rows(layout: Layout, table: Table, out: Imported) -> Iterator[pd.DataFrame]:
    """Rows of one table, at most `PART_ROWS` at a time."""
    content = layout.read(table)
    reader = READERS.get(table.kind)
    if reader is None:
        rule, why = NOT_READ.get(table.kind, _OTHER_KIND)
        out.left_out[table.name] = why
        if content.num_rows:
            out.reject(
                file=table.name, row=None, column="op_name", value=table.kind, rule=rule,
                rows=content.num_rows,
            )  # fmt: skip
        return
    of_device = _by_device(layout, table, content, out)
    earlier = layout.copy_of(table, content) if of_device else None
    if earlier is not None:
        rows = sum(len(index) for index in of_device.values())
        out.left_out[table.name] = f"has the numbers of {earlier}"
        out.reject(
            file=table.name, row=None, column="latency", value=earlier,
            rule="copy_of_another_table", rows=rows,
        )  # fmt: skip
        return
    for name, index in of_device.items():
        device = layout.device(table.system, name)
        assert device is not None
        for start in range(0, len(index), PART_ROWS):
            part = index[start : start + PART_ROWS]
            chunk = Chunk(table=table, device=device, content=content.take(part))
            yield kernel_rows(chunk, part, reader, out)


def _by_device(
    layout: Layout, table: Table, content: pa.Table, out: Imported
) -> dict[str, NDArray[np.int64]]:
    """Rows of a table by the device they name; those of another system or of none are dropped."""
    import pyarrow as pa
    import pyarrow.compute as pc

    every = np.arange(content.num_rows)
    if "device" not in content.column_names:
        names, codes = [""], np.zeros(len(every), dtype=np.int64)
    else:
        coded = pc.fill_null(content.column("device").cast(pa.string()), "")
        column = pa.concat_arrays(coded.chunks).dictionary_encode()
        names, codes = column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)
    found: dict[str, NDArray[np.int64]] = {}
    for code in np.unique(codes):
        index, name = every[codes == code], names[int(code)]
        if layout.device(table.system, name) is not None:
            found[name] = index
            continue
        known = layout.is_known(table.system, name)
        out.reject(
            file=table.name, row=int(index[0]), column="device", value=name or table.system,
            rule="device_not_of_system" if known else "unknown_device", rows=len(index),
        )  # fmt: skip
    return found
