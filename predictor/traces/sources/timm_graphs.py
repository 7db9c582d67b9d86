"""Which graph of the bank a row of timm's tables has.

Its own program's, else one that launches the same kernels or nearly so:

* a model that never calls attention is the same program whether timm writes attention out or not;
* a channels-last program has the kernels of the contiguous one, up to a few copies.
"""

from __future__ import annotations

from functools import cache

from predictor.features.table import OP_NAMES
from predictor.graph.ops import OPS
from predictor.traces.graph_bank import GraphBank

TWIN = {"amp": "amp-unfused", "amp-unfused": "amp"}
"""Variants that differ in attention alone."""
CONTIGUOUS = "nchw"
_ATTENTION = frozenset(i for i, name in enumerate(OP_NAMES) if OPS[name].op_class == "attention")


class GraphFinder:
    """Looks graphs up in one bank."""

    def __init__(self, bank: GraphBank) -> None:
        """Of a bank, which is only read."""
        self._bank = bank
        self._calls_attention = cache(self._has_attention)

    def find(self, model: str, size: int, mode: str, variant: str, layout: str) -> str:
        """Id of the graph, empty where the bank has none.

        Args:
            model: timm name as the tables have it.
            size: pixels a side of the image.
            mode: `infer` or `train`.
            variant: a key of `graph_bank.VARIANTS`.
            layout: `nchw` or `nhwc`.
        """
        layouts = dict.fromkeys((layout, CONTIGUOUS))
        variants = [variant]
        if variant in TWIN and self._never_calls_attention(model, size):
            variants.append(TWIN[variant])
        places = ((own, place) for own in variants for place in layouts)
        found = (self._bank.find(model, size, mode, own, place) for own, place in places)
        return next((graph for graph in found if graph is not None), "")

    def _never_calls_attention(self, model: str, size: int) -> bool:
        """Whether it is known that timm has nothing to write out."""
        graph = self._bank.find(model, size, "infer", "amp", CONTIGUOUS)
        return graph is not None and not self._calls_attention(graph)

    def _has_attention(self, graph_id: str) -> bool:
        graph = self._bank.graph(graph_id)
        return not _ATTENTION.isdisjoint(graph.specs.op[graph.index].tolist())
