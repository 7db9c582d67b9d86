"""`predictor transfer-report`: zero to few measurements on devices that no network saw."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.atomic import write_text
from predictor.calibrate.prior import shipped_prior
from predictor.errors import DataError
from predictor.fit.data import devices_of
from predictor.fit.run_folder import claim_folder
from predictor.fit.transfer_baselines import proxies_of
from predictor.fit.transfer_curves import Elsewhere, Plan, Score, curves
from predictor.fit.transfer_networks import UnseenNetworks, of_checkpoint, of_run, train_folds
from predictor.fit.transfer_pages import page, to_json, write_figure
from predictor.fit.transfer_rows import DeviceRows, device_rows, proxy_rows
from predictor.fit.transfer_suites import Kind, TransferSuite, suites_of
from predictor.hardware.twins import twins
from predictor.nn.ensemble import threads
from predictor.traces.progress import Progress
from predictor.traces.schema import Imported
from predictor.traces.sources.registry import read_source

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)
RUN, CURVES = "run", "curves"
PAGE, VALUES, FIGURE = "report.md", "report.json", "report.html"


def default_recipe() -> Path:
    """The recipe of the networks that a report trains where it is given none."""
    return Path(str(resources.files("predictor.fit") / "transfer.toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """Scores of every suite, device, budget, draw and method."""

    scores: list[Score]
    plan: Plan
    notes: tuple[str, ...]

    def write(self, out: Path, page_file: Path | None = None) -> None:
        """Page, JSON and figure into a folder, and the page to another file where asked."""
        text = page(self.scores, self.plan, self.notes)
        write_text(out / PAGE, text)
        if page_file is not None:
            write_text(page_file, text)
        values = to_json(self.scores, self.plan, self.notes)
        write_text(out / VALUES, json.dumps(values, indent=1, allow_nan=False) + "\n")
        write_figure(self.scores, self.plan, out / FIGURE)


def transfer_report(
    data_dirs: Sequence[Path],
    out: Path,
    *,
    run: Path | None = None,
    recipe: Path | None = None,
    checkpoints: Sequence[str] = (),
    suites: Sequence[str] = (),
    devices: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    progress: bool = False,
    read: Progress | None = None,
) -> TransferReport:
    """Score adapters and baselines on devices held out; goes on with what `out` holds.

    Args:
        data_dirs: folders of source folders.
        out: folder of the report: trained folds, curves of every suite that is done.
        run: folder of a training whose device folds are taken.
        recipe: trained otherwise, its device folds alone; `default_recipe` when not given and
            neither a run nor a checkpoint is.
        checkpoints: shipped names or folders, each on the devices that it did not train on.
        suites: names of `SUITES`; all whose source is at hand when not given.
        devices: those to hold out; all when not given.
        overrides: values of the recipe.
        plan: how much is drawn.
        progress: whether fits show a bar.
        read: told the rows read.

    Raises:
        DataError: nothing to score, or a run without device folds. RecipeError: the recipe is
            wrong, or `out` holds a report of other networks or data.
    """
    wanted = suites_of(suites, data_dirs)
    plan = Plan() if plan is None else plan
    sources = tuple(dict.fromkeys(suite.source for suite in wanted))
    if run is None and (recipe is not None or not checkpoints):
        run = out / RUN
        path = default_recipe() if recipe is None else recipe
        train_folds(path, data_dirs, run, overrides or {}, sources, progress=progress)
    networks = [*(of_run(run) if run is not None else ())]
    networks += [of_checkpoint(name) for name in checkpoints]
    told = {"networks": [[n.name, n.fold] for n in networks], "plan": asdict(plan)}
    claim_folder(out / CURVES, told, {"devices": sorted(devices)}, "report")
    scores: list[Score] = []
    notes: list[str] = []
    with threads(1):
        for source in sources:
            of_source = [suite for suite in wanted if suite.source == source]
            found = _SourceCurves(data_dirs, source, of_source, networks, devices, plan, read)
            scores += found.scores(out / CURVES, notes)
    if not scores:
        raise DataError("no device of these suites was held out of these networks")
    notes += _of_networks(networks)
    for unseen in networks:
        own = [s for s in scores if (s["network"], s["fold"]) == (unseen.name, unseen.fold)]
        scored = sorted({s["device"] for s in own})
        for device in scored:
            if seen := unseen.twins_seen(device):
                notes.append(f"{unseen.name}: {device} has a twin that trained: {', '.join(seen)}")
    return TransferReport(scores=scores, plan=plan, notes=tuple(dict.fromkeys(notes)))


def _of_networks(networks: Sequence[UnseenNetworks]) -> list[str]:
    """What folds are, in a sentence a run."""
    found = []
    for name in dict.fromkeys(n.name for n in networks if n.held is not None):
        parts = [n for n in networks if n.name == name]
        recipe = parts[0].recipe
        short = recipe.calibration.epochs
        found.append(
            f"{name}: {len(parts)} fits that take turns in leaving devices and their twins out; "
            f"{1 if short else recipe.network.members} network(s), "
            f"{short or recipe.optimizer.epochs} epochs; the sources are "
            f"{', '.join(recipe.sources)}"
        )
    return found


class _SourceCurves:
    """The suites of one source; its rows are read when the first curve is missing."""

    def __init__(
        self,
        data_dirs: Sequence[Path],
        source: str,
        suites: Sequence[TransferSuite],
        networks: Sequence[UnseenNetworks],
        devices: Sequence[str],
        plan: Plan,
        read: Progress | None,
    ) -> None:
        self.source, self.suites, self.networks = source, suites, networks
        self.devices, self.plan, self.read, self.data_dirs = devices, plan, read, data_dirs
        self.data: Imported | None = None
        self.made: dict[tuple[object, ...], DeviceRows | None] = {}

    def scores(self, folder: Path, notes: list[str]) -> list[Score]:
        """Scores of all suites; those of earlier calls are kept."""
        found: list[Score] = []
        for suite in self.suites:
            path = folder / f"{suite.name}.json"
            if not path.is_file():
                logger.info("%s: %s", self.source, suite.name)
                write_text(path, json.dumps(self._suite(suite, folder / suite.name)))
            scores = json.loads(path.read_text(encoding="utf-8"))
            if not scores:
                notes.append(f"{suite.name}: no device with enough rows was held out")
            found += scores
        return found

    def _rows(self) -> Imported:
        if self.data is None:
            only = [suite.only for suite in self.suites if suite.only]
            chosen = partial(_wanted, only) if len(only) == len(self.suites) else None
            self.data = read_source(self.source, self.data_dirs, progress=self.read, chosen=chosen)
        return self.data

    def _suite(self, suite: TransferSuite, parts: Path) -> list[Score]:
        """Scores of a suite; each device's are kept in `parts` as soon as they are there."""
        found: list[Score] = []
        every = sorted(devices_of(self._rows()))
        for unseen in self.networks:
            if self.source not in unseen.recipe.sources:
                continue
            for device in every:
                if not unseen.never_saw(device) or (self.devices and device not in self.devices):
                    continue
                path = parts / f"{'-'.join((unseen.name, unseen.fold)).replace(' ', '-')}"
                path = path / f"{device}.json"
                if not path.is_file():
                    write_text(path, json.dumps(self._device(suite, unseen, device, every)))
                found += json.loads(path.read_text(encoding="utf-8"))
        return found

    def _device(
        self, suite: TransferSuite, unseen: UnseenNetworks, device: str, every: Sequence[str]
    ) -> list[Score]:
        flags, depth = unseen.recipe.exclude_flags, unseen.networks.message_layers
        target = self._of(suite, suite.target, device, flags, depth)
        evidence = self._of(suite, suite.evidence, device, flags, depth)
        if target is None or evidence is None:
            return []
        others = [d for d in every if d not in twins(device)]
        elsewhere = Elsewhere(rows=(), proxies=[])
        if suite.same_kind:
            rows = [self._of(suite, suite.target, other, flags, 0) for other in others]
            elsewhere = Elsewhere(
                rows=[r for r in rows if r is not None],
                proxies=proxies_of(proxy_rows(self._rows(), suite, flags), device),
            )
        logger.info("%s: %s", suite.name, device)
        return curves(suite, evidence, target, elsewhere, unseen, shipped_prior(), self.plan)

    def _of(
        self,
        suite: TransferSuite,
        kind: Kind,
        device: str,
        flags: Sequence[str],
        depth: int,
    ) -> DeviceRows | None:
        choice = (tuple(sorted(suite.only.items())), suite.newest, suite.per_sample)
        key = (*choice, kind, device, tuple(flags), depth)
        if key not in self.made:
            self.made[key] = device_rows(
                self._rows(), suite, kind, device, flags=flags, depth=depth
            )
        return self.made[key]


def _wanted(only: Sequence[Mapping[str, tuple[str, ...]]], rows: pd.DataFrame) -> pd.Series[bool]:
    """Rows that one of the suites takes."""
    import pandas as pd

    found = pd.Series(False, index=rows.index)
    for choice in only:
        own = pd.Series(True, index=rows.index)
        for column, values in choice.items():
            own &= rows[column].isin(values)
        found |= own
    return found
