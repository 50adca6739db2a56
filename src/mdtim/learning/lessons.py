"""What a network is taught and examined on: windows with cells hidden from it.

B windows, T steps, V variates, C cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from mdtim.closed_form.guesses import Relations
from mdtim.diffusion import mask_rate, stratified_times
from mdtim.inference import Predictor, inference_batch
from mdtim.masks import MaskMix
from mdtim.network import FactorizedDiT
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.stacking import StackCells
from mdtim.threads import fair_share, side_by_side


@dataclass(frozen=True, eq=False)
class Lesson:
    """Windows of one step, and what is hidden in them."""

    values_BTV: Tensor
    """float32, standardized, 0 where not observed."""
    observed_BTV: Tensor
    hidden_BTV: Tensor
    time_B: Tensor
    """Diffusion time: about the share that is hidden."""
    relations: Relations | None
    """Of the windows' table, or one per window; None where the network has no use for them."""

    def take(self, windows: slice) -> Lesson:
        """Some of the windows."""
        return Lesson(
            self.values_BTV[windows],
            self.observed_BTV[windows],
            self.hidden_BTV[windows],
            self.time_B[windows],
            None if self.relations is None else self.relations.of(windows),
        )


class Source(Protocol):
    """Where lessons come from, and how good a network has become."""

    @property
    def device(self) -> torch.device:
        """Where the windows lie."""
        ...

    @property
    def num_variates(self) -> int:
        """V of the widest lesson."""
        ...

    @property
    def fingerprint(self) -> str:
        """What tells it from other sources: a run goes on with its own alone."""
        ...

    def prepare(self, step: int) -> Hashable:
        """Get ready for a step; steps of the same kind differ in nothing but random numbers."""
        ...

    def draw(self, kind: Hashable, network: FactorizedDiT, generator: torch.Generator) -> Lesson:
        """A lesson of the kind of step that was prepared, without a look at the host."""
        ...

    def error(self, predictor: Predictor) -> float | None:
        """Mean absolute error over hidden cells that are never drawn; None if there are none."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingData:
    """One table to train and validate on: a :class:`Source`."""

    series: DeviceSeries
    training: DeviceWindows
    validation: DeviceWindows
    hidden_WTV: Tensor
    """bool, on the device: the observed cells of each validation window that are hidden from it."""
    masks: MaskMix
    batch_size: int
    taught: DeviceSeries | None = None
    """What training windows are drawn from, where it is less than the series: without the hidden
    cells, if they lie in training windows too."""

    @property
    def device(self) -> torch.device:
        """Where the windows lie."""
        return self.series.values_NV.device

    @property
    def num_variates(self) -> int:
        """V."""
        return self.series.values_NV.shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Of the values, and of what is held out of them."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.series.values_NV, self.series.observed_NV, self.hidden_WTV):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def prepare(self, step: int) -> Hashable:
        """All steps are of one kind."""
        return None

    def draw(self, kind: Hashable, network: FactorizedDiT, generator: torch.Generator) -> Lesson:
        """Random training windows, each hidden at its own rate."""
        windows, size = self.training, self.batch_size
        chosen = torch.randint(len(windows), (size,), generator=generator, device=self.device)
        taught = self.series if self.taught is None else self.taught
        batch = taught.gather(windows.starts[chosen], windows.ends[chosen], windows.length)
        time_B = stratified_times(size, generator)
        shape = (size, windows.length, batch.values_BTV.shape[2])
        hidden_BTV = self.masks.draw(mask_rate(time_B), shape, generator)
        return Lesson(batch.values_BTV, batch.observed_BTV, hidden_BTV, time_B, network.relations)

    def error(self, predictor: Predictor) -> float | None:
        """Mean absolute error over the hidden validation cells, in standardized units."""
        total = torch.zeros((), dtype=torch.float64, device=predictor.device)
        count = 0
        for cells in validation_cells(predictor, self):
            total += (predictor.filled(predictor.stacked(cells.said)) - cells.truth).abs().sum()
            count += len(cells.truth)
        return float(total / count) if count else None


@dataclass(frozen=True, eq=False)
class ValidationCells:
    """Hidden cells of validation windows, in standardized units."""

    truth: Tensor
    """(C,) float64."""
    said: StackCells
    """What network and interpolation say about them."""

    def join(self, other: ValidationCells) -> ValidationCells:
        """Both sets of cells, one behind the other."""
        joined: ValidationCells = _of_tensors(_one_after_the_other, self, other)
        return joined

    def __len__(self) -> int:
        return len(self.truth)

    def take(self, chosen: Tensor) -> ValidationCells:
        """Some of the cells, by a mask or by their places."""
        some: ValidationCells = _of_tensors(lambda tensor: tensor[chosen], self)
        return some

    def without(self, variates: Tensor) -> ValidationCells:
        """The cells of all other variates."""
        return self.take(~torch.isin(self.said.at.variate, variates))


def validation_cells(predictor: Predictor, data: TrainingData) -> Iterator[ValidationCells]:
    """Predict the hidden cells of the validation windows, batch by batch."""
    windows, device = data.validation, predictor.device
    most = inference_batch(data.series, windows.length, predictor.config)
    batch_size = fair_share(len(windows), most, device)

    def cells_of(begin: int) -> ValidationCells:
        part = slice(begin, begin + batch_size)
        batch = data.series.gather(windows.starts[part], windows.ends[part], windows.length)
        scored = data.hidden_WTV[part] & batch.observed_BTV
        said = predictor.cells(batch, batch.observed_BTV & ~scored, scored)
        return ValidationCells(batch.values_BTV[scored].double(), said)

    yield from side_by_side(cells_of, range(0, len(windows), batch_size), device)


MAX_CALIBRATION_CELLS = 100_000
"""More cells would not move what is fitted to them, only cost memory."""


def held_out_cells(predictor: Predictor, data: TrainingData) -> ValidationCells | None:
    """All hidden validation cells (or an even subset) on the CPU; None if there are none."""
    windows = data.validation
    known = data.series.gather(windows.starts, windows.ends, windows.length).observed_BTV
    total = int((data.hidden_WTV & known).sum())
    if not total:
        return None
    every = -(-total // MAX_CALIBRATION_CELLS)
    count, parts = 0, []
    for cells in validation_cells(predictor, data):
        # Every so many of all cells, whatever the batches are.
        chosen = slice(-count % every, None, every)
        parts.append(_of_tensors(partial(_on_cpu, chosen=chosen), cells))
        count += len(cells.truth)
    joined: ValidationCells = _of_tensors(_one_after_the_other, *parts)
    return joined


def _on_cpu(tensor: Tensor, chosen: slice) -> Tensor:
    return tensor[chosen].cpu()


def _one_after_the_other(*tensors: Tensor) -> Tensor:
    return torch.cat(tensors)


def _of_tensors(change: Callable[..., Tensor], *parts: Any) -> Any:
    """A dataclass of the kind of some, with every tensor made of theirs, those inside included."""
    first = parts[0]
    if isinstance(first, Tensor):
        return change(*parts)
    if first is None:
        return None
    made = {
        field.name: _of_tensors(change, *(getattr(part, field.name) for part in parts))
        for field in fields(first)
    }
    return replace(first, **made)
