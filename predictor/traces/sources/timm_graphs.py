"""Which graph of the bank a row of timm's tables has.

Its own program's, else one that launches the same kernels or nearly so:

* a model that never calls attention is the same program whether timm writes attention out or not,
  and one without layer and group norms whatever their dtype;
* a channels-last program has the kernels of the contiguous one, up to a few copies.

The tables publish how many parameters the timed model had. Where the program of that name has
another number, the model was folded for deployment (`-reparam` variants) or is not the one that
the name means today: it has no graph then.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from predictor.features.table import OP_NAMES
from predictor.graph.ops import OPS
from predictor.traces.graph_bank import REPARAM, GraphBank

OTHER_MODEL = "another model"
"""In place of an id: the bank has the name, but not the model that was timed."""
TWINS: Mapping[str, tuple[tuple[str, bool], ...]] = {
    "amp": (("amp-unfused-fastnorm", False), ("amp-unfused", True)),
    "amp-unfused-fastnorm": (("amp", False),),
    "amp-unfused": (("amp", True),),
}
"""Variants that differ in attention alone, or (True) in norms too."""
CONTIGUOUS = "nchw"
PARAMETERS_STEP = 1e4
"""The tables round to hundredths of a million."""
PARAMETERS_SLACK = 0.002
"""Relative difference beside rounding: buffers and heads that releases of timm count otherwise."""
_ATTENTION = frozenset(i for i, name in enumerate(OP_NAMES) if OPS[name].op_class == "attention")
_FAST_NORMS = frozenset(OP_NAMES.index(name) for name in ("layer_norm", "group_norm", "rms_norm"))


class GraphFinder:
    """Looks graphs up in one bank."""

    def __init__(self, bank: GraphBank) -> None:
        """Of a bank, which is only read."""
        self._bank = bank
        self._ops = cache(self._ops_of)
        index = bank.index
        folded = index["variant"].str.endswith(REPARAM)
        keys = zip(index["model"], index["size"], folded, strict=True)
        self._parameters = dict(zip(keys, index["parameters"].astype(float), strict=True))

    def find_counted(
        self, model: str, size: int, mode: str, variant: str, layout: str, parameters: float
    ) -> str:
        """`find`, of the program with this number of parameters (NaN: not known).

        Returns:
            The id, empty where the bank has none, `OTHER_MODEL` where it has the name with another
            number of parameters alone.
        """
        slack = PARAMETERS_STEP / 2 + PARAMETERS_SLACK * parameters
        counts = {f: self._parameters.get((model, int(size), f)) for f in (False, True)}
        known = {f: abs(n - parameters) for f, n in counts.items() if n is not None}
        if not known or parameters != parameters:
            return self.find(model, size, mode, variant, layout)
        folded = min(known, key=known.__getitem__)
        if known[folded] > slack:
            return OTHER_MODEL
        return self.find(model, size, mode, variant + REPARAM if folded else variant, layout)

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
        for twin, norms in TWINS.get(variant, ()):
            if self._never_calls(model, size, norms):
                variants.append(twin)
        places = ((own, place) for own in variants for place in layouts)
        found = (self._bank.find(model, size, mode, own, place) for own, place in places)
        return next((graph for graph in found if graph is not None), "")

    def _never_calls(self, model: str, size: int, norms: bool) -> bool:
        """Whether it is known that the program has no attention (and no norm with a fast form)."""
        graph = self._bank.find(model, size, "infer", "amp", CONTIGUOUS)
        if graph is None:
            return False
        ops = self._ops(graph)
        return ops.isdisjoint(_ATTENTION) and not (norms and ops & _FAST_NORMS)

    def _ops_of(self, graph_id: str) -> frozenset[int]:
        graph = self._bank.graph(graph_id)
        return frozenset(graph.specs.op[graph.index].tolist())
