from __future__ import annotations

import pytest
import torch

from mdtim.config import DiffusionConfig
from mdtim.masks import MaskMix, _renewal, draw_runs

SHAPE = (3_000, 48, 2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("mean_run", [2.0, 3.0, 12.0])
def test_the_closed_form_chain_has_the_law_of_the_stepwise_one(
    rate: float, mean_run: float
) -> None:
    rates = torch.full((SHAPE[0],), rate)
    hidden = draw_runs(rates, torch.full_like(rates, mean_run), SHAPE, generator())
    per_row = hidden.float().mean(1).flatten()
    assert abs(float(hidden.float().mean()) - rate) < 4 * float(per_row.std()) / len(per_row) ** 0.5
    leave = 1 / max(mean_run, rate / (1 - rate))
    now, later = hidden[:, :-1], hidden[:, 1:]
    assert float((now & ~later).sum() / now.sum()) == pytest.approx(leave, abs=0.01)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_gaps_have_the_tables_own_lengths_and_about_the_rate(rate: float) -> None:
    lengths = torch.tensor([4.0, 4.0, 9.0])
    hidden = _renewal(torch.full((SHAPE[0],), rate), lengths, 0.0, SHAPE, generator())
    assert float(hidden.float().mean()) == pytest.approx(rate, abs=0.08)
    runs = []
    for row in hidden[:200].transpose(1, 2).reshape(-1, 48).int().tolist():
        text = "".join(map(str, row)).strip("1")  # runs at the edges are cut
        runs += [len(run) for run in text.split("0") if run]
    assert set(runs) <= {4, 9, 8, 13, 18, 12, 17, 16}  # or several that touch
    assert {4, 9} <= set(runs)


def test_a_joint_gap_takes_all_variates() -> None:
    hidden = _renewal(torch.full((50,), 0.5), torch.tensor([5.0]), 1.0, (50, 48, 4), generator())
    assert (hidden == hidden[:, :, :1]).all()


@pytest.mark.parametrize("gaps", [None, torch.tensor([3.0, 30.0])])
def test_each_window_hides_about_its_own_rate(gaps: torch.Tensor | None) -> None:
    rates = torch.linspace(0.05, 0.95, 400)
    mix = MaskMix.from_config(DiffusionConfig(), gaps, 0.5)
    hidden = mix.draw(rates, (400, 48, 6), generator())
    shares = hidden.float().mean((1, 2))
    assert torch.corrcoef(torch.stack([rates, shares]))[0, 1] > 0.8


def test_the_papers_masks_are_single_cells() -> None:
    mix = MaskMix.from_config(DiffusionConfig(mixed_masks=False))
    hidden = mix.draw(torch.full((500,), 0.5), (500, 48, 2), generator())
    now, later = hidden[:, :-1], hidden[:, 1:]
    assert float((now & later).float().sum() / now.sum()) == pytest.approx(0.5, abs=0.02)


def test_the_same_generator_gives_the_same_masks() -> None:
    mix = MaskMix.from_config(DiffusionConfig(), torch.tensor([3.0, 9.0]), 0.5)
    rates = torch.rand(20, generator=generator())
    one, two = (mix.draw(rates, (20, 16, 3), generator(5)) for _ in range(2))
    assert torch.equal(one, two)
