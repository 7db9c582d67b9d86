"""The model card of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.fit.recipe import Recipe
from predictor.fit.splits import Split


def card_text(
    recipe: Recipe,
    split: Split,
    facts: Mapping[str, Any],
    metrics: Mapping[str, Any],
    *,
    remake: str,
) -> str:
    """Markdown: intended use, what it covers, held-out errors, known failures.

    `remake` is the command that makes the checkpoint again, overrides included.
    """
    lines = [
        f"# {recipe.name}",
        "",
        "Predicts kernel and step latency of PyTorch programs on accelerators from datasheet "
        "facts.",
        "",
        "- **Use it for** eager fp32 programs of matrix products, elementwise ops, softmax, layer "
        "norm and convolution on GPUs, one device, inference or training step.",
        "- **Not for** reduced precision, TF32 convolution, fused attention, compiled graphs, "
        "several devices, CPUs or TPUs: "
        "it answers there from the roofline and says so (label `roofline`).",
        "- **Licence** Apache-2.0; trained on measurements published under MIT.",
        f"- **Split** `{recipe.split}`; trained on {', '.join(sorted(split.train)) or 'nothing'}.",
    ]
    for source, fact in facts.items():
        lines.append(
            f"- **Data** {source}: {fact['kernel_rows']:,} kernel rows, {fact['step_rows']} step "
            f"rows, sha256 `{fact['sha256'][:16]}…`."
        )
    lines += ["", "## Held-out errors (grouped cross-validation inside the training devices)", ""]
    lines += [*_table(metrics, "device", "Device never seen"), ""]
    lines += _table(metrics, "model", "Model family never seen, device seen")
    lines += [
        "",
        "## Known failures",
        "",
        "- Cards that throttle thermally (Tesla P4 in its published sweep) run slower than any "
        "power model says.",
        "- Forward times of some published training steps hold allocator time that no kernel "
        "explains; the total is the figure to trust.",
        "- The host is assumed, not known: steps of many tiny kernels depend on it.",
        "- Matrix products of 16 rows and fewer, as in decoding, are hardly measured and come out "
        "slow.",
        "",
        "## Remake",
        "",
        "```",
        remake,
        "```",
        "",
    ]
    return "\n".join(lines)


def _table(metrics: Mapping[str, Any], kind: str, title: str) -> list[str]:
    rows = [g for g in metrics["held_out"] if g["fold_kind"] == kind and g["target"] == "step"]
    if not rows:
        return [f"{title}: not run."]
    out = [
        f"{title}, whole steps:", "",
        "| held out | phase | n | MAPE | median | p90 | bias |", "|---|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for g in rows:
        out.append(
            f"| {g['fold']} | {g['group']} | {g['n']} | {g['mape']:.1%} | {g['median_ape']:.1%} | "
            f"{g['p90_ape']:.1%} | {g['bias']:+.1%} |"
        )
    return out
