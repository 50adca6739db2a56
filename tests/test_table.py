import inspect
import subprocess
import sys
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdtim.tables.files import read_frame, write_frame
from mdtim.tables.table import Table, TableOptions, TableWarning
from table_cases import (
    FRAME_KINDS,
    NAN,
    as_kind,
    assert_same,
    copy_of,
    fill_with,
    hours,
    named_columns,
    numbers_of,
    panels,
    read,
    stamped,
)


@pytest.fixture(params=FRAME_KINDS)
def frame_kind(request):
    return request.param


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
    with pytest.warns(TableWarning, match="'decimal' is not numeric"):
        filled = fill_with(Table.read(frame), 2)
    assert list(filled.dtypes) == list(frame.dtypes)
    assert filled.iloc[1, :4].tolist() == [2, 2, 2, 2]
    assert filled["decimal"].tolist() == [Decimal("1.5"), None]


@pytest.mark.filterwarnings("ignore:nothing is observed in column")
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
    with pytest.warns(TableWarning, match="'price' is not numeric"):
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
        ({"a": [1.0], "b": [2.0]}, {"columns": ()}, "columns names none"),
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


def test_numbers_of_any_size_stay_what_they_are():
    data = np.array([[1e308, -5e-324], [NAN, NAN]])
    filled = fill_with(Table.read(data), 1e300)
    assert filled.tolist() == [[1e308, -5e-324], [1e300, 1e300]]


def test_one_row_is_a_table(frame_kind):
    data = as_kind(stamped(hours(1)), frame_kind)
    table = Table.read(data)
    assert table.panel.step_seconds is None
    assert_same(fill_with(table, 3), data)


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
        "import sys, numpy, mdtim.tables.files; from mdtim.tables.table import Table;"
        "Table.read(numpy.eye(2));"
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
