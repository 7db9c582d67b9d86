"""The model card of a checkpoint: what it says follows from recipe, rows and what was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from predictor.fit.card_tables import held_out_tables, measured_table, seed_table
from predictor.fit.model_choice import ModelChoice
from predictor.fit.recipe import Recipe
from predictor.fit.splits import Split
from predictor.hardware.kinds import KIND_NAMES, and_list, kinds_of
from predictor.program import DTYPES

LICENCE = "Apache-2.0"
"""Of the weights."""
KNOWN_FAILURES: Mapping[str, tuple[str, ...]] = {
    "neusight": (
        "Cards that throttle thermally (Tesla P4 in its published sweep) run slower than any "
        "power model says.",
        "Forward times of some published training steps hold allocator time that no kernel "
        "explains; the total is the figure to trust.",
        "NeuSight hardly measured matrix products of 16 rows and fewer, as in decoding: where no "
        "other source does, they come out slow.",
    ),
    "scalesim": (
        "Rows of TPU v4 are published fits of f16 kernels over a range that is not told, no "
        "measurements: elementwise ones say a third of the memory's bandwidth (taken as what fp16 "
        "costs on a TPU, which has none), products half of the peak.",
    ),
    "tpugraphs": (
        "Rows of TPU v3 do not name their device; v3 is what the data set's paper says.",
    ),
    "enzyme": (
        "Programs of microseconds lie a third off and more either way: how XLA overlaps the reads "
        "of their arguments is not modelled.",
    ),
}
"""What is known to go wrong with rows of a source."""
_KINDS: tuple[str, ...] = ("gpu", "cpu", "tpu")
"""Kinds that a program may be meant for."""
_MODELS: Mapping[str, str] = {
    "roofline": "a fitted roofline: by op class one efficiency and one launch time",
    "rates": "a roofline with rates: start time, memory and compute rate by op class, and what "
    "each known device adds to them",
    "boosted_trees": "boosted trees on the features of single kernels: no edges, no neighbours; a "
    "kernel in a step is answered as it was measured, alone where only that was",
}
NARROW: tuple[str, ...] = ("fp8", "fp4", "int8")
"""Dtypes of kernels that no captured program has yet."""
_MODES: Mapping[str, str] = {"infer": "inference", "train": "training steps"}


def card_text(
    recipe: Recipe,
    split: Split,
    facts: Mapping[str, Mapping[str, Any]],
    learned: Sequence[Sequence[str]],
    metrics: Mapping[str, Any],
    *,
    remake: str,
    kind: str = "network",
    choice: ModelChoice | None = None,
    measured: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> str:
    """Markdown: intended use, what it covers, held-out errors, known failures.

    Args:
        recipe: sources and split.
        split: devices and groups by part.
        facts: `TrainedRows.facts` by source.
        learned: (token, dtype) pairs that measured rows cover.
        metrics: held-out errors.
        remake: the command that makes the checkpoint again, overrides included.
        kind: of model (`predictor.fit.candidates.KINDS`).
        choice: the comparison of kinds, where one was made.
        measured: (token, dtype) pairs by the device that they were measured on.
    """
    lines = [
        f"# {recipe.name}",
        "",
        "Predicts kernel and step latency of PyTorch programs on accelerators from datasheet "
        "facts.",
        "",
        *_kind(kind, choice),
        *_uses(facts, learned),
        *_asked(facts, learned),
        f"- **Licence** {LICENCE}; trained on measurements published under {_licences(facts)}.",
        f"- **Split** {_split(split, recipe.parts)}.",
        *_data(facts),
        "",
        "## Kernels learned",
        "",
        *_kernels(learned),
        "",
        "Other kernels, and products or convolutions on units of another format than their dtype "
        "(fp32 on TF32 units), are answered from the roofline and say so (label `roofline`).",
        "",
        *measured_table(measured or {}),
        "## Held-out errors (grouped cross-validation inside the training devices)",
        "",
        *held_out_tables(metrics, of_sources=len(recipe.sources) > 1),
        "",
        *seed_table(metrics),
        "## Known failures",
        "",
        *(f"- {text}" for text in _failures(recipe, facts)),
        "",
        "## Remake",
        "",
        "```",
        remake,
        "```",
        "",
    ]
    return "\n".join(lines)


def _uses(
    facts: Mapping[str, Mapping[str, Any]], learned: Sequence[Sequence[str]]
) -> tuple[str, str]:
    """What the checkpoint is for, and what it is not for."""
    ways = _union(facts, "executions") or ["eager"]
    kinds = kinds_of(_union(facts, "devices"))
    modes = [_MODES[m] for m in _union(facts, "modes")] or ["kernels (no whole step trains it)"]
    use = (
        f"- **Use it for** {_and(_by_dtype(learned))} programs of the kernels below, run as "
        f"{_and(ways)}, on {kinds.text}, one device: "
        f"{_and(modes)}."
    )
    # a device that nothing describes may be of any kind: none is excluded then
    others = [k for k in _KINDS if k not in kinds.known] if not kinds.undescribed else []
    compiled = [] if "compiled" in ways else ["compiled programs"]
    beyond = [
        "several devices", *compiled, *(f"{KIND_NAMES[k]} (figures extrapolate)" for k in others)
    ]  # fmt: skip
    return use, f"- **Not for** {_and(beyond)}."


def _asked(facts: Mapping[str, Mapping[str, Any]], learned: Sequence[Sequence[str]]) -> list[str]:
    """What of it no command asks for: other dtypes and ways to run than a captured program's."""
    dtypes, ways = _by_dtype(learned), _union(facts, "executions")
    beyond = [*(w for w in ways if w != "eager"), *(d for d in dtypes if d in NARROW)]
    if not beyond:
        return []
    asked = _and(d for d in DTYPES if d in dtypes)
    return [
        f"- **From the command line** `predictor estimate` and `compare` take eager programs in "
        f"{asked} (autocast too); {_and(beyond)} kernels are learned for rows that are "
        "already measured (`predictor evaluate`) and for later: `--compile` and `--dtype fp8` say "
        "that they do not work yet."
    ]


def _kind(kind: str, choice: ModelChoice | None) -> list[str]:
    """What kind of model it is where it is no network, and how it was chosen."""
    text = _MODELS.get(kind)
    found = [] if text is None else [f"- **Model** {text}."]
    if choice is not None:
        errors = ", ".join(f"{name} {error:.1%}" for name, error in choice.errors.items())
        found.append(
            f"- **Chosen** by {choice.rows:,} rows of groups held out; by how much a time was off: "
            f"{errors}."
        )
    return found


def _licences(facts: Mapping[str, Mapping[str, Any]]) -> str:
    by_source = [
        f"{' and '.join(fact['licences']) or 'no stated licence'} ({source})"
        for source, fact in facts.items()
        if fact["kernel_rows"] or fact["op_rows"] or fact["step_rows"]  # a held-out one has none
    ]
    return ", ".join(by_source)


def _split(split: Split, parts: Sequence[str]) -> str:
    """Name of the split, devices and parts that train, and what other groups it holds out."""
    text = f"`{split.name}`; trained on {', '.join(sorted(split.train)) or 'nothing'}"
    if tuple(parts) != ("train",):
        text += f", parts {' and '.join(parts)}"
    if split.test:
        text += f"; test devices {', '.join(sorted(split.test))}"
    for rule in split.rules:
        text += f"; by {rule.by.replace('_', ' ')}: test {_groups(rule.test)}"
        if rule.development:
            text += f", development {_groups(rule.development)}"
    return text


def _data(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"- **Data** {source}: {_kernel_rows(fact)}, {fact['step_rows']:,} step rows, sha256 "
        f"`{fact['sha256'][:16]}…`."
        for source, fact in facts.items()
    ]


def _kernel_rows(fact: Mapping[str, Any]) -> str:
    """Rows of kernels and ops; kernels of a source may be timed inside steps as well as alone."""
    inside = fact.get("in_step_kernel_rows", 0)
    if not inside:
        return f"{fact['kernel_rows']:,} kernel rows, {fact['op_rows']:,} rows of ops inside steps"
    ops = f", {fact['op_rows']:,} of ops inside steps" if fact["op_rows"] else ""
    alone = fact["kernel_rows"] - inside
    return f"{alone:,} rows of kernels alone, {inside:,} of kernels inside steps{ops}"


def _failures(recipe: Recipe, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = [text for source in recipe.sources for text in KNOWN_FAILURES.get(source, ())]
    alone = (f["kernel_rows"] - f.get("in_step_kernel_rows", 0) for f in facts.values())
    if not sum(alone):
        found.append("No kernel was timed alone: kernel times are what makes whole steps add up.")
    return [
        *found,
        "The host is assumed, not known: steps of many tiny kernels depend on it.",
    ]


def _kernels(learned: Sequence[Sequence[str]]) -> list[str]:
    """Table of the kinds of kernel by dtype, and by kind of device where that is told."""
    kinds = sorted({entry[2] for entry in learned if len(entry) > 2})
    if not kinds:
        rows = [f"| {dtype} | {', '.join(t)} |" for dtype, t in _by_dtype(learned).items()]
        return ["| dtype | kinds of kernel |", "|---|---|", *rows]
    out = ["| device | dtype | kinds of kernel |", "|---|---|---|"]
    for kind in kinds:
        of = [entry for entry in learned if entry[2] == kind]
        name = KIND_NAMES.get(kind, kind)
        out += [f"| {name} | {dtype} | {', '.join(t)} |" for dtype, t in _by_dtype(of).items()]
    return out


def _by_dtype(learned: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Tokens learned, by dtype."""
    found: dict[str, list[str]] = {}
    for token, dtype in sorted({(str(t), str(d)) for t, d, *_ in learned}):
        found.setdefault(dtype, []).append(token)
    return dict(sorted(found.items()))


def _union(facts: Mapping[str, Mapping[str, Any]], key: str) -> list[str]:
    return sorted({str(value) for fact in facts.values() for value in fact[key]})


def _groups(groups: Iterable[object]) -> str:
    return ", ".join(map(str, groups))


def _and(words: Iterable[str]) -> str:
    return and_list([word.replace("_", " ") for word in words]) or "no"
