from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdtim.benchmark.figures import draw_figures, liveliest
from mdtim.benchmark.predictions import (
    LEVELS,
    PAIR,
    Predictions,
    pair_mask,
    related_pair,
)


def predictions(dataset: str, pattern: str, shown: tuple[int, ...] = ()) -> Predictions:
    generator = np.random.default_rng(0)
    truth = np.sin(np.arange(24)[:, None] / 4 + np.arange(2)) * np.array([0.1, 1.0])
    truth = np.stack([truth, 0.5 * truth])
    hidden = pair_mask(truth.shape, (0, 1)) if shown else generator.random(truth.shape) < 0.5
    mean = np.where(hidden, truth + 0.05, np.nan)
    spread = np.where(hidden, 0.1, np.nan)
    bands = np.stack([mean + (level - 0.5) * spread for level in LEVELS])
    names = ("first", "second")
    return Predictions(dataset, pattern, names, shown, truth, hidden, mean, spread, bands)


def test_predictions_come_back_as_they_were_saved(tmp_path: Path) -> None:
    before = predictions("etth", PAIR, (1, 0))
    before.save(tmp_path / "p.npz")
    after = Predictions.load(tmp_path / "p.npz")
    assert (after.dataset, after.pattern, after.shown) == ("etth", PAIR, (1, 0))
    assert after.variates == before.variates
    np.testing.assert_array_equal(after.quantiles_QWTV, before.quantiles_QWTV)
    np.testing.assert_array_equal(after.hidden_WTV, before.hidden_WTV)
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match="not a file of predictions"):
        Predictions.load(tmp_path / "other.npz")


def test_the_pair_is_alike_but_not_the_same_and_hidden_alone_then_together() -> None:
    generator = np.random.default_rng(0)
    base = generator.normal(size=(500, 1))
    noise = generator.normal(size=(500, 4)) * np.array([0.0, 0.0, 0.3, 2.0])
    assert related_pair(base + noise) in {(0, 2), (1, 2)}  # 0 and 1 are the same
    hidden = pair_mask((3, 48, 5), (4, 1))
    one, both = hidden[..., 4] & ~hidden[..., 1], hidden[..., 4] & hidden[..., 1]
    assert one.sum(axis=1).tolist() == both.sum(axis=1).tolist() == [12, 12, 12]
    assert not hidden[..., [0, 2, 3]].any()
    assert not (hidden[..., 1] & ~hidden[..., 4]).any()


def test_the_picture_shows_the_variate_that_moves() -> None:
    assert liveliest(predictions("etth", "uniform")) == (0, 1)


def test_pictures_are_drawn_of_what_a_run_kept(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kept = tmp_path / "predictions"
    with pytest.raises(ValueError, match="run the experiment main first"):
        draw_figures(tmp_path, tmp_path / "out")
    predictions("etth", "uniform").save(kept / "etth-48-base-0-uniform.npz")
    predictions("sine", "geometric").save(kept / "sine-48-base-0-geometric.npz")
    predictions("etth", PAIR, (0, 1)).save(kept / f"etth-48-base-0-{PAIR}.npz")
    written = draw_figures(tmp_path, tmp_path / "out")
    assert [path.name for path in written] == ["filled.png", "pair.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000
