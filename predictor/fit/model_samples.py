"""Whole models as training samples: their kernels from a graph bank, classes of equal ones once.

Legend: M rows (measured models), C kernel classes of all rows, F features, P edges between classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.features.columns import node_features
from predictor.features.fusion import kept_traffic, prefers_channels_last, with_traffic
from predictor.features.quotient import Quotient, quotient
from predictor.features.table import KernelTable, concat
from predictor.fit.coverage import Coverage, coverage_of
from predictor.fit.coverage import joined as joined_coverage
from predictor.fit.software import software_of
from predictor.graph.ir import PHASES
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device
from predictor.nn.ensemble import effect_index
from predictor.nn.phases import host_time_us
from predictor.nn.priors import XLA_LAUNCH_US
from predictor.traces.graph_bank import BankGraph, GraphBank, load_bank

if TYPE_CHECKING:
    import pandas as pd

BANK_SOURCES = ("timm", "gptbench", "own", "enzyme", "tpugraphs")
"""Sources whose graphs come with the library."""
MODEL_ROWS = 256
"""Whole models that are predicted at a time."""
KINDS_OF_TRAFFIC = 128
"""More than the shares of traffic (in sixtieths) that fusion can leave, twice."""
GROUP = ("device", "dtype", "execution", "format", "framework_version")
"""Columns that decide device and software of a step row. `format` is the layout that convolutions
run in: the row's own, or what a compiler turns it into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSamples:
    """M measured models: what the network reads of their kernels, and their times."""

    x_CF: Tensor
    token_C: Tensor
    base_us_C: Tensor
    datasheet_us_C: Tensor
    floor_us_C: Tensor
    flops_C: Tensor
    bytes_C: Tensor
    count_C: Tensor
    """How often a kernel of the class runs in its model."""
    start_M: Tensor
    """(M + 1,) where the classes of each row begin."""
    producers_2P: Tensor
    """Classes joined by an edge, counted from the start of their row."""
    producers_start_M: Tensor
    """(M + 1,) where the edges of each row begin."""
    consumers_2P: Tensor
    consumers_start_M: Tensor
    device_M: Tensor
    """Index of the device's own effect, -1 for none."""
    host_us_M: Tensor
    """Time of the host to issue the step, as `predictor.nn.priors` assumes it."""
    training_M: Tensor
    """1 for a training step, 0 for inference."""
    measured_us_M: Tensor
    weight_M: Tensor
    rows: pd.DataFrame
    """The step rows, in order."""
    coverage: Coverage
    """Of the kernel classes."""

    def __len__(self) -> int:
        return int(self.measured_us_M.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """Some rows of `ModelSamples`, joined to one graph."""

    index_C: Tensor
    """Classes of the batch, into the samples'."""
    row_C: Tensor
    """Row of the batch that each belongs to."""
    producers_2P: Tensor
    consumers_2P: Tensor


def batch_of(samples: ModelSamples, rows_B: Tensor) -> ModelBatch:
    """The graph of some rows."""
    index_C, row_C = _ranges(samples.start_M, rows_B)
    size_B = (samples.start_M[rows_B + 1] - samples.start_M[rows_B]).numpy()
    offset_B = torch.from_numpy(np.concatenate([[0], np.cumsum(size_B)[:-1]]).astype(np.int64))
    edges = []
    for pairs, start in (
        (samples.producers_2P, samples.producers_start_M),
        (samples.consumers_2P, samples.consumers_start_M),
    ):
        index_P, row_P = _ranges(start, rows_B)
        edges.append(pairs[:, index_P] + offset_B[row_P])
    return ModelBatch(index_C=index_C, row_C=row_C, producers_2P=edges[0], consumers_2P=edges[1])


def _ranges(start_M: Tensor, rows_B: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the elements of some rows, and which of them each belongs to."""
    begin, end = start_M[rows_B], start_M[rows_B + 1]
    size = end - begin
    row = torch.repeat_interleave(torch.arange(len(rows_B)), size)
    before = torch.cumsum(size, 0) - size
    return torch.arange(int(size.sum())) - before[row] + begin[row], row


def banks_of(rows: pd.DataFrame) -> dict[str, GraphBank]:
    """The graph banks of the sources of some step rows, by source; sources without one left out."""
    named = rows.loc[rows["graph"] != "", "source"].unique()
    return {str(s): shipped_bank(str(s)) for s in named if str(s) in BANK_SOURCES}


@cache
def shipped_bank(source: str) -> GraphBank:
    """The graph bank of a source, read once."""
    assert source in BANK_SOURCES
    return load_bank(source=source)


def family_folds(sources: Collection[str]) -> Mapping[str, str]:
    """Group of model families (a fold of the bank's index) of every model of some sources."""
    found: dict[str, str] = {}
    for source in (s for s in BANK_SOURCES if s in sources):
        index = shipped_bank(source).index
        for model, fold in zip(index["model"], index["fold"], strict=True):
            found[str(model)] = f"{source}-fold-{fold}"
    return found


def in_bank(rows: pd.DataFrame, banks: Mapping[str, GraphBank]) -> NDArray[np.bool_]:
    """Whether the graph of each step row stands in the bank of its source."""
    found = np.zeros(len(rows), dtype=bool)
    for source, bank in banks.items():
        found |= ((rows["source"] == source) & rows["graph"].isin(list(bank.ids))).to_numpy()
    return found


def model_samples(
    rows: pd.DataFrame,
    banks: Mapping[str, GraphBank],
    hosts: Sequence[str],
    depth: int,
    refused: Counter[str] | None = None,
) -> ModelSamples | None:
    """Samples of the step rows whose graph a bank holds; None when there are none.

    Args:
        rows: step rows.
        banks: where their graphs stand, by source.
        hosts: devices with an effect of their own.
        depth: message-passing layers that the classes must serve.
        refused: counts the rows whose device has no rate for a kernel, by error, and leaves them
            out; without it they raise.

    Raises:
        UnsupportedPrecision, UnknownRateError: a device has no rate for a kernel.
    """
    import pandas as pd

    rows = rows[in_bank(rows, banks)]
    classes: dict[tuple[str, bool], KernelClasses] = {}
    wanted = rows.assign(compiled=rows["execution"] == "compiled")
    wanted = wanted[["source", "graph", "compiled"]].drop_duplicates()
    for source, name, compiled in wanted.itertuples(index=False):
        graph = banks[str(source)].graph(str(name))
        classes[str(name), bool(compiled)] = _classes(graph, depth, compiled=bool(compiled))
    rows = rows.assign(format=_formats(rows, classes))
    rows = rows.sort_values([*GROUP, "row_id"], ignore_index=True)
    parts, kept = [], []
    for key, group in rows.groupby(list(GROUP), sort=True):
        try:
            parts.append(_group(dict(zip(GROUP, key, strict=True)), group, classes, hosts))
        except (UnsupportedPrecision, UnknownRateError) as error:
            if refused is None:
                raise
            refused[type(error).__name__] += len(group)
        else:
            kept.append(group)
    if not parts:
        return None
    rows = pd.concat(kept, ignore_index=True).drop(columns="format")
    coverage = joined_coverage([part.pop("coverage") for part in parts])
    joined = {  # one at a time: memory for one more column, not for all twice
        k: np.concatenate([p.pop(k) for p in parts], axis=-1 if k.endswith("2P") else 0)
        for k in list(parts[0])
    }
    starts = {
        name: torch.from_numpy(np.concatenate([[0], np.cumsum(joined.pop(size))]).astype(np.int64))
        for name, size in (
            ("start_M", "size_M"), ("producers_start_M", "producers_M"),
            ("consumers_start_M", "consumers_M"),
        )
    }  # fmt: skip
    measured = rows["latency_us"].to_numpy(dtype=np.float32)
    return ModelSamples(
        **{k: torch.from_numpy(v) for k, v in joined.items()}, **starts,
        measured_us_M=torch.from_numpy(measured), weight_M=_weights(rows), rows=rows,
        training_M=torch.from_numpy((rows["mode"] == "train").to_numpy(dtype=np.float32)),
        coverage=coverage,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelClasses:
    """A graph, the classes of its kernels, and the share of its traffic that each keeps."""

    graph: BankGraph
    quotient: Quotient
    reads: NDArray[np.float64]
    writes: NDArray[np.float64]
    channels_last: bool
    """Whether a compiler turns its convolutions into channels-last."""


def _formats(
    rows: pd.DataFrame, classes: Mapping[tuple[str, bool], KernelClasses]
) -> NDArray[np.str_]:
    """Layout that the convolutions of each row run in."""
    compiled = rows["execution"] == "compiled"
    turned = [classes[str(g), bool(c)].channels_last for g, c in zip(rows["graph"], compiled,
                                                                     strict=True)]  # fmt: skip
    return np.where(turned, "nhwc", rows["layout"].astype(str))


def _classes(graph: BankGraph, depth: int, *, compiled: bool) -> KernelClasses:
    """Kernel classes; a compiler's fusion tells kernels of one spec apart."""
    kind = graph.index.astype(np.int64)
    reads = writes = np.ones(graph.kernels)
    channels_last = False
    if compiled:
        table = graph.table(1)
        inputs = table.dim("inputs").astype(np.int64)
        reads, writes = kept_traffic(table.op, inputs, graph.edge_index)
        kind = kind * KINDS_OF_TRAFFIC + np.rint(reads * 60).astype(np.int64) * 2
        kind = kind + writes.astype(np.int64)
        channels_last = prefers_channels_last(table)
    cut = quotient(kind, graph.edge_index, depth)
    return KernelClasses(
        graph=graph, quotient=cut, reads=reads[cut.member], writes=writes[cut.member],
        channels_last=channels_last,
    )  # fmt: skip


def half_of(dtype: str) -> str:
    """The half precision of a workload's dtype, for kernels of a bank that run in half."""
    return "bf16" if "bf16" in dtype else "fp16"


def _group(
    facts: Mapping[str, object],
    rows: pd.DataFrame,
    classes: Mapping[tuple[str, bool], KernelClasses],
    hosts: Sequence[str],
) -> dict[str, Any]:
    """Arrays of the rows of one device and software."""
    device = str(facts["device"])
    described = resolve_device(device)
    half = half_of(str(facts["dtype"]))
    tables: list[KernelTable] = []
    found: list[Quotient] = []
    host_us = []
    for name, batch, measure in zip(rows["graph"], rows["batch"], rows["measure"], strict=True):
        of = classes[str(name), facts["execution"] == "compiled"]
        graph, cut = of.graph, of.quotient
        table = graph.table(int(batch), half)
        host_us.append(_issue_us(str(measure), described, table, graph.host_calls))
        tables.append(with_traffic(table.take(cut.member), of.reads, of.writes))
        found.append(cut)
    table = concat(tables)
    software = software_of({**facts, "layout": facts["format"]})
    features = node_features(table, described, software)
    roof = features.roofline
    single = np.float32
    return {
        "x_CF": features.x, "token_C": features.token, "base_us_C": roof.base_us.astype(single),
        "datasheet_us_C": roof.datasheet_us.astype(single),
        "floor_us_C": roof.floor_us.astype(single), "flops_C": table.flops.astype(single),
        "bytes_C": (table.read_bytes + table.write_bytes).astype(single),
        "count_C": np.concatenate([q.count for q in found]).astype(single),
        "size_M": np.array([len(q.member) for q in found]),
        "producers_2P": np.concatenate([q.producers for q in found], axis=1),
        "producers_M": np.array([q.producers.shape[1] for q in found]),
        "consumers_2P": np.concatenate([q.consumers for q in found], axis=1),
        "consumers_M": np.array([q.consumers.shape[1] for q in found]),
        "device_M": np.full(len(rows), effect_index(device, hosts)),
        "host_us_M": np.array(host_us, dtype=single),
        "coverage": coverage_of(table, features, described),
    }  # fmt: skip


def _issue_us(measure: str, device: Device, table: KernelTable, calls: Mapping[str, int]) -> float:
    """Time of the host to issue a step, where what was measured waits for it."""
    launches = np.bincount(table.phase, weights=table.launches, minlength=len(PHASES))
    if measure == "kernel_sum":
        return 0.0
    if measure == "device_span":  # begins with the first kernel; a TPU runs a program by itself
        return 0.0 if device.kind == "tpu" else XLA_LAUNCH_US * max(0.0, launches.sum() - 1)
    return sum(
        host_time_us(p, float(n), float(calls.get(p, 0)))
        for p, n in zip(PHASES, launches, strict=True)
    )


def _weights(rows: pd.DataFrame) -> Tensor:
    """Inverse square root of how many rows share device, mode and model.

    Many releases of the framework measured the same models on one device.
    """
    count = rows.groupby(["device", "mode", "model"])["row_id"].transform("count")
    weight = torch.from_numpy(count.to_numpy(dtype=np.float32)).rsqrt()
    return weight / weight.mean()
