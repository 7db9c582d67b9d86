"""Make docs/accuracy.md and its figures from evaluations: what the checkpoints get wrong, and why.

    python training/accuracy_report.py FOLDER --held-out RUN --out docs

FOLDER holds two files an evaluation, NAME.rows.parquet and NAME.json, as
`predictor evaluate SUITE --data DIR --checkpoint C --rows FOLDER/NAME.rows.parquet --json
FOLDER/NAME.json` writes them. What is said of a suite beside its figures stands in
training/suites.toml. RUN is the folder that `predictor train` wrote; its cross-validation tells
what the release would get wrong on devices, families and shapes that it had not seen. The same
files give the same page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from accuracy_cells import markdown, noise_cell
from accuracy_figures import figure
from accuracy_held_out import read_held_out
from accuracy_suites import KINDS, Scored, floor_of, of_kind, read_facts, read_folder
from accuracy_tables import (
    baselines,
    breakdown,
    by_distance,
    calibration,
    cause_table,
    summary,
    worst_table,
)

from predictor.atomic import write_text
from predictor.errors import PredictorError
from predictor.hardware.device_file import adopt_device_file

WORST = 50
INTRODUCTION = """# How accurate the checkpoints are

Made by `python training/accuracy_report.py FOLDER --held-out RUN --out docs` from the rows and the
report that `predictor evaluate SUITE --data DIR --checkpoint NAME --rows FILE --json FILE` writes
([evaluation](evaluation.md)), and from the cross-validation of a training run; nothing here is
written by hand.

- **Rows**: the test part of the split ([splits](splits.md)); where a split holds nothing out, the
  rows that the checkpoint was not trained on. Whole steps, kernels timed inside steps and kernels
  measured alone stand apart.
- **Cross-validation**: a release is trained on all rows, so that none of them tells how good it is.
  Here networks of its recipe, smaller ones, predict the rows of devices, or of model families and
  kernel shapes, that were held out from them. Scales of intervals were fitted on other groups than
  the row's. Flags and spreads of kernel rows are not told there.
- **Errors** are percent: mean (MAPE), median and 90th percentile of the absolute error, and mean
  signed error (bias). `*`: fitted on some of the rows.
- **covers**: share of the rows inside their 90% interval, percent. **score**: interval score of
  Gneiting and Raftery (2007) in log time, mean: the width of the interval plus 20 times how far the
  measurement lies outside; smaller is better.
- **Baselines** are scored on the same rows; where some rows lack one, n says how many have it and
  "this" is the checkpoint's own MAPE on those. Published peers are predictions of others.
- **Noise floor**: how far two measurements of the same thing lie apart, percent; an error below it
  cannot be told from noise.
- **In distribution**: share of the predicted time in learned kernels whose every feature lies
  within what training saw.
- **Outside training**: how far the features of the learned kernels lie outside of their training
  range, as shares of its width, summed over the features, mean over the time
  (`predictor.nn.training_range`). A table of its own has the error by it, devices trained on and
  not apart: where the score works, the error rises with it.
- **Calibration**: width is upper / lower, the median. "Constant" is the prediction times and
  divided by one factor for all rows of a kind, which covers as many rows of the part "chosen on" as
  the intervals do: the development rows, or, where the split has none or develops in turn, the
  tested rows themselves, in the constant's favour. In a cross-validation it covers the nominal
  share of the source's groups other than the row's. Where score / constant's is below 1 the
  checkpoint knows which of its predictions are uncertain.
- **Causes** hold by rule, from columns of the rows (`training/accuracy_causes.py`); several may
  hold for one row. "10 times off its like": against its roofline a kernel takes that much more or
  less than the middle of the rows of its device, op, dtype and framework; a stray measurement, or
  a slow path that the library took for this shape. The worst rows are those off by the largest
  factor, either way. A cause that is more frequent in the worst tenth than among all rows goes
  with large errors.

"""


def page(suites: Sequence[Scored], *, development: bool = False) -> str:
    """The page of all suites.

    Args:
        suites: evaluations.
        development: show the development part as well, apart.
    """
    parts = [INTRODUCTION, "## Summary\n\n", summary(suites), "\n"]
    for scored in suites:
        parts += _suite(scored, development)
    return "".join(parts).rstrip() + "\n"


def _suite(scored: Scored, development: bool) -> Iterator[str]:
    yield f'<a id="{scored.name}"></a>\n\n## {scored.name}\n\n'
    yield (
        f"{scored.facts.title}. Checkpoint `{scored.checkpoint}`, split `{scored.split}`, part: "
        f"{scored.part}.\n\n"
    )
    yield f"![Error distribution of {scored.name}](figures/accuracy-{scored.name}.svg)\n\n"
    yield from _cut(scored, development=False)
    if development and len(scored.development):
        yield "### The development part\n\n"
        yield from _cut(scored, development=True)
    yield f"### {scored.name}: baselines and published peers\n\n{baselines(scored)}\n"
    yield f"### {scored.name}: calibration of the intervals\n\n"
    yield f"{calibration(scored)}\n"
    yield f"### {scored.name}: is the distance from training worth something\n\n"
    yield f"{by_distance(scored)}\n"
    yield f"### {scored.name}: causes of large errors\n\n{cause_table(scored)}\n"
    yield f"<details><summary>The worst {WORST} rows</summary>\n\n"
    yield f"{worst_table(scored, WORST)}\n</details>\n\n"
    yield from _notes(scored)


def _cut(scored: Scored, *, development: bool) -> Iterator[str]:
    """Tables by kind of row of one part."""
    rows = scored.development if development else scored.tested
    suffix = ", development" if development else ""
    for kind, title in KINDS.items():
        if len(of_kind(rows, kind)):
            heading = f"{scored.name}: {title}{suffix}"
            yield f"### {heading}\n\n{breakdown(scored, rows, kind)}\n"


def _notes(scored: Scored) -> Iterator[str]:
    there = [kind for kind in KINDS if len(of_kind(scored.rows, kind))]
    noise = []
    for kind in there:
        floor = floor_of(scored, kind)
        text = "the source repeats nothing" if floor is None else floor.text
        noise.append([KINDS[kind], noise_cell(floor), text])
    yield f"### {scored.name}: noise floor and notes\n\n"
    yield markdown(("rows", "noise floor", "how it was found"), noise, texts=3) + "\n"
    for kind in there:
        if of_kind(scored.tested, kind).empty:
            yield f"- {KINDS[kind]}: no row is in the part, all train or develop\n"
    for reason, n in sorted(scored.unscored.items()):
        if n:
            yield f"- without a prediction or score: {n:,} {reason}\n"
    for note in scored.notes:
        yield f"- {note}\n"
    yield "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="rows and reports")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the docs folder")
    parser.add_argument(
        "--held-out", type=Path, metavar="RUN", help="a training run, for its cross-validation"
    )
    parser.add_argument(
        "--device-file", action="append", default=[], type=Path,
        help="describes a device that the catalogue lacks",
    )  # fmt: skip
    parser.add_argument(
        "--development", action="store_true", help="show the development part as well, apart"
    )
    given = parser.parse_args(arguments)
    try:
        for path in given.device_file:
            adopt_device_file(path)
        facts = read_facts()
        suites = read_folder(given.folder, facts)
        if given.held_out is not None:
            suites += read_held_out(given.held_out, facts, suites)
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    write_text(given.out / "accuracy.md", page(suites, development=given.development))
    for scored in suites:
        write_text(given.out / "figures" / f"accuracy-{scored.name}.svg", figure(scored))
    sys.stdout.write(f"{given.out / 'accuracy.md'}: {', '.join(s.name for s in suites)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
