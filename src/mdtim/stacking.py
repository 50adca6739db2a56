"""How far to trust the network against what needs no network, column by column.

A network can be behind interpolation where that is nearly perfect: a single missing cell of a
smooth column, or a long gap of a column that only rises. In a long gap of all columns it can be
behind the season, and where a window shows nothing of a column it is behind what the whole table
says of its rows. Held-out cells say where, and the filled value is moved towards the others by as
much as lowers their error. A network that is better everywhere is left alone, and so is one that
may be behind by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdtim.calibration import Places
from mdtim.closed_form.seldom import SELDOM
from mdtim.closed_form.sides import Sides
from mdtim.distribution import BinDistribution

REACH = (1.5, 3.5, 8.5, 24.5)
"""Edges between groups of cells, in steps to the nearest visible cell: 1, 2 to 3, and so on."""
NUM_GROUPS = len(REACH) + 3
"""Then those of which a window shows little, and those of which it shows nothing: of these two the
rows know most."""
_LITTLE = NUM_GROUPS - 2
MIN_CELLS = 40
"""A weight is fitted to at least this many held-out cells."""
MIN_READINGS = 16
"""The same for a variate that the table seldom knows: there are no more."""
MAX_CELLS = 10_000
"""More of a variate and group would not move its weights."""
MIN_WINDOWS = 4
"""Cells of fewer windows may err together."""
DOUBT = 2.0
"""Standard errors by which the others must help before they are let in."""
_TENTHS = 10

Weights = tuple[float, float, float]
"""Of the line, the line with the season on it, and the rows; the rest is the network's."""
NETWORK: Weights = (0.0, 0.0, 0.0)
LINE: Weights = (1.0, 0.0, 0.0)
ROWS: Weights = (0.0, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class StackCells:
    """C cells with what all say about them, in standardized units."""

    distribution: BinDistribution
    """(C,) the network's."""
    filled: Tensor
    """(C,) float64, what the network alone would fill in."""
    sides: Sides
    """What the others would."""
    at: Places
    """Where they lie."""
    window: Tensor
    """(C,) int64, the first row of the window that each was predicted in."""

    def shifts(self) -> Tensor:
        """(C, 3) from what the network fills in to what the others would; 0 where they are silent.

        Where a series knows nothing of a variate there is no line, and the rows stand in for it.
        """
        others = (self.sides.linear, self.sides.seasonal, self.sides.rowwise)
        others_C3 = torch.stack(others, dim=-1)
        others_C3 = torch.where(others_C3.isnan(), self.sides.rowwise[:, None], others_C3)
        return (others_C3 - self.filled[:, None]).nan_to_num(0.0)

    def groups(self, seldom: Sequence[bool]) -> Tensor:
        """(C,) the group of each cell.

        Near a visible cell a window that shows little is as good as any; but not of a variate that
        the table seldom knows (V, or none): a reading a week tells little of the hour beside it.
        """
        sides = self.sides
        reach = torch.bucketize(sides.nearest, sides.nearest.new_tensor(REACH))
        is_far = sides.nearest > REACH[1]
        if seldom:
            is_far |= torch.tensor(seldom, device=is_far.device)[self.at.variate]
        reach = torch.where((sides.shown < SELDOM) & is_far, _LITTLE, reach)
        return torch.where(sides.nearest.isinf(), NUM_GROUPS - 1, reach)


@dataclass(frozen=True)
class Stack:
    """Weights of what needs no network, for each variate and group of cells."""

    weights: tuple[tuple[Weights, ...], ...]
    """(V, G)"""
    seldom: tuple[bool, ...] = ()
    """(V,) variates that the table of the fit seldom knows; empty if there are none."""

    @classmethod
    def fit(
        cls, cells: StackCells, truth: Tensor, num_variates: int, seldom: Sequence[bool] = ()
    ) -> Stack:
        """Choose the weights with the least absolute error over (C,) held-out cells.

        All variates of a group are judged together first, then each by itself: what holds for all
        holds for one, but where its own cells leave no doubt that something else is better. Groups
        of too few cells are taken for what lies nearer, those of which a window shows little or
        nothing for what the rows say.
        """
        group = cells.groups(seldom)
        judge = _Judge(cells.shifts(), truth - cells.filled, cells.at.variate, cells.window)
        rows: list[list[Weights]] = [[] for _ in range(num_variates)]
        for reach in range(NUM_GROUPS):
            here = group == reach
            common = judge.better(here, ROWS if reach >= _LITTLE else None)
            for variate, row in enumerate(rows):
                own, least = here & (cells.at.variate == variate), MIN_CELLS
                usual = common or (row[-1] if row else NETWORK)
                if seldom and seldom[variate] and reach == _LITTLE and judge.has_readings(own):
                    # What holds for others says little of it.
                    usual, least = judge.best(own, (ROWS, NETWORK, LINE)), MIN_READINGS
                row.append(judge.better(own, usual, least) or usual)
        return cls(tuple(map(tuple, rows)), tuple(seldom) if any(seldom) else ())

    @property
    def is_seasonal(self) -> bool:
        """Whether the season has a say anywhere."""
        return any(season > 0 for _, season, _ in self._all())

    @property
    def is_rowwise(self) -> bool:
        """Whether the rows have a say anywhere."""
        return any(rows > 0 for _, _, rows in self._all())

    def _all(self) -> Iterator[Weights]:
        for row in self.weights:
            yield from row

    def apply(self, cells: StackCells) -> BinDistribution:
        """Move each distribution towards the others, and make it as wide as the rows say."""
        table = torch.tensor(self.weights, dtype=torch.float64, device=cells.filled.device)
        weight_C3 = table[cells.at.variate, cells.groups(self.seldom)]
        shift = (weight_C3 * cells.shifts()).sum(-1)
        said, spread = cells.distribution, cells.sides.spread
        ratio = (spread / said.std().clamp_min(1e-9)).nan_to_num(1.0).clamp(*_WIDER)
        wider = torch.lerp(torch.ones_like(ratio), ratio, weight_C3[:, -1])
        low = cells.filled + shift - wider * (cells.filled - said.low)
        return BinDistribution(said.probs, low, said.step * wider)

    @classmethod
    def from_dict(cls, tree: dict[str, Any] | None) -> Stack | None:
        """Rebuild from `dataclasses.asdict`; None stays None."""
        if tree is None:
            return None
        weights = tuple(tuple((a, b, c) for a, b, c in row) for row in tree["weights"])
        return cls(weights, tuple(tree["seldom"]))


_WIDER = (0.02, 50.0)
"""Least and most that a distribution is stretched by."""


@dataclass(frozen=True, eq=False)
class _Judge:
    """Finds the weights of the least error over C held-out cells."""

    shifts_C3: Tensor
    missed: Tensor
    """(C,) from what the network fills in to the truth."""
    variate: Tensor
    window: Tensor

    def has_readings(self, chosen: Tensor) -> bool:
        """Whether cells of a variate that is seldom known are enough to tell of it."""
        enough = int(chosen.sum()) >= MIN_READINGS
        return enough and len(torch.unique(self.window[chosen])) >= MIN_WINDOWS

    def best(self, chosen: Tensor, candidates: Sequence[Weights]) -> Weights:
        """The weights of the least error over some of the cells, be it by chance."""
        error_NC = self._errors(chosen.nonzero().squeeze(1), candidates)
        return candidates[int(error_NC.mean(1).argmin())]

    def better(
        self, chosen: Tensor, usual: Weights | None, least: int = MIN_CELLS
    ) -> Weights | None:
        """For some of the cells; the usual weights if it may be chance that others are better.

        Without usual ones, None if there are too few cells to tell, else those of the network.
        """
        cells = chosen.nonzero().squeeze(1)
        if len(cells) < least:
            return usual
        cells = cells[:: -(-len(cells) // MAX_CELLS)]
        line, season, rows = self.shifts_C3[cells].unbind(-1)
        candidates = [
            usual or NETWORK,
            *_candidates(
                with_season=not torch.equal(line, season), with_rows=not torch.equal(line, rows)
            ),
        ]
        error_NC = self._errors(cells, candidates)
        best = int(error_NC.mean(1).argmin())
        gain = error_NC[0] - error_NC[best]
        # What a window shows of one variate may err together.
        together = self.window[cells] * (1 + int(self.variate.max())) + self.variate[cells]
        return candidates[best if _is_certain(gain, together) else 0]

    def _errors(self, cells: Tensor, candidates: Sequence[Weights]) -> Tensor:
        """(N, C) absolute errors of some cells under N candidates."""
        shifts_C3 = self.shifts_C3[cells]
        return (self.missed[cells] - shifts_C3.new_tensor(candidates) @ shifts_C3.mT).abs()


def _candidates(*, with_season: bool, with_rows: bool) -> list[Weights]:
    """All weights in tenths that leave the network none or some."""
    return [
        (line / _TENTHS, season / _TENTHS, rows / _TENTHS)
        for rows in range((_TENTHS if with_rows else 0) + 1)
        for season in range((_TENTHS - rows if with_season else 0) + 1)
        for line in range(_TENTHS - season - rows + 1)
    ]


def _is_certain(gain: Tensor, together: Tensor) -> bool:
    """Whether (C,) gains are more than chance, where cells of one number may err together."""
    _, member = torch.unique(together, return_inverse=True)
    num_windows = int(member.max()) + 1
    if num_windows < MIN_WINDOWS:
        return False
    mean = gain.mean()
    together = gain.new_zeros(num_windows).index_add_(0, member, gain - mean)
    variance = together.square().sum() * num_windows / (num_windows - 1)
    return bool(mean * len(gain) > DOUBT * variance.sqrt())
