"""What can be said about a cell in closed form, before any network: lines and relations.

A *line* interpolates a variate along the steps. A *relation* is the linear regression of a variate
on all others at the same step; it follows from the inverse of their covariance. Each is right
where the other fails: between close neighbours the line, in long gaps the relation. *Kriging* is
both: the relation, plus the line through what it leaves unexplained at the visible cells.
*Smoothing* follows the table's dynamics (:mod:`mdtim.closed_form.dynamics`): what it says about a
cell hangs on all variates at the steps around it.

B windows, T steps, V variates, G guesses, S steps of the dynamics times variates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mdtim.closed_form.dynamics import smooth, steps_of_memory
from mdtim.gpu.triton_inverse import fits_inverse, inverse
from mdtim.wanted import Wanted

TABLE_ROWS = 200.0
"""What the table's covariance counts for, in rows, beside the window's own."""
RIDGE = 0.03
"""Added to every variance, as a share of it: relations must not live on rounding errors."""
ROUNDS = 3
"""The covariance is taken from filled windows; filling better, it gets better."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The visible cells beside every cell, along the steps of its variate in the window."""

    visible_BTV: Tensor
    left_BTV: Tensor
    """Step of the visible cell at or before a cell, else of the one behind it; any without both."""
    right_BTV: Tensor
    share_BTV: Tensor
    """How much of the right one a line between both is."""
    to_left_BTV: Tensor
    """Steps to the visible cell on the left; inf without one."""
    to_right_BTV: Tensor

    @classmethod
    def find(cls, visible_BTV: Tensor, dtype: torch.dtype) -> Neighbours:
        """Find all of them without a loop; shares and steps in a float dtype."""
        num_steps = visible_BTV.shape[1]
        step_T1 = torch.arange(num_steps, device=visible_BTV.device)[:, None]
        left = torch.where(visible_BTV, step_T1, -1).cummax(dim=1).values
        right = torch.where(visible_BTV, step_T1, num_steps).flip(1).cummin(dim=1).values.flip(1)
        has_left, has_right = left >= 0, right < num_steps
        to_left, to_right = (step_T1 - left).to(dtype), (right - step_T1).to(dtype)
        share = to_left / (to_left + to_right).clamp_min(1)
        return cls(
            visible_BTV,
            torch.where(has_left, left, right).clamp_max(num_steps - 1),
            torch.where(has_right, right, left).clamp_min(0),
            torch.where(has_left & has_right, share, 0.5),
            torch.where(has_left, to_left, torch.inf),
            torch.where(has_right, to_right, torch.inf),
        )

    def line(self, x_BTV: Tensor) -> Tensor:
        """Interpolate visible values; flat beyond the outermost, 0 where nothing is visible."""
        x_left, x_right = x_BTV.gather(1, self.left_BTV), x_BTV.gather(1, self.right_BTV)
        value = torch.lerp(x_left, x_right, self.share_BTV)
        return torch.where(self.found_BTV, value, 0.0)

    @cached_property
    def found_BTV(self) -> Tensor:
        """Whether anything of the variate is visible."""
        return torch.isfinite(torch.minimum(self.to_left_BTV, self.to_right_BTV))

    @property
    def nearest_BTV(self) -> Tensor:
        """Steps to the nearest visible cell of the variate; T where there is none."""
        nearest_BTV = torch.minimum(self.to_left_BTV, self.to_right_BTV)
        return nearest_BTV.clamp_max(self.visible_BTV.shape[1])

    @property
    def gap_BTV(self) -> Tensor:
        """Steps between the visible cells on both sides; inf where one side has none."""
        return self.to_left_BTV + self.to_right_BTV - 1


@dataclass(frozen=True, eq=False)
class Relations:
    """How the variates of a table move together, in units of their std."""

    level_VV: Tensor
    """(..., V, V) covariance of the deviations from the window's mean."""
    change_VV: Tensor
    """(..., V, V) covariance of the deviations from the mean of the two neighbouring steps."""
    whiten_SS: Tensor | None = None
    """(..., S, S) dynamics (:func:`mdtim.closed_form.dynamics.whitening`); None if not asked."""

    @classmethod
    def none(
        cls, num_variates: int, device: torch.device | None = None, *, dynamics: bool = False
    ) -> Relations:
        """Nothing is known: every window has only its own."""
        level, change = (torch.zeros((num_variates, num_variates), device=device) for _ in range(2))
        size = (steps_of_memory(num_variates) + 1) * num_variates
        return cls(level, change, torch.eye(size, device=device) if dynamics else None)

    def of(self, tables: Tensor | slice) -> Relations:
        """Those of some tables, where there is one for each."""
        if self.level_VV.ndim == 2:
            return self
        whiten = None if self.whiten_SS is None else self.whiten_SS[tables]
        return Relations(self.level_VV[tables], self.change_VV[tables], whiten)

    def copy_(self, other: Relations) -> None:
        """Take the numbers of others, in the same memory."""
        self.level_VV.copy_(other.level_VV)
        self.change_VV.copy_(other.change_VV)
        if self.whiten_SS is not None:
            assert other.whiten_SS is not None
            self.whiten_SS.copy_(other.whiten_SS)


@dataclass(frozen=True, eq=False)
class Guesses:
    """Closed-form guesses of every cell."""

    values_BTVG: Tensor
    """Line, level relation, level kriging, change kriging, smoothing; or only the first."""
    features_BTVF: Tensor
    """What a network should know of them, about unit size."""
    nearest_BTV: Tensor
    """Steps to the nearest visible cell of the variate; T where there is none."""

    def at(self, wanted: Wanted) -> Guesses:
        """Those of the wanted cells."""
        nearest_BTV1 = wanted.pick(self.nearest_BTV[..., None])
        return Guesses(
            wanted.pick(self.values_BTVG), wanted.pick(self.features_BTVF), nearest_BTV1.squeeze(-1)
        )


NUM_GUESSES = {"line": 1, "relations": 4, "dynamics": 5}
NUM_FEATURES = {"line": 3, "relations": 9, "dynamics": 11}


def guess_by_line(x_BTV: Tensor, visible_BTV: Tensor) -> Guesses:
    """Interpolate values in window units; 0 where not visible."""
    neighbours = Neighbours.find(visible_BTV, x_BTV.dtype)
    line_BTV = neighbours.line(x_BTV)
    features = torch.stack([line_BTV, *_closeness(neighbours)], dim=-1)
    return Guesses(line_BTV[..., None], features, neighbours.nearest_BTV)


def guess_by_relations(
    values_BTV: Tensor,
    visible_BTV: Tensor,
    relations: Relations,
    center_B1V: Tensor,
    half_B1V: Tensor,
    *,
    dynamics: bool = False,
) -> Guesses:
    """Guess from time and from the other variates.

    Parameters
    ----------
    values_BTV : standardized values, 0 where not visible
    relations : of the table, shared by all windows or one per window
    center_B1V, half_B1V : the window units of the result
    dynamics : whether to smooth as well
    """
    neighbours = Neighbours.find(visible_BTV, values_BTV.dtype)
    level = relate(values_BTV, neighbours, relations, "level")
    change = relate(values_BTV, neighbours, relations, "change")

    def normalize(value_BTV: Tensor) -> Tensor:
        return ((value_BTV - center_B1V) / half_B1V).clamp(-4, 4)

    said = [neighbours.line(values_BTV), level.value_BTV, level.kriging_BTV, change.kriging_BTV]
    shape = values_BTV.shape
    fits = [level.fit_B1V.expand(shape), change.fit_B1V.expand(shape)]
    if dynamics:
        assert relations.whiten_SS is not None, "the table's dynamics were not read"
        smoothed_BTV, spread_BTV = smooth(change.kriging_BTV, visible_BTV, relations.whiten_SS)
        said.append(smoothed_BTV)
        fits.append((1 - spread_BTV**2).expand(shape))
    guesses = [normalize(one) for one in said]
    features = [
        *guesses,
        normalize(change.value_BTV),
        *_closeness(neighbours),
        *fits,
    ]
    return Guesses(torch.stack(guesses, -1), torch.stack(features, -1), neighbours.nearest_BTV)


def _closeness(neighbours: Neighbours) -> tuple[Tensor, Tensor]:
    """1 / (1 + steps) to the visible neighbours, 0 without one."""
    return 1 / (1 + neighbours.to_left_BTV), 1 / (1 + neighbours.to_right_BTV)


Kind = Literal["level", "change"]


@dataclass(frozen=True, eq=False)
class Related:
    """What the other variates say about every cell."""

    value_BTV: Tensor
    """The regression, of visible cells too (each without looking at itself)."""
    kriging_BTV: Tensor
    """With the line through its residuals; the value itself where visible."""
    fit_B1V: Tensor
    """Share of the variance that the others explain."""


def relate(values_BTV: Tensor, neighbours: Neighbours, relations: Relations, kind: Kind) -> Related:
    """Regress every cell on the others of its step, as they move together in level or change."""
    visible_BTV = neighbours.visible_BTV
    count_B1V = visible_BTV.sum(1, keepdim=True).clamp_min(1)
    mean_B1V = torch.where(visible_BTV, values_BTV, 0.0).sum(1, keepdim=True) / count_B1V
    filled_BTV = torch.where(visible_BTV, values_BTV, neighbours.line(values_BTV))
    table_VV = relations.level_VV if kind == "level" else relations.change_VV
    for _ in range(ROUNDS):
        # In float64: the order of the variates and the size of the batch must not show.
        deviation = deviations(filled_BTV, mean_B1V, kind).double()
        total_BVV = deviation.mT @ deviation + TABLE_ROWS * table_VV
        precision_BVV, variance_BV = _inverse(total_BVV / (deviation.shape[1] + TABLE_ROWS))
        inner_B1V = precision_BVV.diagonal(dim1=-2, dim2=-1)[:, None]
        explained_BTV = ((filled_BTV - mean_B1V).double() @ precision_BVV) / inner_B1V
        value_BTV = filled_BTV - explained_BTV.to(filled_BTV.dtype)
        residual_BTV = torch.where(visible_BTV, values_BTV - value_BTV, 0.0)
        kriging_BTV = value_BTV + neighbours.line(residual_BTV)
        filled_BTV = torch.where(visible_BTV, values_BTV, kriging_BTV)
    fit_B1V = 1 - 1 / (inner_B1V * variance_BV[:, None])
    return Related(value_BTV, filled_BTV, fit_B1V.to(filled_BTV.dtype))


def deviations(filled_BTV: Tensor, mean_B1V: Tensor, kind: Kind) -> Tensor:
    """How far each step lies from the mean, or (T - 2 of them) from its two neighbours' mean."""
    if kind == "level":
        return filled_BTV - mean_B1V
    return filled_BTV[:, 1:-1] - (filled_BTV[:, 2:] + filled_BTV[:, :-2]) / 2


def _inverse(covariance_BVV: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of the covariance with its ridge, and the variances."""
    variance_BV = covariance_BVV.diagonal(dim1=-2, dim2=-1) * (1 + RIDGE) + 1e-6
    ridged = covariance_BVV.diagonal_scatter(variance_BV, dim1=-2, dim2=-1)
    # As a correlation, whose entries are of one size however the variates are scaled.
    scale_BV = variance_BV.rsqrt()
    correlation = ridged * scale_BV[:, :, None] * scale_BV[:, None, :]
    if fits_inverse(correlation):
        turned = inverse(correlation)
    else:
        # Not `inv`: after `set_num_threads` PyTorch's LU factors of some hundred variates are wrong
        # on a CPU (2.13 with MKL 2024.2). The ridge makes the matrix positive definite.
        turned = torch.cholesky_inverse(torch.linalg.cholesky_ex(correlation).L)
    return turned * scale_BV[:, :, None] * scale_BV[:, None, :], variance_BV
