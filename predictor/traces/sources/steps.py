"""Importer of public step tables: whole training steps on one to thousands of GPUs and TPUs.

One module a family of tables (`steps_*`), each with its own rules; all give step rows: seconds per
optimizer step become us, the batch counts the samples of all devices, devices are those that a
framework sees (a TPU v3 chip is two cores). No row has an op graph. A row with a flag is not for
every use:

| flag | the row |
|---|---|
| `config_unknown` | does not say how it ran: plan, precision or batch is unknown |
| `derived`, `derived_from_epoch`, `per_sequence`, `seq_assumed`, `attention_uncertain` | has a \
time that was worked out, see its module |
| `devices_from_log`, `batch_from_log` | contradicts itself; the log was believed |
| `includes_evaluation`, `rounded`, `inconsistent` | is a bound, coarse, or counted wrongly |

Axes of `plan`: dp, fsdp (sharded data parallelism), tp, pp, cp multiply to the devices; ep and vp
(virtual pipeline stages) divide what the others hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from predictor.traces.files import LayoutNotFoundError
from predictor.traces.schema import Imported
from predictor.traces.sources import (
    steps_hespas,
    steps_llm_foundry,
    steps_maxtext,
    steps_megatron,
    steps_mlperf,
    steps_torchtitan,
    steps_tpu_mlperf,
    steps_tpu_recipes,
)
from predictor.traces.sources.steps_table import SOURCE, StepTable, TableReader

__all__ = ["FOLDERS", "LICENCE", "SOURCE", "TABLES", "parts"]

TABLES: tuple[StepTable, ...] = (
    steps_mlperf.TABLE, steps_megatron.TABLE, steps_torchtitan.TABLE, steps_llm_foundry.TABLE,
    steps_hespas.TABLE, steps_maxtext.TABLE, steps_tpu_recipes.TABLE, steps_tpu_mlperf.TABLE,
)  # fmt: skip
FOLDERS: tuple[str, ...] = tuple(table.folder for table in TABLES)
LICENCE = "Apache-2.0, BSD-3-Clause or MIT, by row; MLPerf rows: result-use guidelines too"


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`, one part a family of tables.

    Args:
        data: a folder that holds folders of tables, one of those folders, or one file of it.

    Raises:
        LayoutNotFoundError: no table is there.
        DataError: a file is damaged or lacks a column.
    """
    readers = list(_readers(data))
    if not readers:
        raise LayoutNotFoundError(
            f"{data}: no step table (expected one of {', '.join(FOLDERS)} below it, one of these "
            "folders, or one file of them)"
        )
    for reader in readers:
        reader.table.read(reader)
        yield reader.finish()


def _readers(data: Path) -> Iterator[TableReader]:
    for table in TABLES:
        if data.is_file():
            path = data.absolute()
            for root in path.parents:
                if path in _files(table, root):
                    yield TableReader(table=table, root=root, only=path)
                    break
        else:
            roots = (data / table.folder, data)
            found = [r for r in roots if _files(table, r)]
            if found:
                yield TableReader(table=table, root=found[0])


def _files(table: StepTable, root: Path) -> list[Path]:
    """Files of a table that give rows, below a folder that may be its own."""
    suffixes = ("",) if "." in table.files[0] else (".csv", ".csv.gz")
    return [p for name in table.files for s in suffixes for p in root.glob(f"{name}{s}")]
