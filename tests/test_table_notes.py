"""What is told of a table, and what its owner says stands for missing."""

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mdtim.tables.table import Table, TableWarning
from table_cases import FRAME_KINDS, NAN, as_kind, fill_with, numbers_of, read


@pytest.mark.parametrize("cell", ["20,063.00", "20.1 C", "1'234", "12 %", "20.063,12", True])
@pytest.mark.parametrize("frame_type", [pd.DataFrame, pl.DataFrame])
def test_what_reads_like_numbers_and_stays_unfilled_is_told(cell, frame_type):
    frame = frame_type({"x": [1.0, NAN], "heat": [cell, None], "at": ["Rome", None]})
    with pytest.warns(
        TableWarning, match="'heat' is not numeric: its 1 missing cells stay"
    ) as said:
        assert Table.read(frame).panel.variates == ("x",)
    assert len(said) == 1


@pytest.mark.parametrize(
    "column", [pd.Categorical([1.5, None]), pd.to_timedelta([1, None], "s"), [Decimal("2.5"), None]]
)
def test_numbers_in_types_that_are_not_filled_are_told(column):
    with pytest.warns(TableWarning, match="'price' is not numeric: its 1 missing cells stay"):
        Table.read(pd.DataFrame({"x": [1.0, NAN], "price": column}))


@pytest.mark.parametrize("cell", ["12:30", "7/8", "A4", "north 3", "1st of May"])
def test_text_with_gaps_is_nobodys_number(cell):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table.read(pd.DataFrame({"x": [1.0, NAN], "note": [cell, None]}))


@pytest.mark.parametrize("frame_kind", FRAME_KINDS)
def test_infinite_cells_are_filled_where_the_user_says_so(frame_kind):
    data = as_kind(pd.DataFrame({"a": [1.0, np.inf, NAN], "b": [-np.inf, 2.0, 3.0]}), frame_kind)
    table = read(data, inf_as_missing=True)
    np.testing.assert_array_equal(table.panel.values, [[1, NAN], [NAN, 2], [NAN, 3]])
    np.testing.assert_array_equal(numbers_of(fill_with(table, 9)), [[1, 9], [9, 2], [9, 3]])


@pytest.mark.parametrize("frame_kind", FRAME_KINDS)
def test_numbers_that_stand_for_missing_are_filled_where_the_user_says_so(frame_kind):
    data = as_kind(pd.DataFrame({"a": [1, -999, 2], "b": [-99.9, 2.0, NAN]}), frame_kind)
    table = read(data, missing_values=(-999, -99.9))
    np.testing.assert_array_equal(table.panel.values, [[1, NAN], [NAN, 2], [2, NAN]])
    np.testing.assert_array_equal(numbers_of(fill_with(table, 9)), [[1, 9], [9, 2], [2, 9]])
    single = np.array([[1.5], [-99.9], [2.5]], dtype=np.float32)
    assert np.isnan(read(single, missing_values=[-99.9]).panel.values).sum() == 1


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ([20.5, -999, 21, -999], "-999"),
        ([20.5, -999.9, 21, 9999], "9999, -999.9"),
        ([0.0, 0, -99], "-99"),
    ],
)
def test_nines_far_from_all_else_are_told(column, found):
    named = found.replace(" ", "")
    with pytest.warns(TableWarning, match=rf"'x' holds {found}, far .*--missing-values {named}\)"):
        Table.read(pd.DataFrame({"x": [*column, NAN]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(pd.DataFrame({"x": column}), missing_values=[float(x) for x in found.split(",")])


@pytest.mark.parametrize(
    "column", [[97.0, 98, 99], [9.0, -9, 1], [-998.0, 3, 2], [99.0, 99], [50.0, 0, 99], [NAN, NAN]]
)
def test_numbers_that_may_well_be_readings_are_nobodys_placeholder(column):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table.read(np.array([column]).T)


def test_words_for_missing_count_as_gaps_of_text_that_reads_like_numbers() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan], "share": ["50%", "NA", "60%"]})
    with pytest.warns(TableWarning, match="column 'share' is not numeric: its 1 missing cells"):
        Table.read(frame)


def test_numbers_that_look_like_unix_times_are_named() -> None:
    seconds = 1_700_000_000 + 3_600 * np.random.default_rng(0).permutation(50)
    frame = pd.DataFrame({"ts": seconds, "x": 1.0})
    with pytest.warns(TableWarning, match="'ts' holds numbers that look like times since 1970"):
        Table.read(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table.read(frame.assign(ts=np.random.default_rng(0).integers(2 * 10**8, 9 * 10**8, 50)))


@pytest.mark.parametrize("word", ["-", "#DIV/0!"])
def test_words_among_numbers_are_named(word: str) -> None:
    cells = [word if row % 5 else str(row) for row in range(100)]
    with pytest.warns(TableWarning, match=f"'y' holds numbers beside '{word}'"):
        Table.read(pd.DataFrame({"x": 1.0, "y": cells}))


def test_a_column_of_nothing_is_named_whatever_its_type() -> None:
    with pytest.warns(TableWarning, match="nothing is observed in column 'k'"):
        Table.read(pd.DataFrame({"x": [1.0, 2.0], "k": [None, None]}))


def test_a_distance_that_does_not_fit_is_named() -> None:
    hours = pd.date_range("2024", periods=24, freq="h")
    times = hours + pd.to_timedelta((np.arange(24) * 7) % 50, unit="s")
    with pytest.warns(TableWarning, match="01:00:07 but also, for instance, 0 days 00:59:17"):
        Table.read(pd.DataFrame({"time": times, "x": 1.0}))
