"""Read the relations among the variates off a table: covariances, and the dynamics.

N rows, R compared rows, W windows, T steps, V variates, S steps of the dynamics times variates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mdtim.closed_form.dynamics import draw_hidden, memories, most_telling, whitening
from mdtim.closed_form.guesses import Kind, Neighbours, Relations, deviations, relate
from mdtim.config import Prior
from mdtim.scaling import ABSURD
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.threads import side_by_side
from mdtim.windows import WindowIndex

AllSums = TypeVar("AllSums", bound=tuple["_Sums", ...])

MAX_CELLS = 4_000_000
"""Enough to know a covariance; a longer table is sampled evenly."""
MAX_DRAWN_CELLS = 1_000_000
"""The same where cells have to be drawn."""
CELLS_AT_ONCE, CELLS_AT_ONCE_ON_GPU = 50_000, 500_000
"""About what a CPU's caches like, and what keeps a GPU busy."""
ENOUGH_ROWS = 200.0
"""Rows in which two variates are both known, from which on these rows alone decide."""
ROUNDS = 3
"""The first fills gaps by the windows' own relations, the next by what that told of the table."""
DRAWN_ROUNDS, CHOOSING = 8, 2
"""Of drawing what is missing by the dynamics, and reading the dynamics again; and the round that
shows how far the table's memory reaches."""


def read_relations(series: DeviceSeries, index: WindowIndex, prior: Prior) -> Relations:
    """Estimate how the variates move together inside the given windows.

    Two variates are compared where both are known. Where that is seldom, windows filled by the
    relations found so far help out; a filled cell varies less than a real one, so only there.

    Parameters
    ----------
    prior : "relations", or "dynamics" for those as well
    """
    num_variates = series.values_NV.shape[1]
    relations = Relations.none(num_variates, series.values_NV.device)
    windows = _sampled(series, index, MAX_CELLS)
    for _ in range(ROUNDS):
        sums_of = partial(_level_and_change, relations)
        level, change = _total(_of_batches(sums_of, series, windows))
        relations = Relations(level.covariance().float(), change.covariance().float())
    if prior != "dynamics":
        return relations
    return replace(relations, whiten_SS=_read_dynamics(series, index, relations))


def _sampled(series: DeviceSeries, index: WindowIndex, max_cells: int) -> DeviceWindows:
    """Windows of a table, evenly left out if they are too many."""
    every = max(1, -(-len(index) * index.length * series.values_NV.shape[1] // max_cells))
    return DeviceWindows.put(index.take(np.arange(0, len(index), every)), series.values_NV.device)


def _of_batches(
    sums_of: Callable[[int, Tensor, Tensor], AllSums], series: DeviceSeries, windows: DeviceWindows
) -> Iterator[AllSums]:
    """The sums over each batch, from its number, (B, T, V) values and what is observed."""
    device, num_variates = series.values_NV.device, series.values_NV.shape[1]
    # Of a wide table the sums themselves are large: for few rows they would be most of the work.
    fitting = min(max(CELLS_AT_ONCE, 16 * num_variates**2), CELLS_AT_ONCE_ON_GPU)
    cells = fitting if device.type == "cpu" else CELLS_AT_ONCE_ON_GPU
    per_batch = max(1, cells // (windows.length * num_variates))

    def found(number: int) -> AllSums:
        part = slice(number * per_batch, (number + 1) * per_batch)
        batch = series.gather(windows.starts[part], windows.ends[part], windows.length)
        # An absurd reading would be most of a covariance, and tells of no relation.
        sound_BTV = batch.observed_BTV & (batch.values_BTV.abs() <= ABSURD)
        return sums_of(number, batch.values_BTV * sound_BTV, sound_BTV)

    return side_by_side(found, range(-(-len(windows) // per_batch)), device)


def _read_dynamics(series: DeviceSeries, index: WindowIndex, relations: Relations) -> Tensor:
    """The law of successive steps (see :func:`mdtim.closed_form.dynamics.whitening`).

    Missing cells are drawn from what is known of the dynamics, and then the dynamics are read off
    all cells, in turn: expectation and maximization, with draws for the expectation. Cells filled
    with their likeliest value would make the table look more predictable than it is.
    """
    device, num_variates = series.values_NV.device, series.values_NV.shape[1]
    choices = memories(num_variates, index.length)
    memory, is_chosen = choices[0], len(choices) == 1
    unknown = Relations.none(num_variates, device, dynamics=True).whiten_SS
    assert unknown is not None
    if index.length <= memory:
        return unknown
    windows = _sampled(series, index, MAX_DRAWN_CELLS)
    # Cells are drawn in an order of the variates that hangs on what they hold, not on where they
    # stand: another order of the columns must not draw other cells.
    order_V = series.values_NV.double().sum(0).argsort()
    law, is_whole = None, False
    for drawn in range(DRAWN_ROUNDS):
        chooses = not is_chosen and (is_whole or drawn == CHOOSING)
        steps = choices[-1] if chooses else memory
        read = _Successive(relations, order_V, steps, law, 1000 * drawn)
        (sums,) = _total(_of_batches(read, series, windows))
        is_whole = sums.is_whole
        covariance_SS = free_of_chance(sums.plain(), sums.num_rows, num_variates)
        if chooses:
            # Windows overlap by half.
            memory = most_telling(covariance_SS, num_variates, sums.num_rows / 2, choices)
            size, is_chosen = (memory + 1) * num_variates, True
            covariance_SS = covariance_SS[-size:, -size:]
        law = whitening(covariance_SS)
        if is_whole and is_chosen:
            break
    step = torch.arange(memory + 1, device=device)[:, None] * num_variates
    back_S = (step + order_V.argsort()).flatten()
    return whitening(covariance_SS[back_S][:, back_S])


@dataclass(frozen=True)
class _Successive:
    """Reads off a batch how successive steps go together, with what is missing drawn."""

    relations: Relations
    order_V: Tensor
    memory: int
    law: Tensor | None
    """What is known of the dynamics; None where nothing is: the likeliest values are taken."""
    first_seed: int

    def __call__(self, number: int, values_BTV: Tensor, observed_BTV: Tensor) -> tuple[_Sums]:
        """Sums over the steps of one batch."""
        neighbours = Neighbours.find(observed_BTV, values_BTV.dtype)
        cells_BTV = relate(values_BTV, neighbours, self.relations, "change").kriging_BTV
        cells_BTV, observed_BTV = cells_BTV[..., self.order_V], observed_BTV[..., self.order_V]
        if self.law is not None:
            # A generator of its own: batches are drawn in no order.
            generator = torch.Generator(values_BTV.device).manual_seed(self.first_seed + number)
            cells_BTV = draw_hidden(cells_BTV, observed_BTV, self.law, generator)
        sums = _Sums((self.memory + 1) * values_BTV.shape[2], values_BTV.device)
        sums.add(successive(cells_BTV, self.memory), successive(observed_BTV, self.memory))
        sums.is_whole = bool(observed_BTV.all())
        return (sums,)


def successive(x_BTV: Tensor, memory: int) -> Tensor:
    """(B, T - memory, (memory + 1) * V): each step behind those before it, the oldest first."""
    last = x_BTV.shape[1] - memory
    return torch.cat([x_BTV[:, lag : lag + last] for lag in range(memory + 1)], dim=-1)


def free_of_chance(covariance_SS: Tensor, num_rows: int | Tensor, num_variates: int) -> Tensor:
    """Shrink what variates seem to have to do with each other by what chance alone would show.

    Few rows tell how a variate follows itself long before they tell how it follows all others.
    """
    steps = covariance_SS.shape[-1] // num_variates
    own_VV = torch.eye(num_variates, dtype=torch.bool, device=covariance_SS.device)
    kept = torch.as_tensor(num_rows / (num_rows + num_variates), device=covariance_SS.device)
    kept = kept.to(covariance_SS.dtype)[..., None, None]
    return torch.where(own_VV.repeat(steps, steps), covariance_SS, kept * covariance_SS)


def _level_and_change(
    relations: Relations, number: int, values_BTV: Tensor, observed_BTV: Tensor
) -> tuple[_Sums, _Sums]:
    return (
        _deviations("level", values_BTV, observed_BTV, relations),
        _deviations("change", values_BTV, observed_BTV, relations),
    )


def _deviations(
    kind: Kind, values_BTV: Tensor, observed_BTV: Tensor, relations: Relations
) -> _Sums:
    """The deviations of some windows, filled by what is known of the relations."""
    neighbours = Neighbours.find(observed_BTV, values_BTV.dtype)
    filled_BTV = relate(values_BTV, neighbours, relations, kind).kriging_BTV
    known = observed_BTV
    if kind == "change":
        known = observed_BTV[:, 1:-1] & observed_BTV[:, 2:] & observed_BTV[:, :-2]
    count = observed_BTV.sum(1, keepdim=True)
    mean = (values_BTV * observed_BTV).sum(1, keepdim=True) / count.clamp_min(1)
    # A variate with nothing visible in the window says nothing about itself.
    sums = _Sums(values_BTV.shape[2], values_BTV.device)
    sums.add(deviations(filled_BTV, mean, kind) * (count > 0), known)
    return sums


def _total(parts: Iterable[AllSums]) -> AllSums:
    """Sums over all batches, one after the other: only a few of them are there at once."""
    batches = iter(parts)
    total = next(batches)
    for part in batches:
        for sums, more in zip(total, part, strict=True):
            sums.join(more)
    return total


class _Sums:
    """Sums of products over the rows of windows, in float64."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.filled = torch.zeros((size, size), dtype=torch.float64, device=device)
        self.known, self.counts = self.filled.clone(), self.filled.clone()
        self.num_rows = 0
        self.is_whole = False
        """Whether it is known that nothing is missing."""

    def join(self, other: _Sums) -> None:
        """Add the sums over other rows."""
        self.filled += other.filled
        self.known += other.known
        self.counts += other.counts
        self.num_rows += other.num_rows
        self.is_whole &= other.is_whole

    def add(self, filled_BTV: Tensor, known_BTV: Tensor) -> None:
        rows, known = (part.double().flatten(0, 1) for part in (filled_BTV, known_BTV))
        self.filled += rows.mT @ rows
        self.num_rows += len(rows)
        self.known += (rows * known).mT @ (rows * known)
        self.counts += known.mT @ known

    def plain(self) -> Tensor:
        """The covariance of all cells, known or not."""
        return self.filled / max(self.num_rows, 1)

    def covariance(self) -> Tensor:
        """The covariance of the known ones, with help from the others where these are few."""
        known = self.known / self.counts.clamp_min(1)
        matrix = torch.lerp(self.plain(), known, self.counts / (self.counts + ENOUGH_ROWS))
        # Entries from different rows need not make a covariance together: the nearest one does.
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp_min(1e-4 * values.mean())
        covariance: Tensor = (vectors * values) @ vectors.mT
        return covariance
