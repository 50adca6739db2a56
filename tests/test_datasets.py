from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from mdtim import datasets
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
def test_weather_has_no_fault_mark_left() -> None:
    raw = datasets._numbers("weather", "latin-1")
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
    import hashlib

    content = b"date,a\n1,2\n"
    origin = tmp_path / "origin.csv"
    origin.write_bytes(content)
    source = datasets.Source(
        "tiny.csv", origin.as_uri(), hashlib.sha256(content).hexdigest(), "none", "none"
    )
    monkeypatch.setitem(datasets.SOURCES, "tiny", source)
    monkeypatch.delenv("MDTIM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert datasets.read_content("tiny") == content
    origin.unlink()
    assert datasets.read_content("tiny") == content  # from the cache


def test_a_set_that_cannot_be_had_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = datasets.Source("gone.csv", (tmp_path / "gone").as_uri(), "0", "none", "none")
    monkeypatch.setitem(datasets.SOURCES, "gone", gone)
    monkeypatch.delenv("MDTIM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="MDTIM_DATA"):
        datasets.read_content("gone")
    with pytest.raises(ValueError, match="unknown data set 'moon'"):
        datasets.load("moon")
