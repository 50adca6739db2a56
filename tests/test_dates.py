"""Day and month in dates as text are told apart by what only one reading makes sense of."""

import pandas as pd

from mdtim.tables.clock import read_clock
from mdtim.tables.dates import read_text


def test_days_and_months_are_told_apart_by_gaps_that_only_one_reading_has():
    times = pd.date_range("2024-01-01", "2024-01-09 23:00", freq="h").delete([30, 31, 100])
    for format in ("%d-%m-%Y %H:%M", "%m-%d-%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"):
        clock = read_clock(pd.Series(times.strftime(format)), "date")
        assert (clock.stamps == times).all()
        assert "can be read in two ways" in clock.note


def test_the_order_of_day_and_month_is_that_of_text_with_and_without_hours():
    _, _, orders = read_text(pd.Series(["30/01/2024", "31/01/2024", "01/02/2024"]), "date")
    hours_of_a_day = pd.Series(["01/02/2024 00:00", "01/02/2024 12:00"])
    stamps, _, _ = read_text(hours_of_a_day, "date", orders)
    assert orders == ("dmy",)
    assert stamps[0] == pd.Timestamp("2024-02-01")


def test_days_and_months_are_told_apart_by_the_order_of_rows():
    days = pd.DatetimeIndex(["2024-01-10", "2024-02-03", "2024-03-07", "2024-04-01"])
    for format in ("%d-%m-%Y", "%m-%d-%Y", "%d/%m/%Y", "%m/%d/%Y"):
        frame = pd.DataFrame({"date": days.strftime(format), "x": 1.0})
        assert (read_clock(frame["date"], "date").stamps == days).all()
        assert read_clock(frame["date"], "date").note is None
