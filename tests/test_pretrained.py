from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import waves
from mdtim import ImputationWarning, MDTIMImputer
from mdtim.config import preset
from mdtim.learning.fitting import new_network
from mdtim.pretrained import FOLDER, card, load_pretrained, pretrained_config, save_pretrained

CPU = torch.device("cpu")
LIMITS = {"zero-mini": 1_200_000, "zero-base": 6_000_000}


def holey(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Waves that share their phase, with a fifth of the cells gone."""
    table = waves(rows, columns)
    generator = np.random.default_rng(seed)
    table += 0.05 * generator.normal(size=table.shape)
    table[generator.random(table.shape) < 0.2] = np.nan
    return table


def fill(table: np.ndarray, **options: object) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tiny table may say that interpolation is as good
        imputer = MDTIMImputer(preset="zero-mini", progress=False, device="cpu", **options)
        return np.asarray(imputer.fit_transform(table))


@pytest.mark.parametrize("name", LIMITS)
def test_the_weights_are_as_small_as_promised(name: str) -> None:
    network = load_pretrained(name, 3, CPU)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == card(name)["parameters"] <= LIMITS[name]
    assert "mdtim pretrain" in card(name)["command"]
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size <= 15e6


def test_a_tiny_table_is_filled_in_seconds_without_training() -> None:
    table = holey(120, 3)
    fill(table)  # the first call loads libraries
    began = time.perf_counter()
    filled = fill(table)
    # Two seconds on a quiet machine; tests may share theirs.
    assert time.perf_counter() - began < 8
    assert not np.isnan(filled).any()
    known = ~np.isnan(table)
    assert (filled[known] == table[known]).all()


def test_without_a_word_the_imputer_takes_the_pretrained_network() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer = MDTIMImputer(device="cpu", progress=False).fit(holey(150, 2))
    assert imputer.report_.steps == 0
    assert "pretrained" in imputer.report_.reason
    assert imputer.model_.config.network == preset("zero-mini").network


def test_tied_columns_are_filled_far_better_than_by_interpolation() -> None:
    generator = np.random.default_rng(1)
    walk = generator.normal(size=(400, 2)).cumsum(0)
    truth = walk @ generator.normal(size=(2, 6)) + 0.05 * generator.normal(size=(400, 6))
    hidden = generator.random(truth.shape) < 0.3
    table = np.where(hidden, np.nan, truth)
    straight = pd.DataFrame(table).interpolate(limit_direction="both").to_numpy()
    error = np.abs(fill(table) - truth)[hidden].mean()
    assert error < 0.6 * np.abs(straight - truth)[hidden].mean()


def test_permuting_the_columns_permutes_the_result() -> None:
    table = holey(100, 4)
    order = [2, 0, 3, 1]
    # The stack is fitted to cells that are held out at random, which knows no columns.
    filled, moved = fill(table, stack=False), fill(table[:, order], stack=False)
    np.testing.assert_allclose(moved, filled[:, order], atol=1e-4)


def test_scaling_a_column_scales_its_fill() -> None:
    table = holey(100, 3)
    scaled = table.copy()
    scaled[:, 1] = 1_000 * scaled[:, 1] + 5
    filled, moved = fill(table), fill(scaled)
    np.testing.assert_allclose(moved[:, 1], 1_000 * filled[:, 1] + 5, rtol=1e-4, atol=0.5)
    np.testing.assert_allclose(moved[:, [0, 2]], filled[:, [0, 2]], atol=1e-4)


@pytest.mark.parametrize("shape", [(80, 1), (40, 200), (10, 3)])
def test_any_shape_of_table_is_filled(shape: tuple[int, int]) -> None:
    filled = fill(holey(*shape))
    assert filled.shape == shape
    assert np.isfinite(filled).all()


def test_adapting_never_ends_with_worse_weights_than_it_started_from() -> None:
    table = holey(300, 2)
    config = pretrained_config("zero-mini").change(learning_rate=10.0, max_steps=4, warmup_steps=1)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("mdtim.imputer.pretrained_config", lambda name: config)
        imputer = MDTIMImputer(preset="zero-mini", window=32, progress=False, device="cpu")
        imputer.fit(table, from_="pretrained")
    assert imputer.report_.steps == 4
    assert imputer.report_.best_step == 0
    kept = load_pretrained("zero-mini", 2, CPU)
    assert imputer.model_.network is not None
    for mine, theirs in zip(imputer.model_.network.parameters(), kept.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_base_starts_from_pretrained_weights_and_learns_the_table(tmp_path: Path) -> None:
    imputer = MDTIMImputer(
        preset="base", window=16, max_steps=2, batch_size=4, progress=False, device="cpu"
    )
    table = holey(120, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(table)
    assert imputer.report_.steps == 2
    assert imputer.model_.config.training.optimizer == "muon"
    network = imputer.model_.network
    assert network is not None
    assert network.config.dropout == 0.2
    assert not np.isnan(imputer.transform(table)).any()
    imputer.save(tmp_path / "model")
    again = MDTIMImputer.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.transform(table), imputer.transform(table))


def test_base_starts_from_the_weights_of_zero_base() -> None:
    one, two = (load_pretrained(name, 3, CPU).state_dict() for name in ("base", "zero-base"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_adapting_a_network_that_is_not_pretrained_is_refused() -> None:
    with pytest.raises(ValueError, match="adapting starts from a pretrained network"):
        MDTIMImputer(preset="small", adapt=True).fit(holey(60, 2))
    with pytest.raises(ValueError, match='from_ must be "pretrained"'):
        MDTIMImputer().fit(holey(60, 2), from_="somewhere")


def test_a_network_comes_back_from_its_folder_without_the_relations_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = preset("zero-mini").change(width=32, num_heads=2, num_layers=1)
    network = new_network(config, 3, 0)
    network.level_VV.fill_(1.0)
    save_pretrained(network, config, tmp_path / "zero-mini", {"name": "zero-mini"})
    monkeypatch.setattr("mdtim.pretrained.FOLDER", tmp_path)
    loaded = load_pretrained("zero-mini", 5, CPU)
    assert (loaded.level_VV == 0).all()
    assert loaded.level_VV.shape == (5, 5)
    assert torch.allclose(loaded.head.weight, network.head.weight, atol=1e-3)


def flooded(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Two gauges with a rare flood, and the same with some cells of it and around it missing."""
    generator = np.random.default_rng(0)
    level = 10 + np.sin(np.arange(1_200) * 2 * np.pi / 24)
    level[600 : 600 + length] += 500
    whole = np.column_stack([level, 0.8 * level]) + 0.1 * generator.normal(size=(1_200, 2))
    holes = whole.copy()
    holes[generator.random(1_200) < 0.1, 0] = np.nan
    holes[600 + length // 2, 0] = np.nan
    holes[[600, 599 + length], 0] = whole[[600, 599 + length], 0]
    return whole, holes


@pytest.mark.filterwarnings("ignore:on held-out cells")
@pytest.mark.parametrize("length", [3, 5, 40])
def test_inside_a_rare_event_the_event_is_filled(length: int) -> None:
    whole, holes = flooded(length)
    imputer = MDTIMImputer(preset="zero-mini", progress=False, device="cpu").fit(holes)
    missing = np.isnan(holes[:, 0])
    inside = missing & (np.abs(np.arange(1_200) - 600 - length / 2) < length / 2)
    around = missing & ~inside
    filled = imputer.transform(holes)[:, 0]
    assert np.abs(filled - whole[:, 0])[inside].max() < 8
    assert np.abs(filled - whole[:, 0])[around].mean() < 0.5
    imputation = imputer.impute(holes)
    low, high = (bound[:, 0] for bound in imputation.interval(0.9))
    assert ((low <= whole[:, 0]) & (whole[:, 0] <= high))[inside].mean() >= 0.5
    drawn = imputation.samples(1, joint=True)[0][:, 0]
    assert np.abs(drawn - whole[:, 0])[inside].max() < 25


@pytest.mark.filterwarnings("ignore:on held-out cells")
def test_nothing_is_said_beyond_a_bound_that_a_column_often_lies_on() -> None:
    table = holey(400, 3)
    table[:, 1] = np.clip(table[:, 1], -0.2, 0.5)
    imputer = MDTIMImputer(preset="zero-mini", progress=False, device="cpu").fit(table)
    result = imputer.impute(table)
    said = [imputer.transform(table), *result.interval(0.99), *result.samples(2)]
    said += result.samples(1, joint=True)
    for values in said:
        assert values[:, 1].min() >= -0.2
        assert values[:, 1].max() <= 0.5
        assert values[:, 0].min() < -0.5


def test_a_model_follows_a_table_at_another_level_and_warns() -> None:
    table = holey(400, 3)
    imputer = MDTIMImputer(preset="zero-mini", progress=False, device="cpu").fit(table)
    there = imputer.transform(table)
    missing = np.isnan(table[:, 1])
    for shift in (20.0, 1_000.0):
        moved = table + np.array([0.0, shift * np.nanstd(table[:, 1]), 0.0])
        with pytest.warns(ImputationWarning, match="'x1' .* lie far from what the model"):
            filled = imputer.transform(moved)[missing, 1] - (moved - table)[0, 1]
        assert np.abs(filled - there[missing, 1]).mean() < 0.5 * np.nanstd(table[:, 1])
    for factor in (20.0, 0.001):
        with pytest.warns(ImputationWarning, match="check their units"):
            imputer.transform(factor * table)
    with pytest.warns(ImputationWarning, match=r"'x1' \(3.0 times\) vary more than when"):
        imputer.transform(table * np.array([1.0, 3.0, 1.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imputer.transform(1.8 * table)


def test_one_absurd_reading_does_not_spoil_its_window() -> None:
    table = holey(300, 3)
    table[[149, 151], 1] = np.nan
    spoiled = table.copy()
    spoiled[150, 1] = 5_000.0
    missing = np.isnan(table)
    away = missing & (np.abs(np.arange(300) - 150) > 3)[:, None]
    calm, shaken = fill(table, stack=False), fill(spoiled, stack=False)
    assert np.abs(calm - shaken)[away].mean() < 0.15 * np.nanstd(table)
    assert np.abs(calm - shaken)[missing].max() < 3 * np.nanstd(table)  # nor are cells beside it
