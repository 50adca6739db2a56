from __future__ import annotations

import logging
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_config, waves
from gpu_cases import run_python
from mdtim.baselines import pypots as adapter
from mdtim.baselines.protocol import Trained, conceal
from mdtim.checkpoint import load_folder, save_folder
from system_cases import LIMITS, TINY, held_out, hide, tiny_system, windows

try:
    adapter.import_pypots()
except ImportError:
    pytest.skip("PyPOTS is not installed", allow_module_level=True)

TRAINING, _, TEST = windows()
HIDDEN = hide(TEST, 2)


@pytest.mark.parametrize("method", adapter.MODELS)
def test_a_system_fills_what_is_hidden_keeps_the_rest_and_beats_the_mean(
    method: str, tmp_path: Path
) -> None:
    imputer = tiny_system(method)
    imputer.fit(TRAINING, held_out())
    filled = imputer.fill(conceal(TEST, HIDDEN))
    assert np.isfinite(filled.values_WTV).all()
    assert (filled.values_WTV[~HIDDEN] == TEST[~HIDDEN]).all()
    mean_error = np.abs(TEST - TRAINING.mean(axis=(0, 1)))[HIDDEN].mean()
    assert np.abs(filled.values_WTV - TEST)[HIDDEN].mean() < mean_error

    poisoned = np.where(HIDDEN, np.float32(1e9), TEST)
    again = imputer.fill(conceal(poisoned, HIDDEN))
    assert (again.values_WTV == filled.values_WTV).all()

    assert isinstance(imputer, Trained)
    restored = tiny_system(method, seed=0)
    assert isinstance(restored, Trained)
    save_folder(tmp_path / "kept", {}, imputer.state())
    restored.restore(load_folder(tmp_path / "kept")[1])
    assert restored.num_parameters == imputer.num_parameters
    same = restored.fill(conceal(TEST, HIDDEN))
    np.testing.assert_allclose(same.values_WTV, filled.values_WTV, rtol=1e-5, atol=1e-6)


def test_systems_that_draw_samples_give_different_ones_and_their_median() -> None:
    for method in ("csdi", "gpvae"):
        imputer = tiny_system(method)
        imputer.fit(TRAINING[:16], held_out())
        filled = imputer.fill(conceal(TEST, HIDDEN))
        assert filled.samples_SWTV is not None
        assert filled.samples_SWTV.shape == (TINY[method]["num_samples"], *TEST.shape)
        assert (filled.samples_SWTV.std(axis=0)[HIDDEN] > 0).all()
        median = np.median(filled.samples_SWTV, axis=0)
        np.testing.assert_allclose(filled.values_WTV[HIDDEN], median[HIDDEN])


def test_the_callers_random_states_and_logs_are_left_alone() -> None:
    def states() -> list[object]:
        return [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002

    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    expected = states()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    handlers = logging.getLogger("PyPOTS running log").handlers[:]
    imputer = tiny_system("dlinear")
    imputer.fit(TRAINING[:16], held_out())
    imputer.fill(conceal(TEST, HIDDEN))
    assert states() == expected
    assert logging.getLogger("PyPOTS running log").handlers == handlers


def test_an_import_leaves_pypots_its_voice() -> None:
    ask = "import logging; log = logging.getLogger('PyPOTS running log'); "
    tell = "print(len(log.handlers), log.level, log.filters)"
    ours = run_python(f"import mdtim.pypots; {ask}{tell}").splitlines()
    theirs = run_python(f"import pypots.imputation; {ask}{tell}").splitlines()
    assert ours == theirs[-1:]


def test_the_same_seed_gives_the_same_fit() -> None:
    fills = []
    for seed in (0, 0, 1):
        imputer = tiny_system("saits", seed)
        imputer.fit(TRAINING[:32], held_out())
        fills.append(imputer.fill(conceal(TEST, HIDDEN)).values_WTV)
    assert (fills[0] == fills[1]).all()
    assert (fills[0] != fills[2]).any()


def test_a_failure_in_mid_training_is_an_error_and_not_a_half_trained_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = adapter._Clock.check
    calls = []

    def fail_in_the_second_epoch(clock: adapter._Clock) -> None:
        calls.append(1)
        if len(calls) > 3:
            raise MemoryError("no memory left")
        real(clock)

    monkeypatch.setattr(adapter._Clock, "check", fail_in_the_second_epoch)
    with pytest.raises(RuntimeError, match="no memory left"):
        tiny_system("dlinear").fit(TRAINING[:16], held_out())


def test_time_ends_a_training_in_order_once_there_is_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def ring_in_the_second_epoch(clock: adapter._Clock) -> None:
        calls.append(1)
        if len(calls) > 3:
            clock.rang = True
            raise KeyboardInterrupt

    monkeypatch.setattr(adapter._Clock, "check", ring_in_the_second_epoch)
    imputer = tiny_system("dlinear", limits=replace(LIMITS, max_epochs=50))
    imputer.fit(TRAINING[:16], held_out())
    assert len(calls) == 4
    assert np.isfinite(imputer.fill(conceal(TEST, HIDDEN)).values_WTV).all()
    with pytest.raises(ValueError, match="no epoch of dlinear ended within 0 minutes"):
        tiny_system("dlinear", limits=replace(LIMITS, max_minutes=0)).fit(TRAINING, held_out())


@pytest.mark.parametrize("step", [1, 4])  # in the first epoch, and behind it
def test_an_interrupt_by_the_user_is_passed_on(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def press(clock: adapter._Clock) -> None:
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(adapter._Clock, "check", press)
    with pytest.raises(KeyboardInterrupt):
        tiny_system("dlinear").fit(TRAINING[:16], held_out())


def test_samples_of_a_window_are_the_same_in_any_batch() -> None:
    imputer = tiny_system("gpvae")
    imputer.fit(TRAINING[:16], held_out())
    whole = imputer.fill(conceal(TEST, HIDDEN)).samples_SWTV
    part = imputer.fill(conceal(TEST, HIDDEN)[5:]).samples_SWTV
    assert whole is not None
    assert part is not None
    np.testing.assert_allclose(part, whole[:, 5:], atol=1e-5)


def test_training_windows_are_hidden_as_the_test_is() -> None:
    whole = np.zeros((600, 12, 3), dtype=np.float32)
    seen = adapter.hide_mixed(whole, np.random.default_rng(0))
    shares = [float(np.isnan(seen[way::6]).mean()) for way in range(6)]
    np.testing.assert_allclose(shares, [0.3, 0.5, 0.7] * 2, atol=0.03)


def test_windows_can_be_shown_several_times_each_hidden_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[np.ndarray] = []
    system = tiny_system("dlinear", hide_training=3)
    assert isinstance(system, adapter.PyPOTSImputer)

    class Model:
        def fit(self, training: dict[str, np.ndarray], validation: object) -> None:
            shown.append(training["X"])

    def build(num_windows: int) -> adapter._Clock:
        system.model = Model()
        return adapter._Clock(60, num_updates=1)

    monkeypatch.setattr(system, "_build", build)
    whole = windows()[0]
    system.fit(whole, held_out())
    copies = shown[0].reshape(3, *whole.shape)
    hidden = np.isnan(copies)
    assert (copies[~hidden] == np.broadcast_to(whole, copies.shape)[~hidden]).all()
    assert (hidden[0] != hidden[1]).any()
    assert hidden.all(0).mean() < 0.2 < 0.4 < hidden.mean()  # most cells are seen in some copy


@pytest.mark.parametrize(
    "change", [{"hide_training": -1}, {"hide_training": 2.5}, {"validate_every": 0}]
)
def test_a_count_that_is_none_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(change))} must be a whole number"):
        tiny_system("dlinear", **change)


def test_nothing_of_pypots_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, mdtim.baselines.pypots, mdtim.baselines.registry, mdtim.benchmark.runner; "
        "assert 'pypots' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pypots_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypots", None)
    monkeypatch.setitem(sys.modules, "pypots.imputation", None)
    with pytest.raises(ValueError, match=r"pip install 'mdtim\[bench\]'"):
        tiny_system("saits").fit(TRAINING, held_out())


# -- MDTIM among PyPOTS's models --------------------------------------------------------------


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    values = waves(240, 2).reshape(20, 12, 2)
    values[np.random.default_rng(0).random(values.shape) < 0.2] = np.nan
    return values


def mdtim_model(**options: object):  # type: ignore[no-untyped-def]
    from mdtim.pypots import MDTIM

    return MDTIM(12, 2, device="cpu", verbose=False, preset=tiny_config(), **options)


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_mdtim_takes_dicts_files_lists_and_tensors_alike(
    samples: np.ndarray, tmp_path: Path
) -> None:
    import h5py
    from pypots.imputation.base import BaseImputer

    path = str(tmp_path / "set.h5")
    with h5py.File(path, "w") as file:
        file["X"] = samples
    model = mdtim_model()
    assert isinstance(model, BaseImputer)
    assert model.fit({"X": samples}, {"X": samples, "X_ori": samples}) is None
    result = model.predict({"X": samples})
    filled = result["imputation"]
    assert filled.shape == result["std"].shape == samples.shape
    assert np.isfinite(filled).all()
    known = ~np.isnan(samples)
    assert (filled[known] == samples[known]).all()
    for other in (path, Path(path), {"X": samples.tolist()}, {"X": torch.from_numpy(samples)}):
        assert (model.impute(other) == filled).all()
    drawn = model.impute({"X": samples}, n_sampling_times=2)
    assert drawn.shape == (20, 2, 12, 2)
    assert (drawn[:, 0][known] == samples[known]).all()

    from_file = mdtim_model()
    from_file.fit(path, path)
    assert np.isfinite(from_file.impute(path)).all()

    model.save(str(tmp_path / "model"))
    loaded = mdtim_model()
    loaded.load(str(tmp_path / "model"))
    loaded.to("cpu")
    assert (loaded.impute({"X": samples}) == filled).all()
    with pytest.raises(ValueError, match="overwrite=True"):
        model.save(str(tmp_path / "model"))


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_mdtim_is_not_shown_what_a_validation_set_hides(
    samples: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mdtim_model()
    learned: list[np.ndarray] = []
    fit = model.imputer.fit
    monkeypatch.setattr(model.imputer, "fit", lambda values: (learned.append(values), fit(values)))
    model.fit({"X": samples}, {"X": samples, "X_ori": np.full_like(samples, 1e9)})
    np.testing.assert_array_equal(learned[0], np.concatenate([samples, samples]))


def test_the_first_fit_of_a_process_leaves_pypots_its_voice() -> None:
    script = """
import logging
from dataclasses import replace
from system_cases import LIMITS, held_out, tiny_system, windows
system = tiny_system("dlinear", limits=replace(LIMITS, max_epochs=2))
system.fit(windows()[0], held_out())
print(len(logging.getLogger("PyPOTS running log").handlers) > 0)
"""
    assert run_python(script).splitlines() == ["True"]


def test_mdtim_has_the_arguments_of_pypots_imputers() -> None:
    import inspect

    from pypots.imputation.base import BaseImputer

    from mdtim.pypots import MDTIM

    for name in ("fit", "predict", "impute", "save", "load", "to"):
        theirs = list(inspect.signature(getattr(BaseImputer, name)).parameters)
        ours = list(inspect.signature(getattr(MDTIM, name)).parameters)
        assert [one for one in theirs if one not in ours] == []
    assert not MDTIM.__abstractmethods__


def test_mdtim_refuses_what_pypots_lets_through(samples: np.ndarray, tmp_path: Path) -> None:
    model = mdtim_model()
    with pytest.raises(ValueError, match="not fitted"):
        model.impute({"X": samples})
    with pytest.raises(ValueError, match=r"expected \(samples, 12, 2\)"):
        model.fit({"X": samples[:, :5]})
    with pytest.raises(ValueError, match="no key 'X'"):
        model.fit({"Y": samples})
    with pytest.raises(ValueError, match="got ndarray"):
        model.fit(samples)
    with pytest.raises(ValueError, match="model_saving_strategy"):
        mdtim_model(model_saving_strategy="all")
