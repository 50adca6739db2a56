"""Run cells: train what is not trained yet, score what is not scored yet, append rows."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from mdtim.baselines.protocol import UnreadableModel
from mdtim.baselines.registry import packages_of
from mdtim.bench.environment import commit, device_name, versions
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.forecaster import Forecaster
from mdtim.benchmark.methods import Method, prepare
from mdtim.benchmark.predictions import keep_predictions
from mdtim.benchmark.rows import Row, append, fingerprint, finished, key_of
from mdtim.benchmark.scoring import FilledWindows, Scores, TestWindows, hidden_mask
from mdtim.datasets import Dataset, load

OUT_OF_TIME = "  out of time: the next run goes on"


def run_cells(
    cells: Iterable[Cell],
    results: Path,
    runs: Path,
    device: torch.device,
    *,
    max_minutes: float | None = None,
    log: Callable[[str], None] = print,
) -> bool:
    """Run every cell that has no row yet, model by model.

    Parameters
    ----------
    results : CSV file, appended to
    runs : folder for trained models, checkpoints and a few predictions
    max_minutes : stop (with checkpoints) when this time is up

    Returns
    -------
    bool : True if every cell has a row now
    """
    if max_minutes is not None and not max_minutes > 0:
        raise ValueError(f"max_minutes must be above 0, got {max_minutes:g}")
    limit = float("inf") if max_minutes is None else time.monotonic() + 60 * max_minutes
    _check_folder(runs)
    done = finished(results)
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in dict.fromkeys(cells):
        if key_of(cell) not in done:
            groups.setdefault(cell.training_key, []).append(cell)
    complete = True
    for group in groups.values():
        if time.monotonic() > limit:
            log(OUT_OF_TIME)
            return False
        dataset = load(group[0].dataset, group[0].window)
        try:
            complete &= _run_group(group, dataset, results, runs, device, limit, log)
        except UnreadableModel:
            raise
        except Exception as error:
            # A method that cannot handle a case is a visible row, and the run goes on.
            log(traceback.format_exc())
            for cell in group:
                if key_of(cell) not in finished(results):
                    append(results, _row(cell, device, error=f"{type(error).__name__}: {error}"))
            complete = False
    return complete


def _check_folder(runs: Path) -> None:
    """Know before a training that its model can be kept."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs):
            pass
    except OSError as error:
        raise ValueError(
            f"models cannot be kept in {runs} ({error}); name another folder (--runs)"
        ) from error


def _run_group(
    group: list[Cell],
    dataset: Dataset,
    results: Path,
    runs: Path,
    device: torch.device,
    limit: float,
    log: Callable[[str], None],
) -> bool:
    """Run cells that share one trained model; False if the time was not enough."""
    first = group[0]
    log(f"{first.dataset} T={first.window} {first.method} {first.preset} seed {first.train_seed}")
    test = TestWindows.put(dataset, first.window, device)
    method = prepare(first, test, runs, limit, log)
    if method is None:
        starts_anew = first.settings is not None
        log("  out of time: the next run starts this fit anew" if starts_anew else OUT_OF_TIME)
        return False
    if method.compiles:
        test.warm_up(method.say)
    forecasts = Forecasts(test, runs, log)
    masks: dict[tuple[str, float, int], list[Cell]] = {}
    # Each cell's first mask before any second, for runs that are stopped.
    for cell in sorted(group, key=lambda cell: cell.mask_seed):
        masks.setdefault((cell.pattern, cell.rate, cell.mask_seed), []).append(cell)
    for (pattern, rate, seed), members in masks.items():
        hidden = hidden_mask(pattern, test.shape, rate, seed)
        filled: FilledWindows | None = None
        for cell in members:
            if time.monotonic() > limit:
                log(OUT_OF_TIME)
                return False
            # One fill serves its own errors and every horizon.
            filled = filled or test.fill(method.say, hidden)
            if cell.horizon is None:
                scores = filled.scores()
                keep_predictions(cell, test, method.say, hidden, runs)
            else:
                scores = forecasts.score(cell.horizon, filled)
            append(results, _row(cell, device, method=method, scores=scores))
            log(f"  {cell.experiment} {pattern:9s} {rate:.0%} mask {seed}: {_line(scores)}")
    return True


class Forecasts:
    """Forecasters of one data set, trained when they are first asked for."""

    def __init__(self, test: TestWindows, runs: Path, log: Callable[[str], None]) -> None:
        self.test, self.runs, self.log = test, runs, log
        self.known: dict[int, Forecaster] = {}

    def score(self, horizon: int, filled: FilledWindows) -> Scores:
        """Errors of forecasts from filled test windows, where their future is known."""
        test = self.test
        if horizon not in self.known:
            made = Forecaster(test.dataset, test.index.length, horizon, test.device)
            made.prepare(self.runs, self.log)
            self.known[horizon] = made
        starts = torch.from_numpy(test.index.starts).to(test.device)
        inside = starts + test.index.length + horizon <= test.dataset.test[1]
        mae, mse = self.known[horizon].errors(filled.values_WTV[inside], starts[inside])
        return Scores(mae, mse, None, None, None, filled.seconds)


def _line(scores: Scores) -> str:
    text = f"MAE {scores.mae:.5f}"
    if scores.crps is not None and scores.crps_window is not None:
        text += f"  CRPS {scores.crps:.5f}  window CRPS {scores.crps_window:.5f}"
    return text + ("" if scores.coverage90 is None else f"  coverage {scores.coverage90:.1%}")


def _row(
    cell: Cell,
    device: torch.device,
    *,
    method: Method | None = None,
    scores: Scores | None = None,
    error: str = "",
) -> Row:
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Scores))
    measured = nothing if scores is None else asdict(scores)
    return Row(
        **asdict(cell),
        **measured,
        params=None if method is None else method.params,
        train_seconds=None if method is None else method.train_seconds,
        peak_memory_gb=None if method is None else method.peak_memory_gb,
        device=device_name(device),
        versions=versions(*packages_of(cell.method)),
        commit=commit(),
        config=fingerprint(cell),
        error=error,
    )
