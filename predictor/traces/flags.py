"""Every flag that an importer or a measurement gives: why a row that is kept is not for every use.

A row has one flag, or several joined by `+`. Rows of users may have flags of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

FLAGS: Mapping[str, str] = {
    "above_peak": "faster than the device's peak, or more than a tenth below the physical floor",
    "attention_uncertain": "worked out from FLOPs that count attention in one way or another",
    "batch_from_log": "the batch is that of the log, not of the recipe",
    "below_floor": "a user's kernel in less than half of its physical floor: often another unit",
    "cache_warm": "timed with one copy of the weight, which fits the cache",
    "cold_cache": "operands came from memory",
    "compiled": "a step under torch.compile, with the graph of an eager one",
    "config_unknown": "plan, precision or batch is not published",
    "data_gradient_only": "one backward time, which is that of the data's gradient",
    "derived": "worked out from FLOP/s",
    "derived_from_epoch": "worked out from the time of an epoch",
    "device_uncertain": "the device's name fits several",
    "devices_from_log": "the number of devices is that of the log, not of the topology",
    "distributed": "a step on several devices whose phases are not known",
    "fit": "what a published fit says at a stated size, no measurement",
    "graph_not_understood": "the op graph has a cell that cannot be read",
    "host_bound": "a kernel that waits for its host: the time hardly depends on its size",
    "inaccurate": "more than a twentieth of the results outside of the tuner's tolerance",
    "includes_evaluation": "evaluation is inside: an upper bound",
    "inconsistent": "contradicts another number of its source",
    "mi300x_or_mi325x": "the source's name of the device fits both",
    "multi_node": "a collective between nodes, whose link is not known",
    "no_graph": "a step without an op graph",
    "no_layer_count": "does not say how often the layer of its graph repeats",
    "no_layer_stack": "no node of its graph is known as part of the repeated layer",
    "noisy": "the median's interval, or the spread of a trace's steps, is wide",
    "not_sampled": "of an architecture that is not in the graph bank",
    "op_sum_above_step": "ops of a step that add up to more than it",
    "other_load": "others kept the machine busy",
    "other_model": "parameters that no program of its name has",
    "per_sequence": "the time of one sequence: no batch is published",
    "rounded": "the last published digit is above a tenth of the time",
    "seq_assumed": "the sequence length is not published",
    "several_kernels": "a call in a step that does the work of several kernels",
    "single_step": "a trace of one step: nothing tells the spread",
    "state_pass": "two of the three products of the delta rule's pass over the state",
    "throttled": "of a card below its clocks",
    "topology": "a collective over the host, whose links differ tenfold",
    "waits_for_peers": "a collective of a trace: it holds the wait for other ranks",
    "window_unknown": "of a table whose rows beat the peak, as if under a window of attention",
}
"""Meaning by flag."""
JOIN = "+"


def unknown_flag(name: str, there: Collection[str] = ()) -> str | None:
    """What a name that is no flag may mean, as words; None where it is one.

    Args:
        name: as written.
        there: flags that rows at hand have besides.
    """
    known = {*FLAGS, *there}
    if name and (name in known or all(part in known for part in name.split(JOIN))):
        return None
    plain = name.strip().casefold()
    near = [k for k in sorted(known) if plain and (plain in k.casefold() or k.casefold() in plain)]
    near = near or difflib.get_close_matches(plain, sorted(known), 3, 0.6)
    if near:
        return f"nearest: {', '.join(map(repr, near))}"
    return f"known: {', '.join(sorted(known))}"
