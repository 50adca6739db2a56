"""Values to ordinal tokens: window scale, coordinates on the input grid, targets on the output.

B windows, T steps, V variates, K input bins. Values arrive standardized by the variate's training
mean and std. A token is a float *coordinate*: 0 is `[MASK]`; 1..K are the bins of [-1, 1]. A drawn
token is a whole number; an interpolated one lies between two and stands for its expectation over
the draws, so the network reads both alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.config import TokenizerConfig
from mdtim.scaling import ABSURD


@dataclass(frozen=True, eq=False)
class WindowScale:
    """Where each window and variate lies: the affine map onto [-1, 1]."""

    center_B1V: Tensor
    half_B1V: Tensor
    empty_B1V: Tensor
    """bool: nothing visible in this window and variate; the map is then that of the training data,
    mean ± std."""

    def normalize(self, values_BTV: Tensor) -> Tensor:
        """Map values onto the window's own units; visible ones land in [-1, 1]."""
        return (values_BTV - self.center_B1V) / self.half_B1V

    def level_BV3(self) -> Tensor:
        """Centre, log half-range and "nothing visible", in units of the training data."""
        center_B1V = self.center_B1V.clamp(-ABSURD, ABSURD)  # beyond, no network has been
        parts = (center_B1V, self.half_B1V.log(), self.empty_B1V.to(center_B1V.dtype))
        return torch.stack([part.squeeze(1) for part in parts], dim=-1)


def believable(values_BTV: Tensor, visible_BTV: Tensor) -> Tensor:
    """Values with those pulled in that are too far from the median of their window and variate.

    One absurd reading must not blow up the scale, the lines and the relations of its window.
    """
    known_BTV = torch.where(visible_BTV, values_BTV, torch.nan)
    median_B1V = known_BTV.nanmedian(dim=1, keepdim=True).values.nan_to_num(0.0)
    return values_BTV.clamp(median_B1V - ABSURD, median_B1V + ABSURD)


HEADROOM = 0.2
"""Between a straight continuation and the end of the output grid, in window units."""
MAX_EXTENSION = 4.0
"""What is beyond is no slope, but a jump between two neighbours."""


def window_scale(
    values_BTV: Tensor,
    visible_BTV: Tensor,
    min_range: float,
    scarcity: float = 0.0,
    reach: float | None = None,
) -> WindowScale:
    """Instance-adaptive normalization from visible cells only.

    Parameters
    ----------
    values_BTV : standardized values; anything finite where not visible
    visible_BTV : bool, True where the network may look
    min_range : smallest max - min, in units of the training std
    scarcity : smallest (max - min) / 2 times the square of the number of visible cells
    reach : end of the output grid, in window units, within which the ends of what is visible must
        fit when they are continued straight; None if they need not
    """
    infinity = torch.full((), torch.inf, dtype=values_BTV.dtype, device=values_BTV.device)
    low = torch.where(visible_BTV, values_BTV, infinity).amin(dim=1, keepdim=True)
    high = torch.where(visible_BTV, values_BTV, -infinity).amax(dim=1, keepdim=True)
    count_B1V = visible_BTV.sum(dim=1, keepdim=True)
    empty = count_B1V == 0
    center = torch.where(empty, 0.0, (low + high) / 2)
    half = ((high - low) / 2).clamp_min(min_range / 2)
    if scarcity:
        half = torch.maximum(half, scarcity / count_B1V.clamp_min(1).to(half.dtype) ** 2)
    half = torch.where(empty, 1.0, half)
    if reach is not None:
        x_BTV = (values_BTV - center) / half
        ends = (_continued(x_BTV, visible_BTV), _continued(x_BTV.flip(1), visible_BTV.flip(1)))
        wanted = torch.maximum(*ends) / (reach - HEADROOM)
        half = torch.where(empty, half, half * wanted.clamp(1.0, MAX_EXTENSION))
    return WindowScale(center, half, empty)


def _continued(x_BTV: Tensor, visible_BTV: Tensor) -> Tensor:
    """(B, 1, V) how far from 0 the last step lies on a straight line from the last visible cell.

    The line looks back as far as it has to reach ahead, so that noise does not turn it.
    """
    num_steps = x_BTV.shape[1]
    step_T1 = torch.arange(num_steps, device=x_BTV.device)[:, None]
    last_B1V = torch.where(visible_BTV, step_T1, 0).amax(dim=1, keepdim=True)
    first_B1V = torch.where(visible_BTV, step_T1, num_steps - 1).amin(dim=1, keepdim=True)
    ahead_B1V = num_steps - 1 - last_B1V
    far_enough = visible_BTV & (step_T1 <= last_B1V - ahead_B1V.clamp_min(1))
    back_B1V = torch.where(far_enough, step_T1, -1).amax(dim=1, keepdim=True)
    back_B1V = torch.where(back_B1V < 0, first_B1V, back_B1V)
    x_last, x_back = x_BTV.gather(1, last_B1V), x_BTV.gather(1, back_B1V)
    slope = (x_last - x_back) / (last_B1V - back_B1V).clamp_min(1)
    return (x_last + slope * ahead_B1V).abs()


class Tokenizer:
    """The two grids: tokens of the input on [-1, 1], bins of the output on a wider range."""

    def __init__(self, config: TokenizerConfig) -> None:
        self.config = config
        self.num_outputs = config.num_outputs
        self.output_step = 2 * config.output_range / (self.num_outputs - 1)

    def centers(self, device: torch.device | str = "cpu") -> Tensor:
        """(K_out,) values of the output bins, in window units."""
        reach = self.config.output_range
        return torch.linspace(-reach, reach, self.num_outputs, device=device)

    def encode(self, x_BTV: Tensor, visible_BTV: Tensor, noise_BTV: Tensor | None) -> Tensor:
        """Stochastic discretization of visible cells; `[MASK]` elsewhere.

        Parameters
        ----------
        x_BTV : values in window units
        noise_BTV : uniform on [-0.5, 0.5) for one draw z = round(c + u), whose expectation is c;
            None for the interpolated token c itself

        Returns
        -------
        coordinates_BTV : float, 0 for `[MASK]`, else in [1, K]
        """
        num_bins = self.config.num_bins
        coordinate = ((x_BTV + 1) / 2 * (num_bins - 1) + 1).clamp(1, num_bins)
        coordinates_BTV = torch.where(visible_BTV, coordinate, 0.0)
        return coordinates_BTV if noise_BTV is None else self.draw(coordinates_BTV, noise_BTV)

    def draw(self, coordinates_BTV: Tensor, noise_BTV: Tensor) -> Tensor:
        """One draw of interpolated tokens; `[MASK]` stays."""
        # floor(c + u + 1/2), not round(): round-half-to-even would bias whole numbers.
        drawn_BTV = torch.floor(coordinates_BTV + noise_BTV + 0.5).clamp(1, self.config.num_bins)
        return torch.where(coordinates_BTV == 0, 0.0, drawn_BTV)

    def target(self, x_BTV: Tensor, noise_BTV: Tensor | None) -> Tensor:
        """Coordinates on the output grid, 0..K_out-1; drawn with noise, exact without."""
        coordinate = (x_BTV + self.config.output_range) / self.output_step
        if noise_BTV is not None:
            coordinate = torch.floor(coordinate + noise_BTV + 0.5)
        return coordinate.clamp(0, self.num_outputs - 1)
