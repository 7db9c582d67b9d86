"""Rules of collectives: what one rank computes, and reads and writes in its own memory.

`numel` is the larger buffer of one rank: its input, and for `all_gather` the gathered output (the
"size" that nccl-tests print). What crosses the links is no memory traffic and is not counted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.cost.rule import Dims, Number, Rule, nothing


def _numel(d: Dims) -> Number:
    return d["numel"]


def _share(d: Dims) -> Number:
    """What one rank contributes or keeps."""
    return d["numel"] / d["ranks"]


def reduction_flops(d: Dims) -> Number:
    """Additions a rank: each element is added up from all ranks, the work shared by them.

    (ranks - 1) / ranks an element (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms").
    """
    return d["numel"] * (d["ranks"] - 1) / d["ranks"]


COLLECTIVE_RULES: Mapping[str, Rule] = {
    "collective": Rule(flops=_numel, reads=_numel, writes=_numel),
    "all_reduce": Rule(flops=reduction_flops, reads=_numel, writes=_numel),
    "all_gather": Rule(flops=nothing, reads=_share, writes=_numel),
    "reduce_scatter": Rule(flops=reduction_flops, reads=_numel, writes=_share),
    "all_to_all": Rule(flops=nothing, reads=_numel, writes=_numel),
    "send_recv": Rule(flops=nothing, reads=_numel, writes=_numel),
}
"""One row an op; `collective` is one of unknown kind."""
