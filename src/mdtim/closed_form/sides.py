"""What needs no network says of cells: the line, the season on it, and the rows of the table.

B windows, T steps, V variates, C cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.closed_form.guesses import Neighbours
from mdtim.closed_form.rowwise import RowModel
from mdtim.closed_form.season import SEASONS, above_the_line
from mdtim.tokenizer import WindowScale, believable


@dataclass(frozen=True, eq=False)
class Sides:
    """Values of C cells, in standardized units, float64; NaN where there is nothing to say."""

    linear: Tensor
    """(C,) linear interpolation, along the whole series where it is known."""
    seasonal: Tensor
    """(C,) that with the window's season on it; the same where no season is known."""
    rowwise: Tensor
    """(C,) what the rows say of cells that they are asked about; the line elsewhere."""
    spread: Tensor
    """(C,) how uncertain they are, as a std; NaN where they say nothing."""
    nearest: Tensor
    """(C,) steps to the nearest visible cell of the variate; infinite where the window shows
    none."""
    shown: Tensor
    """(C,) share of the window's steps at which the variate is visible."""

    @classmethod
    def find(
        cls,
        values_BTV: Tensor,
        neighbours: Neighbours,
        wanted_BTV: Tensor,
        scale: WindowScale,
        line_BTV: Tensor | None,
        usual_BTV: Tensor | None,
        inside_BT: Tensor,
        season: int | None,
        rows: RowModel | None,
    ) -> Sides:
        """Ask all of them.

        Parameters
        ----------
        values_BTV : standardized, anything where not visible
        neighbours : of the visible cells
        wanted_BTV : bool
        line_BTV : interpolation along the whole series, NaN where it knows nothing of a variate;
            None: inside the window
        usual_BTV : what is usual at the time of each step, or None
        inside_BT : steps of the series, False beyond its end
        season : steps, or None where nobody asks
        rows : or None where nobody asks
        """
        visible_BTV = neighbours.visible_BTV
        x_BTV = torch.where(visible_BTV, scale.normalize(values_BTV), 0.0)
        if line_BTV is not None:
            linear_BTV = line_BTV.double()
        else:
            linear_BTV = neighbours.line(x_BTV).double() * scale.half_B1V + scale.center_B1V
            linear_BTV = torch.where(scale.empty_B1V, torch.nan, linear_BTV)
        seasonal_BTV = linear_BTV
        if season is not None and x_BTV.shape[1] >= SEASONS * season:
            above_BTV = above_the_line(x_BTV, neighbours, season)
            seasonal_BTV = linear_BTV + above_BTV * scale.half_B1V
        linear, seasonal = linear_BTV[wanted_BTV], seasonal_BTV[wanted_BTV]
        rowwise, spread = linear, torch.full_like(linear, torch.nan)
        steps_B11 = inside_BT.double().sum(1)[:, None, None].clamp_min(1)
        shown_B1V = visible_BTV.double().sum(1, keepdim=True) / steps_B11
        if rows is not None:
            believed_BTV = believable(values_BTV, visible_BTV)
            rowwise, spread = rows.say(believed_BTV, neighbours, wanted_BTV, shown_B1V, usual_BTV)
            rowwise = torch.where(rowwise.isnan(), linear, rowwise)
        nearest_BTV = torch.where(scale.empty_B1V, torch.inf, neighbours.nearest_BTV)
        shown_BTV = shown_B1V.expand(visible_BTV.shape)
        return cls(
            linear, seasonal, rowwise, spread, nearest_BTV[wanted_BTV], shown_BTV[wanted_BTV]
        )
