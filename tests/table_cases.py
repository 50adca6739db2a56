"""Frames of every kind, and ways to read, fill and compare them, for the tests of tables."""

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mdtim.tables.table import Table, TableOptions

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


def stamped(times, **columns):
    return pd.DataFrame({"t": times, "x": np.arange(float(len(times))), **columns})


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
