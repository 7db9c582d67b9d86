"""`predictor tune`: a search over a recipe's settings, judged on groups that no trial trains on.

A study is a folder: `recipe.json` says what it belongs to, `journal.log` holds every trial (any
number of processes may add to it, and an interrupted one loses its current trial alone),
`trials.csv` the same as a table, `best.toml` the recipe of the best trial. Trial 0 is the recipe
itself.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.fit.choices import check_choices
from predictor.fit.data import devices_of, load_data, training_rows
from predictor.fit.fitting import FitData, fit_networks
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.run_folder import check_folder, claim_folder
from predictor.fit.search_space import (
    Dimension,
    Value,
    own_settings,
    space_of,
    suggest,
    with_settings,
)
from predictor.fit.splits import Split, check_split, device_split
from predictor.fit.study import Study, study_of, write_study
from predictor.fit.trained_rows import trained_rows
from predictor.fit.validation import (
    DEVELOPMENT,
    DevelopmentFold,
    HeldSamples,
    development_folds,
    errors_by_target,
    held_rows,
    overall,
)
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency_net import LatencyNet
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)

JOURNAL = "journal.log"
CHECKS = 4
"""How often in a fit a trial is compared with the others at the same share of their training."""
FIRST_PRUNED = 6
"""Trials that are finished before one may be cut short."""
DEFAULT_TRIALS = 50
PROCESS = "process"
"""Attribute of a trial: machine and process that run it."""


def tune(
    recipe_path: Path,
    data_dirs: Sequence[Path],
    out_dir: Path,
    overrides: Mapping[str, str] | None = None,
    *,
    trials: int | None = None,
    minutes: float | None = None,
) -> Study:
    """Search, and write `out_dir/best.toml`.

    The same call goes on with the study in the folder. The same seed gives the same trials, in one
    process, interrupted or not.

    Args:
        recipe_path: what is searched, with a `[tune]` section or without.
        data_dirs: folders of source folders.
        out_dir: folder of the study.
        overrides: values of the recipe, by `section.key`.
        trials: finished and pruned trials in the study after which it ends, all processes and
            calls together; `DEFAULT_TRIALS` where neither is given.
        minutes: of this call; the trial that is running then is finished.

    Raises:
        RecipeError: the recipe is wrong or chooses no row, or `out_dir` holds a study of another
            one, other data or features.
        DataError: the data cannot be read, or hold nothing to train on or to choose by.
    """
    recipe = load_recipe(recipe_path, overrides)
    space = space_of(recipe)
    resolved = {**recipe.resolved(), "tune": {k: _plain(d) for k, d in space.items()}}
    check_split(recipe.split)
    check_folder(out_dir, resolved, "study")
    data = load_data(recipe, data_dirs)
    check_choices(recipe, data)
    split = device_split(recipe.split, devices_of(data))
    claim_folder(out_dir, resolved, _facts(data, recipe, split), "study")
    judge = _Judge(recipe=recipe, folds=development_folds(data, recipe, split))
    if trials is None and minutes is None:
        trials = DEFAULT_TRIALS
    search = _open(out_dir, recipe, space)
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    while not _enough(search, trials) and time.monotonic() < end:
        _begin_with(search, own_settings(recipe, space))
        search.sampler = _sampler(recipe, len(search.get_trials(deepcopy=False)))
        search.optimize(lambda trial: _objective(trial, judge, space), n_trials=1)
        write_study(out_dir, study_of(search, recipe, space))
    study = study_of(search, recipe, space)
    write_study(out_dir, study)
    return study


def _plain(dimension: Dimension) -> object:
    return list(dimension) if isinstance(dimension, tuple) else dimension.model_dump()


def _facts(data: Imported, recipe: Recipe, split: Split) -> dict[str, object]:
    """Rows that train and rows that judge, with their hashes."""
    seen = training_rows(data, split, ("train", DEVELOPMENT))
    rows = trained_rows(seen, recipe, replace(split, train=split.train | split.development))
    return {source: rows.facts(source) for source in recipe.sources}


def _open(folder: Path, recipe: Recipe, space: Mapping[str, Dimension]) -> optuna.Study:
    """The study in a folder; trials of processes that were killed count as failed."""
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(
        study_name=recipe.name, storage=storage, direction="minimize", load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_PRUNED, n_min_trials=3),
    )  # fmt: skip
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, pid = trial.user_attrs.get(PROCESS, ("", 0))
        if host == platform.node() and pid and not _is_alive(pid):
            study.tell(trial.number, state=TrialState.FAIL)
    return study


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; where that cannot be asked, it does."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _begin_with(study: optuna.Study, own: Mapping[str, Value]) -> None:
    """Try the recipe's own settings next, until a trial finished with them or is about to."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING)
    given = [t.params or t.system_attrs.get("fixed_params") for t in study.get_trials(
        deepcopy=False, states=states)]  # fmt: skip
    if own not in given:
        study.enqueue_trial(dict(own))


def _sampler(recipe: Recipe, number: int) -> optuna.samplers.BaseSampler:
    """Draws by seed and number of the trial alone, so that a study goes on as it would have."""
    import optuna

    seed = int(np.random.SeedSequence([recipe.seed, number]).generate_state(1)[0])
    return optuna.samplers.TPESampler(seed=seed)


def _enough(study: optuna.Study, trials: int | None) -> bool:
    from optuna.trial import TrialState

    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return trials is not None and len(ended) >= trials


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """Folds to fit and score on; samples are made once for all trials that share them."""

    recipe: Recipe
    folds: tuple[DevelopmentFold, ...]
    _made: dict[tuple[int, int], tuple[FitData, HeldSamples]] = field(default_factory=dict)

    def samples(self, recipe: Recipe, fold: int) -> tuple[FitData, HeldSamples]:
        """What trains and what judges; of the settings, only the message layers matter to them."""
        key = (fold, recipe.network.message_layers)
        if key not in self._made:
            fitted = self.folds[fold].fit_data(recipe)
            self._made[key] = (fitted, self.folds[fold].held_samples(recipe, fitted.hosts))
        return self._made[key]


def _objective(trial: optuna.Trial, judge: _Judge, space: Mapping[str, Dimension]) -> float:
    """Error of one trial on the development part; cut short where it is among the worse half."""
    import optuna

    trial.set_user_attr(PROCESS, [platform.node(), os.getpid()])
    recipe = with_settings(judge.recipe, suggest(trial, judge.recipe, space))
    done: list[dict[str, float]] = []
    start = time.monotonic()
    for i in range(len(judge.folds)):
        fitted, held = judge.samples(recipe, i)

        def check(
            epoch: int, nets: Sequence[LatencyNet], i: int = i, fitted: FitData = fitted,
            held: HeldSamples = held,
        ) -> None:  # fmt: skip
            checks = CHECKS * epoch // recipe.optimizer.epochs
            if checks == CHECKS * (epoch - 1) // recipe.optimizer.epochs or checks == CHECKS:
                return
            now = errors_by_target(held_rows(_ensemble(nets, fitted), held))
            _report(trial, overall([*done, now]), i * CHECKS + checks - 1)

        nets = fit_networks(recipe, fitted, None, progress=False, after_epoch=check)
        done.append(errors_by_target(held_rows(_ensemble(nets, fitted), held)))
        _report(trial, overall(done), (i + 1) * CHECKS - 1, last=i + 1 == len(judge.folds))
    for target in done[0]:
        trial.set_user_attr(target, float(np.mean([fold[target] for fold in done])))
    value = overall(done)
    logger.info("trial %d: %.2f%% in %.0f s", trial.number, 100 * value, time.monotonic() - start)
    if not math.isfinite(value):
        raise optuna.TrialPruned
    return value


def _report(trial: optuna.Trial, value: float, step: int, *, last: bool = False) -> None:
    """Tell the study an error on the way.

    Raises:
        TrialPruned: it is among the worse half there, or no number.
    """
    import optuna

    trial.report(value, step)
    if not last and (not math.isfinite(value) or trial.should_prune()):
        logger.info("trial %d: pruned at %.2f%%", trial.number, 100 * value)
        raise optuna.TrialPruned


def _ensemble(nets: Sequence[LatencyNet], fitted: FitData) -> Ensemble:
    return Ensemble(members=tuple(nets), devices=fitted.hosts)
