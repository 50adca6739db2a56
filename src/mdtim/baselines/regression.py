"""Scikit-learn's imputers on the steps of a window: each step with its neighbours as features.

A step alone says nothing about time, and is a much weaker reference: so a row holds the variates
of the step itself, of the one before and of the one after. W windows, T steps, V variates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from mdtim.baselines.protocol import Filled, HeldOut, Windows, keep_observed
from mdtim.panel import FloatArray


class StepRegression:
    """KNN or iterative imputation of (step before, step, step after)."""

    num_parameters = 0

    def __init__(self, method: str, values: Mapping[str, Any], seed: int) -> None:
        self.method = method
        self.values = values
        self.seed = seed
        self.imputer: Any = None

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        """Learn from a random choice of training steps."""
        generator = np.random.default_rng(self.seed)
        num_windows, num_steps, _ = training_WTV.shape
        if num_steps < 3:
            raise ValueError(f"{self.method} needs a step between two others, got {num_steps}")
        count = min(self.values["num_rows"], num_windows)
        chosen = generator.choice(num_windows, size=count, replace=False)
        step = generator.integers(1, num_steps - 1, size=count)
        rows = _neighbours(training_WTV[chosen])[np.arange(count), step]
        if self.method == "iterative":
            # From whole rows it would learn in one round, and then do no more than one to fill.
            share = generator.choice([0.3, 0.5, 0.7], size=(count, 1))
            rows[generator.random(rows.shape) < share] = np.nan
        with warnings.catch_warnings():
            # Its number of rounds is a setting here, not a failure to converge.
            warnings.filterwarnings("ignore", "\\[IterativeImputer\\] Early stopping")
            self.imputer = self._build().fit(rows)

    def _build(self) -> Any:
        if self.method == "knn":
            from sklearn.impute import KNNImputer

            return KNNImputer(n_neighbors=self.values["num_neighbors"], keep_empty_features=True)
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401
        from sklearn.impute import IterativeImputer

        return IterativeImputer(
            max_iter=self.values["max_iter"], random_state=self.seed, keep_empty_features=True
        )

    def fill(self, visible_WTV: Windows) -> Filled:
        """Impute the rows of all steps, and keep the middle third: the step itself."""
        num_variates = visible_WTV.shape[2]
        rows = _neighbours(visible_WTV).reshape(-1, 3 * num_variates)
        gaps = np.isnan(rows[:, num_variates : 2 * num_variates]).any(axis=1)
        filled = rows.copy()
        if gaps.any():
            filled[gaps] = self.imputer.transform(rows[gaps])
        middle = filled[:, num_variates : 2 * num_variates]
        return Filled(keep_observed(visible_WTV, middle.reshape(visible_WTV.shape)))


def _neighbours(windows_WTV: Windows) -> FloatArray:
    """(W, T, 3V): the step before, the step, the step after; NaN beyond the window."""
    edge = np.full_like(windows_WTV[:, :1], np.nan)
    before = np.concatenate([edge, windows_WTV[:, :-1]], axis=1)
    after = np.concatenate([windows_WTV[:, 1:], edge], axis=1)
    return np.concatenate([before, windows_WTV, after], axis=2).astype(np.float64)
