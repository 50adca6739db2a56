import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mdtim.tables.grid import Spacing
from mdtim.tables.table import Table
from mdtim.tables.timeline import read_timeline
from table_cases import NAN, as_kind, fill_with, hours, named_columns, read, stamped


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
            "2020-01-01T01:30+01:00",
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
        (hours(3), "9999999999999999999h", "not a pandas offset"),
        (hours(3), "200000000h", "longer than two centuries"),
        (hours(3), "100000000000D", "longer than two centuries"),
        (hours(3), "99999W", "longer than two centuries"),
        (hours(3), "1000000YS", "longer than two centuries"),
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


@pytest.mark.parametrize(
    ("times", "reading"),
    [
        (hours(40), "utc"),
        (pd.date_range("2020", periods=40, freq="MS"), "months"),
        (pd.date_range("2020-03-20", periods=40, freq="D", tz="Europe/Berlin"), "local"),
        (pd.Series(np.arange(40) * 0.5), "number"),
    ],
)
def test_a_part_is_laid_out_by_the_spacing_of_the_whole(times, reading):
    frame = stamped(times)
    whole = read_timeline(frame, "t")
    assert whole.spacing.reading == reading
    # Every second row alone would look like steps of twice the size.
    part = read_timeline(frame.iloc[10:30:2], "t", spacing=whole.spacing)
    assert part.steps[:-1].tolist() == [2] * 9
    assert part.marks.tolist() == whole.marks[10:30:2].tolist()


def test_a_part_that_does_not_fit_the_spacing_is_refused():
    spacing = read_timeline(stamped(hours(9)), "t").spacing
    odd = pd.to_datetime(["2020-01-01 00:00", "2020-01-01 00:20"])
    with pytest.raises(ValueError, match="not spaced as the rest of the data set"):
        read_timeline(stamped(odd), "t", spacing=spacing)
    with pytest.raises(ValueError, match="another kind of time"):
        read_timeline(stamped(pd.Series([1.0, 2.0])), "t", spacing=spacing)
    equal_rows = Spacing("rows", 1)
    assert read_timeline(stamped(odd), "t", spacing=equal_rows).num_rows == 2


def test_days_from_monday_to_friday_are_steps_of_one():
    days = pd.bdate_range("2024-01-01", periods=60)
    frame = pd.DataFrame({"day": days, "x": np.arange(60.0)}).drop([10, 20, 21])
    table = Table.read(frame)
    assert len(table.panel.values) == 60
    assert table.panel.step_seconds == 86400
    assert (table.panel.timestamps == days.to_numpy()).all()
    local = frame.assign(day=frame["day"].dt.tz_localize("Europe/Berlin"))
    assert len(Table.read(local).panel.values) == 60
    # With a single Sunday among them weekends are gaps.
    frame.loc[60] = [pd.Timestamp("2024-01-07"), 1.0]
    assert len(Table.read(frame).panel.values) == 82


def test_days_go_on_through_a_night_without_their_hour() -> None:
    days = pd.date_range("2024-03-01", periods=60) + pd.Timedelta("2h30min")
    times = days.tz_localize("Europe/Berlin", nonexistent="NaT")
    frame = pd.DataFrame({"x": np.arange(60.0)}, index=times)[~times.isna()]
    timeline = read_timeline(frame, freq="D")
    assert timeline.num_rows == 60
    assert timeline.places.tolist() == [*range(30), *range(31, 60)]
