"""Times written with several offsets lie in the zone whose clocks have them."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

from mdtim import MDTIMImputer
from mdtim.tables.clock import read_clock
from mdtim.tables.table import Table, TableOptions
from mdtim.tables.zones import in_their_zone


def written(zone: str, freq: str, count: int) -> tuple[pd.DatetimeIndex, pd.Series]:
    stamps = pd.date_range("2024-01-01", periods=count, freq=freq, tz=zone)
    return stamps, pd.Series([str(stamp) for stamp in stamps], dtype=object)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize(("freq", "count"), [("D", 330), ("h", 8_000)])
def test_a_zone_has_all_offsets_of_the_text(zone: str, freq: str, count: int) -> None:
    stamps, cells = written(zone, freq, count)
    clock = read_clock(cells, "the time")
    assert clock.stamps is not None
    assert (clock.ticks == stamps.as_unit("ns").asi8).all()
    assert (clock.stamps.tz_localize(None) == stamps.tz_localize(None)).all()


def test_offsets_that_no_clock_has_stay_in_utc() -> None:
    cells = pd.Series(["2024-01-01 00:00:00+01:00", "2024-01-02 00:00:00-07:00"])
    stamps = pd.DatetimeIndex(pd.to_datetime(cells, utc=True))
    assert str(in_their_zone(cells, stamps).tz) == "UTC"
    unlike = pd.Series(["2024-01-01 00:00:00Z", "2024-01-02 00:00:00-07:00"])
    stamps = pd.DatetimeIndex(pd.to_datetime(unlike, utc=True))
    assert str(in_their_zone(unlike, stamps).tz) == "UTC"


def test_what_does_not_read_says_nothing() -> None:
    _, cells = written("Europe/Berlin", "D", 200)
    cells[7] = "no time"
    read = pd.DatetimeIndex(pd.to_datetime(cells, utc=True, errors="coerce"))
    found = in_their_zone(cells, read)
    assert str(found.tz) == "Europe/Berlin"
    assert found.isna().sum() == 1


def test_days_that_are_skipped_are_found_in_a_file_with_offsets() -> None:
    _, cells = written("Europe/Berlin", "D", 300)
    frame = pd.DataFrame({"time": cells, "kwh": np.sin(np.arange(300) / 5)})
    frame = pd.read_csv(io.StringIO(frame.drop(index=range(100, 110)).to_csv(index=False)))
    table = Table.read(frame, TableOptions(freq="D"))
    assert len(table.panel.values) == 300
    assert np.isnan(table.panel.values[100:110, 0]).all()
    restored = table.restore(np.nan_to_num(table.panel.values))
    assert restored["time"].tolist() == cells.tolist()
    assert MDTIMImputer().read_table(frame, reset=True).panel.values.shape == (300, 1)
