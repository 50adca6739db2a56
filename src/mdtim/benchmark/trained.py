"""A network trained for a cell of an experiment, kept in a folder between runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.rows import short_hash
from mdtim.benchmark.scoring import validation_windows, windows_within
from mdtim.calibration import Calibration
from mdtim.checkpoint import load_folder, load_weights, save_folder
from mdtim.datasets import Dataset
from mdtim.inference import Predictor
from mdtim.learning.fitting import new_network
from mdtim.learning.lessons import TrainingData, held_out_cells
from mdtim.learning.relations import read_relations
from mdtim.learning.training import Trainer
from mdtim.masks import MaskMix
from mdtim.network import FactorizedDiT
from mdtim.pretrained import is_pretrained, load_pretrained
from mdtim.readout import label_blur
from mdtim.series import DeviceSeries, DeviceWindows

CHECKPOINT_EVERY = 1_000
"""Steps that a killed run can lose."""


class TrainedModel:
    """A network trained on one data set, with its calibration; kept in a folder."""

    def __init__(self, cell: Cell, dataset: Dataset, series: DeviceSeries, runs: Path) -> None:
        assert cell.model_config is not None, f"{cell.method} is not trained"
        self.cell = cell
        self.dataset = dataset
        self.series = series
        self.device = series.values_NV.device
        self.config = cell.model_config
        # Not the method: one model serves all ways to use it.
        key = (cell.dataset, cell.window, cell.preset, cell.train_seed)
        self.folder = runs / "-".join(map(str, (*key, short_hash(self.config.to_dict()))))
        self.preset, _, _ = cell.preset.partition("+")
        self.network = self._first_network()
        self.calibration: Calibration | None = None
        self.train_seconds = 0.0
        self.peak_memory_gb = 0.0

    def _first_network(self) -> FactorizedDiT:
        num_variates = self.dataset.values.shape[1]
        if is_pretrained(self.preset):
            dropout = self.config.network.dropout
            network = load_pretrained(self.preset, num_variates, self.device, dropout)
            assert network.config == self.config.network, "the weights are of another network"
            return network
        return new_network(self.config, num_variates, self.cell.train_seed).to(self.device)

    @property
    def params(self) -> int:
        """Number of trained numbers."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def prepare(self, max_seconds: float, log: Callable[[str], None]) -> bool:
        """Load the model, or train it; False if the time was not enough."""
        if (self.folder / "model" / "config.json").exists():
            self._load()
            return True
        began = time.monotonic()
        data = self.training_data()
        training = windows_within(self.dataset, self.dataset.training, self.cell.window)
        if self.config.network.relates:
            found = read_relations(self.series, training, self.config.network.prior)
            self.network.learn_relations(found)
        limited = self.config.training.limited_to(training)
        config = replace(self.config, training=limited)
        trainer = Trainer(self.network, config, data, self.cell.train_seed)
        checkpoint = self.folder / "checkpoint"
        if checkpoint.exists():
            trainer.resume(checkpoint)
        before = trainer.progress.seconds
        limit = time.monotonic() + max_seconds
        is_late = False

        def stop_in_time(progress: object, share: float) -> None:
            nonlocal is_late
            is_late = time.monotonic() > limit
            if is_late:
                raise KeyboardInterrupt  # a checkpoint is left, as after an interruption

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        reason = trainer.run(
            on_step=stop_in_time,
            checkpoint=checkpoint,
            checkpoint_every=CHECKPOINT_EVERY,
            validate_first=is_pretrained(self.preset),
        )
        if reason == "interrupted" and not is_late:
            raise KeyboardInterrupt
        for record in trainer.progress.history:
            log(
                f"  step {record.step:6d}  loss {record.loss:8.4f}  validation MAE "
                f"{record.validation_mae:.5f}  {record.seconds:6.1f} s"
            )
        if reason == "interrupted":
            return False
        if self.device.type == "cuda":
            self.peak_memory_gb = torch.cuda.max_memory_allocated(self.device) / 1e9
        self.calibration = fit_calibration(self.predictor(), data)
        # What is beside the steps counts too, as for every other system.
        self.train_seconds = before + time.monotonic() - began
        self._save()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return True

    def training_data(self) -> TrainingData:
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
            self.config.training.batch_size,
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

    def predictor(self) -> Predictor:
        """A predictor for scoring."""
        return Predictor(
            self.network,
            self.config,
            self.cell.train_seed,
            calibration=self.calibration,
        )


def fit_calibration(predictor: Predictor, data: TrainingData) -> Calibration | None:
    """Fit what corrects a predictor's distributions to the validation cells."""
    cells = held_out_cells(predictor, data)
    if cells is None:
        return None
    blur = label_blur(predictor.config.diffusion)
    said, num_variates = cells.said, data.num_variates
    return Calibration.fit(said.distribution, cells.truth, said.at, blur, num_variates)
