"""Readers of aiconfigurator's collectives inside one node.

`message_size` is in elements. nccl: nccl-tests' size, the larger buffer of a rank, timed in a loop
of launches. custom_allreduce: the buffer of a rank, in a graph or eagerly, as its backend says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from predictor.traces.sources.aiconfigurator_chunk import Chunk, Kernels, Refused
from predictor.traces.sources.aiconfigurator_formats import FORMATS

OPS_BY_NAME: Mapping[str, str] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
_NO_LINK = (None, "none")
"""`Device.scaleup_link` of GPUs that talk over the host's PCIe: its topology decides the time."""


def nccl(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Collectives of NCCL as nccl-tests times them."""
    yield from _collectives(chunk, "nccl_dtype", execution="library")


def custom_allreduce(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """All-reduces of the serving frameworks."""
    yield from _collectives(chunk, "allreduce_dtype", execution="cuda_graph")


def _collectives(chunk: Chunk, dtype: str, *, execution: str) -> Iterator[Kernels | Refused]:
    numel, ranks = chunk.numbers("message_size"), chunk.numbers("num_gpus")
    for (name, kernel, form), rows in chunk.split("op_name", "kernel_source", dtype):
        if name not in OPS_BY_NAME:
            yield Refused(rows=rows, column="op_name", value=name, rule="unknown_op")
            continue
        if form not in FORMATS:
            yield Refused(rows=rows, column=dtype, value=form, rule="unknown_format")
            continue
        width = FORMATS[form].stored_bytes
        how = "eager" if kernel.endswith("_eager") else execution
        yield Kernels(
            rows=rows, op=OPS_BY_NAME[name], form=FORMATS[form],
            dims={"numel": numel[rows], "ranks": ranks[rows]}, ranks_per_node=ranks[rows],
            input_bytes=width, output_bytes=width, execution=how,
            context="device" if how == "cuda_graph" else "isolated",
            flag=chunk.device.scaleup_link in _NO_LINK, flag_name="topology",
        )  # fmt: skip
