"""The graph bank: captured kernel graphs that can be read at any batch size.

`load_bank` reads the graphs of a source that come with the library. A graph is known by its
content: programs that launch the same kernels share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.features.table import CONTEXTS, KernelTable
from predictor.graph.ir import HALVES, PHASES

if TYPE_CHECKING:
    import pandas as pd

INDEX_KEYS = ("model", "size", "mode", "variant", "layout")
VARIANTS: Mapping[str, str] = {
    "amp": "parameters in fp32, forward and loss under autocast to fp16 or bf16, layer and group "
    "norms in that dtype as well (timm's `--fast-norm`)",
    "amp-unfused-fastnorm": "the same with attention written out, as under PyTorch 1.13",
    "amp-unfused": "attention written out, norms in fp32, as under PyTorch before 1.13",
    "amp-reparam": "`amp` with the branches that train apart folded into one convolution",
    "bf16-reparam": "`bf16` with the same folded",
    "fp32": "everything in fp32",
    "bf16": "parameters and images in bf16, no autocast",
}
"""Precision of a stored graph."""
REPARAM = "-reparam"
"""End of the name of a variant that timm folded for deployment (`reparameterize_model`)."""
ANY_BATCH = 2**31 - 1
"""`batch_to` of a graph without an upper limit."""

# N kernels, E edges, S distinct kernels, D dimension names


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """S distinct kernels: every integer is `const + slope * batch`."""

    op: NDArray[np.int16]
    """(S,) index into `OP_NAMES`."""
    phase: NDArray[np.int8]
    dtype: NDArray[np.int16]
    """(S,) index into `dtypes`."""
    dtypes: tuple[str, ...]
    """Names of the dtypes; `half` is fp16 or bf16."""
    dims: NDArray[np.int64]
    """(S, M) dimensions by place, constants."""
    dims_slope: NDArray[np.int64]
    dim_places: NDArray[np.int64]
    """(ops, M) column of `KernelTable.dims` of each place of an op; -1 for none."""
    numbers: NDArray[np.int64]
    """(S, 4) FLOPs, bytes read, bytes written, launches: constants."""
    numbers_slope: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class BankGraph:
    """One captured program: N kernels in stream order, E data edges."""

    graph_id: str
    specs: Specs
    index: NDArray[np.intp]
    """(N,) which of the distinct kernels runs."""
    edge_index: NDArray[np.int64]
    """(2, E) producer and consumer, sorted by consumer."""
    host_calls: Mapping[str, int]
    """Framework calls by phase (views included): what the host must issue."""

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(self.index)

    def table(self, batch: int, half: str = "fp16", context: str = "step") -> KernelTable:
        """The kernels at one batch size.

        Args:
            batch: samples of the step.
            half: `fp16` or `bf16`, what autocast ran in; other variants do not ask.
            context: a name of `CONTEXTS`.

        Raises:
            DataError: a batch below one, or another `half`.
        """
        if batch < 1 or half not in HALVES:
            raise DataError(f"batch {batch}, half {half!r}: give a batch of at least 1, and one of "
                            f"{', '.join(HALVES)}")  # fmt: skip
        specs, index = self.specs, self.index
        const, slope = self._dims
        numbers = specs.numbers[index] + batch * specs.numbers_slope[index]
        names = np.array([half if name == "half" else name for name in specs.dtypes])
        return KernelTable(
            op=specs.op[index],
            phase=specs.phase[index],
            dtype=names[specs.dtype[index]],
            dims=const + batch * slope,
            flops=numbers[:, 0].astype(np.float64),
            read_bytes=numbers[:, 1].astype(np.float64),
            write_bytes=numbers[:, 2].astype(np.float64),
            launches=numbers[:, 3],
            context=np.full(len(index), CONTEXTS.index(context), dtype=np.int8),
        )

    @cached_property
    def _dims(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(N, D) constants and slopes of the dimensions, -1 and 0 where the op has none."""
        from predictor.graph.ops import DIM_NAMES

        specs = self.specs
        places = specs.dim_places[specs.op[self.index]]
        rows, columns = np.nonzero(places >= 0)
        const = np.full((self.kernels, len(DIM_NAMES)), -1, dtype=np.int64)
        slope = np.zeros_like(const)
        const[rows, places[rows, columns]] = specs.dims[self.index[rows], columns]
        slope[rows, places[rows, columns]] = specs.dims_slope[self.index[rows], columns]
        return const, slope


@dataclass(frozen=True, kw_only=True)
class GraphBank:
    """All graphs, and which program has which."""

    index: pd.DataFrame
    """A row for each program: `INDEX_KEYS`, `batch_from` and `batch_to` (batches for which the
    graph is exact), `graph` (its id), `family`, `fold`, `graph_group`, `cross_fold_twin` (facts
    of the model tables), `parameters`."""
    ids: Mapping[str, int]
    """Number of each graph by its id."""
    specs: Specs
    stream: NDArray[np.intp]
    """Kernels of all graphs, one after the other."""
    stream_start: NDArray[np.int64]
    """(graphs + 1,) where each begins."""
    inputs: NDArray[np.int64]
    """Edges into each kernel of `stream`."""
    back: NDArray[np.int64]
    """Kernels between consumer and producer of each edge, edges in the order of consumers."""
    edge_start: NDArray[np.int64]
    """(graphs + 1,) where each graph's edges begin."""
    host: NDArray[np.int64]
    """(graphs, phases) framework calls."""

    def find(
        self,
        model: str,
        size: int,
        mode: str,
        variant: str,
        layout: str,
        batch: int | None = None,
    ) -> str | None:
        """Id of a program's graph, None when the bank has none.

        Args:
            model: timm name as the tables have it.
            size: pixels a side of the image.
            mode: `infer` or `train`.
            variant: a key of `VARIANTS`.
            layout: `nchw` or `nhwc`.
            batch: the batch that the graph must be exact for; when not given, two and above.
        """
        wanted = 2 if batch is None else batch
        for low, high, graph in self._by_key.get((model, int(size), mode, variant, layout), ()):
            if low <= wanted <= high:
                return graph
        return None

    def graph(self, graph_id: str) -> BankGraph:
        """A graph by its id.

        Raises:
            DataError: no such graph (ids change when the library captures otherwise).
        """
        number = self.ids.get(graph_id)
        if number is None:
            raise DataError(
                f"no graph {graph_id!r} among the {len(self.ids)} of this bank: import the rows "
                "again (a bank of another version gives other ids)"
            )
        stream = slice(*self.stream_start[number : number + 2])
        edges = slice(*self.edge_start[number : number + 2])
        consumer = np.repeat(
            np.arange(stream.stop - stream.start, dtype=np.int64), self.inputs[stream]
        )
        return BankGraph(
            graph_id=graph_id,
            specs=self.specs,
            index=self.stream[stream],
            edge_index=np.stack([consumer - self.back[edges], consumer]),
            host_calls={p: int(n) for p, n in zip(PHASES, self.host[number], strict=True) if n},
        )

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, int, str, str, str], list[tuple[int, int, str]]]:
        found: dict[tuple[str, int, str, str, str], list[tuple[int, int, str]]] = {}
        columns = [self.index[c].tolist() for c in (*INDEX_KEYS, "batch_from", "batch_to", "graph")]
        for *key, low, high, graph in zip(*columns, strict=True):
            found.setdefault(tuple(key), []).append((low, high, graph))
        return found


def load_bank(folder: str | Path | None = None, *, source: str = "timm") -> GraphBank:
    """The bank of a folder, or the one of a source that comes with the library.

    Raises:
        DataError: a file of the bank is missing or has another version.
    """
    from predictor.traces.graph_bank_files import read_bank, shipped_folder

    return read_bank(shipped_folder(source) if folder is None else Path(folder))
