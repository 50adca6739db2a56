from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from conftest import tiny_config
from mdtim import ImputationWarning, MDTIMImputer
from mdtim.autowindow import choose_window
from mdtim.evaluation import evaluate, hide_share
from mdtim.panel import Panel
from mdtim.scaling import Standardizer
from mdtim.tables.table import Table

pytestmark = pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")


def imputer() -> MDTIMImputer:
    return MDTIMImputer(window=24, preset=tiny_config(), progress=False)


def test_a_model_is_scored_beside_the_simple_methods_on_the_same_cells(gappy: np.ndarray) -> None:
    scores, table = evaluate(imputer(), gappy, share=0.2, seed=1, fit=True)
    assert [row.method for row in scores.rows] == ["mdtim", "mean", "locf", "linear"]
    assert scores.num_hidden == int(0.2 * (~np.isnan(gappy)).sum())
    assert sum(column.num_hidden for column in scores.columns) == scores.num_hidden
    model, mean = scores.rows[0], scores.rows[1]
    assert 0 < model.mae < mean.mae
    assert model.crps < model.mae
    assert model.coverage90 is not None
    assert mean.crps == pytest.approx(mean.mae)
    assert mean.coverage90 is None
    assert np.array_equal(table.panel.values, gappy, equal_nan=True)
    assert json.loads(json.dumps(scores.to_dict()))["num_hidden"] == scores.num_hidden


def test_columns_and_gap_lengths_split_the_hidden_cells(gappy: np.ndarray) -> None:
    scores, table = evaluate(imputer(), gappy, share=0.2, seed=1, fit=True)
    hidden = hide_share(table.panel, 0.2, 1)
    for parts in (scores.columns, scores.gap_lengths):
        assert sum(part.num_hidden for part in parts) == scores.num_hidden
        for whole, *own in zip(scores.rows, *(part.rows for part in parts), strict=True):
            assert {row.method for row in own} == {whole.method}
            weights = [part.num_hidden for part in parts]
            for error in ("mae", "crps", "coverage90"):
                if getattr(whole, error) is not None:
                    mean = np.average([getattr(row, error) for row in own], weights=weights)
                    assert mean == pytest.approx(getattr(whole, error))
            squares = np.average([row.rmse**2 for row in own], weights=weights)
            assert squares == pytest.approx(whole.rmse**2)
    column = scores.columns[1]
    shown = np.where(hidden, np.nan, gappy)[:, 1]
    error = (np.nanmean(shown) - gappy[hidden[:, 1], 1]) / Standardizer.fit(gappy).std[1]
    assert (column.column, column.num_hidden) == ("x1", len(error))
    assert column.rows[1].mae == pytest.approx(np.abs(error).mean())
    # A hidden cell beside missing ones belongs to the gap that both make.
    missing = np.isnan(np.where(hidden, np.nan, gappy))
    count = {1: 0, 2: 0}
    for row, variate in np.argwhere(hidden):
        before = missing[:row, variate][::-1]
        after = missing[row + 1 :, variate]
        length = 1 + sum(
            len(side) if side.all() else int(side.argmin()) for side in (before, after)
        )
        count[length] = count.get(length, 0) + 1
    for group in scores.gap_lengths:
        lengths = range(group.shortest, group.longest + 1)
        assert group.num_hidden == sum(count.get(length, 0) for length in lengths)


def test_the_calibration_curve_rises_and_holds_the_coverage_of_the_scores(
    gappy: np.ndarray,
) -> None:
    scores, _ = evaluate(imputer(), gappy, share=0.2, seed=1, fit=True)
    covered = [point.covered for point in scores.calibration]
    assert covered == sorted(covered)
    assert 0 < covered[0] < covered[-1] <= 1
    by_level = {point.level: point.covered for point in scores.calibration}
    assert by_level[0.9] == scores.rows[0].coverage90
    for number, point in enumerate(scores.calibration):
        of_columns = [
            (column.num_hidden, column.calibration[number].covered) for column in scores.columns
        ]
        inside = sum(count * covered for count, covered in of_columns)
        assert inside == pytest.approx(scores.num_hidden * point.covered)


def test_the_score_of_linear_interpolation_is_that_of_pandas(gappy: np.ndarray) -> None:
    import pandas as pd

    scores, table = evaluate(imputer(), gappy, share=0.2, seed=1, fit=True)
    hidden = hide_share(table.panel, 0.2, 1)
    shown = pd.DataFrame(np.where(hidden, np.nan, gappy))
    error = (shown.interpolate(limit_direction="both") - gappy).to_numpy()
    expected = np.abs(error / Standardizer.fit(gappy).std)[hidden].mean()
    assert scores.rows[-1].mae == pytest.approx(expected)


def test_no_hidden_value_reaches_the_model(gappy: np.ndarray) -> None:
    hidden = hide_share(Table.read(gappy).panel, 0.2, 0)
    weights = []
    for data in (gappy, np.where(hidden, 1e9, gappy)):
        model = imputer()
        evaluate(model, data, share=0.2, seed=0, fit=True)
        network = model.model_.network
        assert network is not None
        weights.append([model.model_.standardizer.mean, *network.state_dict().values()])
    for one, two in zip(*weights, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(two))


def test_a_fitted_model_is_not_fitted_again(gappy: np.ndarray) -> None:
    model = imputer().fit(gappy)
    before = model.model_.network
    with pytest.warns(ImputationWarning, match="fitted to this very table"):
        evaluate(model, gappy, share=0.1, fit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(model, gappy[20:], share=0.1, fit=False)
    assert model.model_.network is before


def test_an_impossible_share_is_refused(gappy: np.ndarray) -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 0"):
        evaluate(imputer(), gappy, share=0.0, fit=True)
    with pytest.raises(ValueError, match="none at all"):
        evaluate(imputer(), gappy[:3], share=0.05, fit=True)


def test_a_column_that_was_never_observed_hides_nothing_else(gappy: np.ndarray) -> None:
    offsets = np.array([0, len(gappy)])
    whole = Panel(gappy, offsets, ("a", "b", "c"))
    empty = Panel(np.hstack([gappy, np.full((len(gappy), 1), np.nan)]), offsets, (*"abcd",))
    np.testing.assert_array_equal(hide_share(empty, 0.1, 0)[:, :3], hide_share(whole, 0.1, 0))
    assert choose_window(empty, long=True) == choose_window(whole, long=True)
