from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_config
from gpu_cases import needs_cuda
from mdtim.learning import lessons
from mdtim.learning.interruption import held_back
from mdtim.learning.lessons import held_out_cells
from mdtim.learning.optimization import MovingAverage
from mdtim.learning.training import Progress, Trainer
from training_cases import trainer


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.network.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def test_training_learns() -> None:
    run = trainer(tiny_config(max_steps=200, validate_every=50, learning_rate=5e-3, dropout=0.0))
    before = run.data.error(run.predictor())
    assert run.run() == "finished"
    assert run.progress.best_mae < 0.8 * before
    assert run.data.error(run.predictor()) == pytest.approx(run.progress.best_mae)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    runs = [trainer(tiny_config(), seed) for seed in (3, 3, 4)]
    for run in runs:
        run.run()
    assert same(weights(runs[0]), weights(runs[1]))
    assert not same(weights(runs[0]), weights(runs[2]))


def test_training_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run = trainer(tiny_config())
    torch.manual_seed(11)
    run.run()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "changes",
    [{}, {"interpolated": False, "mixed_masks": False}, {"optimizer": "muon", "weight_decay": 0.1}],
)
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    config = tiny_config(max_steps=8, validate_every=2, **changes)
    whole = trainer(config)
    whole.run()

    first = trainer(config)

    def stop_at_five(progress: Progress, share: float) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    assert first.run(on_step=stop_at_five, checkpoint=tmp_path / "run", checkpoint_every=1) == (
        "interrupted"
    )
    # The checkpoint of the interruption itself, not a later one.
    second = trainer(config)
    second.resume(tmp_path / "run")
    assert second.progress.step == 5
    second.run()
    assert same(weights(whole), weights(second))
    assert [record.step for record in whole.progress.history] == [
        record.step for record in second.progress.history
    ]
    assert whole.progress.best_step == second.progress.best_step


@pytest.fixture
def _usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_usual_handler")
def test_ctrl_c_inside_a_step_lets_it_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(max_steps=8, validate_every=2)
    whole = trainer(config)
    whole.run()
    first = trainer(config)
    step = first.optimizer.step

    def press_in_the_fifth() -> None:
        step()
        if first.progress.step == 4:
            signal.raise_signal(signal.SIGINT)  # the weights have moved, their average has not

    monkeypatch.setattr(first.optimizer, "step", press_in_the_fifth)
    assert first.run(checkpoint=tmp_path / "run") == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    second = trainer(config)
    second.resume(tmp_path / "run")
    assert second.progress.step == 5
    second.run()
    assert same(weights(whole), weights(second))


@pytest.mark.usefixtures("_usual_handler")
def test_a_second_ctrl_c_is_not_held_back() -> None:
    with held_back() as was_pressed:
        assert not was_pressed()
        signal.raise_signal(signal.SIGINT)
        assert was_pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_usual_handler")
def test_ctrl_c_pressed_twice_ends_more_than_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tiny_config(max_steps=8))

    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run.optimizer, "step", press_twice)
    with pytest.raises(KeyboardInterrupt):
        run.run()


def test_where_nothing_is_held_out_the_last_weights_are_kept() -> None:
    run = trainer(tiny_config(max_steps=6, validate_every=2))
    run.data = replace(run.data, hidden_WTV=torch.zeros_like(run.data.hidden_WTV))
    before = weights(run)
    assert run.data.error(run.predictor()) is None
    run.run(validate_first=True)
    assert run.progress.best_step == 6
    assert not same(before, weights(run))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run = trainer(tiny_config())
    run.run(checkpoint=tmp_path / "run", checkpoint_every=2)
    with pytest.raises(ValueError, match=r"another run .config differs"):
        trainer(tiny_config(learning_rate=1.0)).resume(tmp_path / "run")
    with pytest.raises(ValueError, match=r"another run .seed differs"):
        trainer(tiny_config(), seed=9).resume(tmp_path / "run")


def test_an_interrupted_run_keeps_the_best_so_far() -> None:
    run = trainer(tiny_config(max_steps=1_000, validate_every=2))

    def stop(progress: Progress, share: float) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    assert run.run(on_step=stop) == "interrupted"
    assert run.progress.best_mae < np.inf
    assert run.data.error(run.predictor()) == pytest.approx(run.progress.best_mae)


def test_a_run_stops_when_time_is_up_or_nothing_improves(tmp_path: Path) -> None:
    assert trainer(tiny_config(max_steps=10_000)).run(max_seconds=0.5) == "out of time"
    # With a learning rate of zero the first validation stays the best.
    stuck = tiny_config(max_steps=10_000, learning_rate=0.0, validate_every=1, patience=3)
    assert trainer(stuck).run(checkpoint=tmp_path / "run") == "no longer improving"
    again = trainer(stuck)
    again.resume(tmp_path / "run")
    steps = again.progress.step
    assert again.run(checkpoint=tmp_path / "run") == "no longer improving"
    assert again.progress.step == steps


def test_what_is_held_out_does_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tiny_config(max_steps=1))
    monkeypatch.setattr(lessons, "MAX_CALIBRATION_CELLS", 50)
    found = []
    for size in (3, 5, 1_000):
        monkeypatch.setattr(lessons, "inference_batch", lambda *_, size=size: size)
        cells = held_out_cells(run.predictor(), run.data)
        assert cells is not None
        assert len(cells.truth) <= 50
        assert len(cells.truth) == len(cells.said.at.gap) == len(cells.said.distribution.probs)
        found.append(cells.truth)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_learning_rate_warms_up_and_decays() -> None:
    run = trainer(tiny_config(max_steps=100, warmup_steps=10, learning_rate=1.0))
    assert run.learning_rate(0.0) == pytest.approx(0.1)
    run.progress.step = 10
    assert run.learning_rate(0.1) == pytest.approx(1.0)
    run.progress.step = 55
    assert run.learning_rate(0.55) == pytest.approx(0.5)
    assert run.learning_rate(1.0) == pytest.approx(0.0)
    constant = trainer(tiny_config(cosine=False, learning_rate=1.0))
    constant.progress.step = 50
    assert constant.learning_rate(0.9) == 1.0


def test_the_moving_average_is_applied_and_taken_back() -> None:
    run = trainer(tiny_config())
    average = MovingAverage(run.network, 0.5)
    before = weights(run)
    with torch.no_grad():
        for parameter in run.network.parameters():
            parameter.add_(1.0)
    average.set_pace(1_000)
    average.update()
    live = weights(run)
    with average.applied():
        inside = weights(run)
    assert same(weights(run), live)
    for name in before:
        assert torch.allclose(inside[name], (before[name] + live[name]) / 2, atol=1e-6)


@pytest.mark.gpu
@needs_cuda
def test_a_run_replayed_as_cuda_graphs_is_the_same_run() -> None:
    config = tiny_config(width=32, num_heads=2, dropout=0.2, max_steps=12, validate_every=3)
    runs = [
        trainer(config, 0, torch.device("cuda"), replay_steps=graphs) for graphs in (False, True)
    ]
    assert runs[1].replay_steps
    for run in runs:
        assert run.run() == "finished"
    launched, replayed = ([record.loss for record in run.progress.history] for run in runs)
    assert replayed == pytest.approx(launched, rel=1e-3)
    for one, two in zip(*(run.network.parameters() for run in runs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@needs_cuda
def test_a_run_that_is_over_leaves_no_memory_of_its_steps() -> None:
    config = tiny_config(width=64, num_heads=4, max_steps=12, validate_every=12)
    held = []
    for _ in range(4):
        trainer(config, 0, torch.device("cuda")).run()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert held[-1] <= held[1], "each run adds to what is held"
