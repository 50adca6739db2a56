"""A few filled test windows of a run, kept for the pictures.

W windows, T steps, V variates, Q levels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.scoring import Say, TestWindows
from mdtim.panel import BoolArray, FloatArray

LEVELS = (0.05, 0.25, 0.75, 0.95)
NUM_WINDOWS = 8
PICTURED_RATE, PICTURED_SEED = 0.5, 0
PAIR = "pair"
"""Pattern of the windows in which one of two related variates is hidden, then both."""
PAIR_DATASET = "etth"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model said about the hidden cells of some windows, in standardized units."""

    dataset: str
    pattern: str
    variates: tuple[str, ...]
    shown: tuple[int, ...]
    """The variates the picture is about; empty if all are alike."""
    truth_WTV: FloatArray
    """NaN where missing."""
    hidden_WTV: BoolArray
    mean_WTV: FloatArray
    """NaN where not hidden, as in the next two."""
    std_WTV: FloatArray
    quantiles_QWTV: FloatArray
    """At `LEVELS`."""

    def save(self, path: Path) -> None:
        """Write an .npz file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {name: np.asarray(part) for name, part in asdict(self).items()}
        np.savez_compressed(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """Read what :meth:`save` wrote."""
        with np.load(path) as found:
            missing = {field.name for field in fields(cls)} - set(found)
            if missing:
                raise ValueError(f"{path} is not a file of predictions: it lacks {sorted(missing)}")
            parts = {field.name: found[field.name] for field in fields(cls)}
        for name in ("dataset", "pattern"):
            parts[name] = str(parts[name])
        for name in ("variates", "shown"):
            parts[name] = tuple(parts[name].tolist())
        return cls(**parts)


def keep_predictions(
    cell: Cell, test: TestWindows, say: Say, hidden_WTV: BoolArray, runs: Path
) -> None:
    """Write a few windows of a main cell at half hidden; for one data set, the pair as well."""
    if cell.experiment != "main" or cell.method != "mdtim":
        return
    if (cell.rate, cell.mask_seed) != (PICTURED_RATE, PICTURED_SEED):
        return
    chosen = np.linspace(0, len(test.index) - 1, min(NUM_WINDOWS, len(test.index))).astype(int)
    few = test.take(chosen)
    name = f"{cell.dataset}-{cell.window}-{cell.preset}-{cell.train_seed}"
    folder = runs / "predictions"
    _predict(few, cell.pattern, say, hidden_WTV[chosen]).save(folder / f"{name}-{cell.pattern}.npz")
    if cell.dataset == PAIR_DATASET:
        pair = related_pair(test.dataset.values[slice(*test.dataset.training)])
        hidden = pair_mask(few.shape, pair)
        _predict(few, PAIR, say, hidden, pair).save(folder / f"{name}-{PAIR}.npz")


def related_pair(values: FloatArray) -> tuple[int, int]:
    """The two variates of (N, V) values that are most alike without being the same."""
    related = np.abs(np.corrcoef(values[~np.isnan(values).any(axis=1)].T))
    related[(related > 0.999) | np.isnan(related)] = 0.0
    first, second = np.unravel_index(int(related.argmax()), related.shape)
    return int(first), int(second)


def pair_mask(shape: tuple[int, int, int], pair: tuple[int, int]) -> BoolArray:
    """Hide the first of the pair in a quarter of the window, then both in another quarter."""
    quarter = shape[1] // 4
    hidden = np.zeros(shape, dtype=bool)
    one, both = quarter // 2, 2 * quarter + quarter // 2
    hidden[:, one : one + quarter, pair[0]] = True
    hidden[:, both : both + quarter, list(pair)] = True
    return hidden


def _predict(
    test: TestWindows,
    pattern: str,
    say: Say,
    hidden_WTV: BoolArray,
    shown: tuple[int, ...] = (),
) -> Predictions:
    (part,) = test.hide(hidden_WTV)
    said = say(part.batch, part.visible_BTV, part.scored_BTV)
    scored = part.scored_BTV.cpu().numpy()
    observed = part.batch.observed_BTV.cpu().numpy()
    truth = np.where(observed, part.batch.values_BTV.double().cpu().numpy(), np.nan)
    assert said.distribution is not None, "pictures show distributions"
    distribution = said.distribution()
    cells = [said.estimate, distribution.std()]
    cells += [distribution.quantile(level) for level in LEVELS]
    full = np.full((len(cells), *scored.shape), np.nan)
    for place, values in zip(full, cells, strict=True):
        place[scored] = values.double().cpu().numpy()
    names = test.dataset.variates or tuple(f"variate {n + 1}" for n in range(scored.shape[2]))
    return Predictions(
        test.dataset.name, pattern, names, shown, truth, scored, full[0], full[1], full[2:]
    )
