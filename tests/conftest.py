from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Two cores shared by many small matrix products: waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

from mdtim.config import ModelConfig, preset

if TYPE_CHECKING:
    import torch
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

    from batch_cases import Case
    from emulation import EmulatedKernel
    from service_cases import Place

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("suite")


def tiny_config(**changes: object) -> ModelConfig:
    """Every part of the method, at a size that trains in a second."""
    return (
        preset("small")
        .change(
            width=16,
            num_heads=2,
            num_layers=1,
            embedding_width=8,
            condition_width=4,
            dropout=0.1,
            batch_size=8,
            max_steps=6,
            warmup_steps=2,
            validate_every=3,
            reveal_steps=3,
        )
        .change(**changes)
    )


def waves(num_steps: int, num_variates: int, seed: int = 0) -> np.ndarray:
    """Noisy related waves, (steps, variates), nothing missing."""
    generator = np.random.default_rng(seed)
    step = np.arange(num_steps)[:, None]
    phase = generator.uniform(0, 3, num_variates)
    return np.sin(step / 5 + phase) + 0.05 * generator.normal(size=(num_steps, num_variates))


@pytest.fixture
def gappy() -> np.ndarray:
    """(240, 3) waves with single gaps, a run and a blackout."""
    values = waves(240, 3)
    values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    values[60:75, 1] = np.nan
    values[120:124] = np.nan
    return values


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A table of sensors, a model of it, and how it is filled as a whole."""
    from batch_cases import make_case

    return make_case(tmp_path_factory.mktemp("batch") / "model")


@pytest.fixture
def source(case: Case, tmp_path: Path) -> Path:
    """The table in parts."""
    from batch_cases import write_parts

    write_parts(case.frame, tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture(scope="session")
def nyc() -> pd.DataFrame:
    from mdtim.weather import nyc_weather

    return nyc_weather()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser for all tests; skips where there is none."""
    from browser_cases import NoChromium, launched_chromium

    try:
        with launched_chromium() as browser:
            yield browser
    except NoChromium:
        pytest.skip("no Chromium here: make test-browser installs it")


@pytest.fixture
def page_faults() -> Iterator[list[str]]:
    """What went wrong on `browser_page`; a test that provokes a fault clears the list itself."""
    faults: list[str] = []
    yield faults
    assert not faults


@pytest.fixture
def browser_page(chromium: Browser, page_faults: list[str]) -> Iterator[Page]:
    """An empty page without state of another test.

    A dialog, an error in a script and an error on the console count as faults.
    """

    def dismiss(dialog: Dialog) -> None:
        page_faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def listen(said: ConsoleMessage) -> None:
        if said.type == "error":
            page_faults.append(f"console: {said.text}")

    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("dialog", dismiss)
    page.on("console", listen)
    page.on("pageerror", lambda error: page_faults.append(f"script error: {error}"))
    yield page
    context.close()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service with one real worker, which has all the cores."""
    from service_cases import quick_service

    with quick_service(tmp_path_factory.mktemp("service")) as place:
        yield place


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's own answers to what tests send to `place`, as files."""
    from service_cases import write_library_answers

    folder = tmp_path_factory.mktemp("library")
    write_library_answers(folder)
    return folder


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Kernels of :mod:`mdtim.baselines.cuda_layers` that run on a CPU."""
    from emulation import EmulatedKernel
    from mdtim.baselines import cuda_layers

    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler on this machine")

    def compile_kernel(
        file: str,
        name: str,
        constants: dict[str, int],
        device: torch.device,
        threads: int,
        shared_bytes: int,
    ) -> EmulatedKernel:
        return EmulatedKernel(file, name, constants, threads, tmp_path)

    monkeypatch.setattr(cuda_layers, "compile_kernel", compile_kernel)
    monkeypatch.setattr(cuda_layers, "_num_programs", lambda device: 2)
    monkeypatch.setattr(cuda_layers, "_WARPS", {64: 2, 128: 1})
    kernels = (cuda_layers._encode_kernel, cuda_layers._finish_kernel)
    for kernel in kernels:
        kernel.cache_clear()
    yield
    for kernel in kernels:
        kernel.cache_clear()
