"""Run cells: train what is not trained yet, score what is not scored yet, append rows."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdtim.baselines.registry import packages_of
from mdtim.baselines.settings import settings_of
from mdtim.bench.environment import commit, device_name, versions
from mdtim.benchmark.experiments import Cell, config_of
from mdtim.benchmark.scoring import (
    Scores,
    hidden_mask,
    score_windows,
    validation_windows,
    windows_within,
)
from mdtim.benchmark.systems import FittedSystem
from mdtim.checkpoint import load_folder, load_weights, save_folder
from mdtim.config import ModelConfig
from mdtim.datasets import Dataset, load
from mdtim.diffusion import label_blur
from mdtim.distribution import Calibration
from mdtim.inference import Predictor
from mdtim.masks import MaskMix
from mdtim.network import FactorizedDiT
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.training import Trainer, TrainingData, held_out_cells

SCORING_BATCH = 512


@dataclass(frozen=True)
class Row(Cell):
    """One line of the results file: a cell, its scores and what they belong to."""

    mae: float | None
    mse: float | None
    crps: float | None
    crps_window: float | None
    coverage90: float | None
    params: int | None
    train_seconds: float | None
    impute_seconds: float | None
    peak_memory_gb: float | None
    device: str
    versions: str
    commit: str
    config: str
    """Fingerprint of the configuration: a preset that changes makes its cells new again."""
    error: str = ""
    """Why there are no scores, if there are none."""


COLUMNS = [column.name for column in fields(Row)]


def finished(path: Path) -> set[tuple[str, ...]]:
    """Keys of the cells a results file has scores for; a failed one is tried again."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {_row_key(row) for row in csv.DictReader(file) if not row["error"]}


_KEY = [column.name for column in fields(Cell)]


def _row_key(row: dict[str, str]) -> tuple[str, ...]:
    return (*(row[name] for name in _KEY), row["config"])


def _cell_key(cell: Cell) -> tuple[str, ...]:
    return (*(str(getattr(cell, name)) for name in _KEY), fingerprint(cell))


def fingerprint(cell: Cell) -> str:
    """Short hash of the configuration a cell is run with."""
    if cell.method != "mdtim":
        return settings_of(cell.method, cell.dataset, cell.preset).fingerprint()
    tree = config_of(cell.preset, cell.dataset).to_dict()
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:8]


def append(path: Path, row: Row) -> None:
    """Add a row; a line is written in one piece, so a killed run leaves whole lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({name: _text(value) for name, value in asdict(row).items()})
        file.flush()
        os.fsync(file.fileno())


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


class TrainedModel:
    """A network trained on one data set, with its calibration; kept in a folder."""

    def __init__(
        self, cell: Cell, dataset: Dataset, device: torch.device, folder: Path, compiled: bool
    ) -> None:
        self.cell = cell
        self.dataset = dataset
        self.device = device
        self.folder = folder
        self.compiled = compiled
        self.config: ModelConfig = config_of(cell.preset, cell.dataset)
        self.series = DeviceSeries.put(dataset.values.astype(np.float32), device)
        torch.manual_seed(cell.train_seed)
        self.network = FactorizedDiT(
            self.config.network, self.config.tokenizer, dataset.values.shape[1]
        ).to(device)
        self.calibration: Calibration | None = None
        self.train_seconds = 0.0
        self.peak_memory_gb = 0.0

    @property
    def params(self) -> int:
        """Number of trained numbers."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def prepare(self, max_seconds: float, log: Callable[[str], None]) -> bool:
        """Load the model, or train it; False if the time was not enough."""
        if (self.folder / "model" / "config.json").exists():
            self._load()
            return True
        data = self._training_data()
        trainer = Trainer(
            self.network, self.config, data, self.cell.train_seed, compile_step=self.compiled
        )
        checkpoint = self.folder / "checkpoint"
        if checkpoint.exists():
            trainer.resume(checkpoint)
        limit = time.monotonic() + max_seconds

        def stop_in_time(progress: object, share: float) -> None:
            if time.monotonic() > limit:
                raise KeyboardInterrupt

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        # A checkpoint is due only when the time is up; the run is short.
        reason = trainer.run(
            on_step=stop_in_time,
            checkpoint=checkpoint,
            checkpoint_every=self.config.training.max_steps,
        )
        for record in trainer.progress.history:
            log(
                f"  step {record.step:6d}  loss {record.loss:8.4f}  validation MAE "
                f"{record.validation_mae:.5f}  {record.seconds:6.1f} s"
            )
        if reason == "interrupted":
            return False
        self.train_seconds = trainer.progress.seconds
        if self.device.type == "cuda":
            self.peak_memory_gb = torch.cuda.max_memory_allocated(self.device) / 1e9
        predictor = Predictor(self.network, self.config.change(num_draws=1), self.cell.train_seed)
        cells = held_out_cells(predictor, data)
        if cells is not None:
            blur = label_blur(self.config.diffusion)
            said = cells.said.distribution
            self.calibration = Calibration.fit(said, cells.truth, cells.share, blur)
        self._save()
        return True

    def _training_data(self) -> TrainingData:
        """Windows as in the protocol; validation hides cells in every way the test does."""
        dataset, window = self.dataset, self.cell.window
        training = windows_within(dataset, dataset.training, window)
        validation, hidden = validation_windows(dataset, window)
        return TrainingData(
            self.series,
            DeviceWindows.put(training, self.device),
            DeviceWindows.put(validation, self.device),
            torch.from_numpy(hidden).to(self.device),
            MaskMix.from_config(self.config.diffusion),
        )

    def _save(self) -> None:
        document = {
            "kind": "benchmark",
            "config": self.config.to_dict(),
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "train_seconds": self.train_seconds,
            "peak_memory_gb": self.peak_memory_gb,
        }
        save_folder(self.folder / "model", document, self.network.state_dict())

    def _load(self) -> None:
        folder = self.folder / "model"
        document, tensors = load_folder(folder)
        self.network.load_state_dict(load_weights(self.network.state_dict(), tensors, folder))
        self.network.eval()
        self.calibration = Calibration.from_dict(document["calibration"])
        self.train_seconds = document["train_seconds"]
        self.peak_memory_gb = document["peak_memory_gb"]

    @cached_property
    def predictor(self) -> Predictor:
        """For scoring, compiled where training was."""
        return Predictor(
            self.network,
            self.config,
            self.cell.train_seed,
            calibration=self.calibration,
            compile_for=SCORING_BATCH if self.compiled else None,
        )

    def score(self, cell: Cell) -> Scores:
        """Score the model on one mask of the test windows."""
        index = windows_within(self.dataset, self.dataset.test, cell.window)
        shape = (len(index), cell.window, self.dataset.values.shape[1])
        hidden = hidden_mask(cell.pattern, shape, cell.rate, cell.mask_seed)
        return score_windows(
            self.predictor,
            self.series,
            index,
            hidden,
            self.dataset.unit,
            SCORING_BATCH,
        )


def run_cells(
    cells: Iterable[Cell],
    results: Path,
    runs: Path,
    device: torch.device,
    *,
    max_minutes: float | None = None,
    log: Callable[[str], None] = print,
) -> bool:
    """Run every cell that has no row yet, model by model.

    Parameters
    ----------
    results : CSV file, appended to
    runs : folder for trained models and checkpoints
    max_minutes : stop (with checkpoints) when this time is up

    Returns
    -------
    bool : True if every cell has a row now
    """
    limit = time.monotonic() + 60 * max_minutes if max_minutes else float("inf")
    done = finished(results)
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        if _cell_key(cell) not in done:
            groups.setdefault(cell.training_key, []).append(cell)
    complete = True
    for group in groups.values():
        if time.monotonic() > limit:
            return False
        try:
            complete &= _run_group(group, results, runs, device, limit, log)
        except Exception as error:
            # A method that cannot handle a case is a visible row, and the run goes on.
            log(traceback.format_exc())
            done = finished(results)
            for cell in (cell for cell in group if _cell_key(cell) not in done):
                append(results, _row(cell, device, error=f"{type(error).__name__}: {error}"))
            complete = False
    return complete


def _run_group(
    group: list[Cell],
    results: Path,
    runs: Path,
    device: torch.device,
    limit: float,
    log: Callable[[str], None],
) -> bool:
    first = group[0]
    name = (first.preset,) if first.method == "mdtim" else (first.method, first.preset)
    log(f"{first.dataset} T={first.window} {' '.join(name)} seed {first.train_seed}")
    key = (first.dataset, first.window, *name, first.train_seed, fingerprint(first))
    folder = runs / "-".join(map(str, key))
    dataset = load(first.dataset, first.window)
    model: TrainedModel | FittedSystem
    if first.method == "mdtim":
        model = TrainedModel(first, dataset, device, folder, compiled=device.type == "cuda")
    else:
        model = FittedSystem(first, dataset, device, folder)
    if not model.prepare(limit - time.monotonic(), log):
        log("  out of time: the next run goes on")
        return False
    for cell in group:
        if time.monotonic() > limit:
            return False
        scores = model.score(cell)
        append(results, _row(cell, device, model=model, scores=scores))
        log(f"  {cell.pattern:9s} {cell.rate:.0%} mask {cell.mask_seed}: {_line(scores)}")
    return True


def _line(scores: Scores) -> str:
    named = {
        "MAE": scores.mae,
        "CRPS": scores.crps,
        "window CRPS": scores.crps_window,
        "coverage": scores.coverage90,
    }
    return "  ".join(f"{name} {value:.5f}" for name, value in named.items() if value is not None)


def _row(
    cell: Cell,
    device: torch.device,
    *,
    model: TrainedModel | FittedSystem | None = None,
    scores: Scores | None = None,
    error: str = "",
) -> Row:
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Scores))
    measured = nothing if scores is None else asdict(scores)
    return Row(
        **asdict(cell),
        **measured,
        params=None if model is None else model.params,
        train_seconds=None if model is None else model.train_seconds,
        peak_memory_gb=None if model is None else model.peak_memory_gb,
        device=device_name(device),
        versions=versions(*packages_of(cell.method)),
        commit=commit(),
        config=fingerprint(cell),
        error=error,
    )
