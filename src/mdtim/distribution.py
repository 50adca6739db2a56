"""What is said about a cell: a distribution over equally spaced bins, a Gaussian one, or samples.

The mass of a bin is spread evenly over it, so the distribution function is piecewise linear;
mean, spread, quantiles, samples and CRPS below are all exact for that one function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.config import Estimate

_TAIL = 1e-4
"""Mass on either side that needs no bins of its own when they are laid anew."""


def _masses(level: Tensor) -> Tensor:
    """(..., K) masses of bins, from the distribution function at their upper edges."""
    return level.diff(dim=-1, prepend=torch.zeros_like(level[..., :1]))


@dataclass(frozen=True, eq=False)
class BinDistribution:
    """One distribution per cell; `...` is any shape of cells, K the number of bins."""

    probs: Tensor
    """(..., K) float, sums to one over the last axis."""
    low: Tensor
    """(...,) float64, centre of the first bin, in the units of the data."""
    step: Tensor
    """(...,) float64, distance of neighbouring centres; zero for a known constant."""
    bounds: Tensor | None = None
    """(..., 2) least and most a cell can be: quantiles keep to them, as if what lies beyond lay
    there. Moments and CRPS are those without."""

    @classmethod
    def join(cls, parts: Sequence[BinDistribution]) -> BinDistribution:
        """Distributions of several sets of cells, one after the other."""
        return cls(
            torch.cat([part.probs for part in parts]),
            torch.cat([part.low for part in parts]),
            torch.cat([part.step for part in parts]),
            torch.cat([part._bounds() for part in parts]),
        )

    def _bounds(self) -> Tensor:
        if self.bounds is not None:
            return self.bounds
        none = torch.tensor([-torch.inf, torch.inf], dtype=self.low.dtype, device=self.low.device)
        return none.expand(*self.low.shape, 2)

    def _index_moments(self) -> tuple[Tensor, Tensor]:
        """(...,) mean and variance of the bin's index; half-precision masses need not sum to 1."""
        probs = self.probs.double()
        probs = probs / probs.sum(-1, keepdim=True)
        index = torch.arange(probs.shape[-1], device=probs.device, dtype=torch.float64)
        mean = (probs * index).sum(-1)
        return mean, (probs * (index - mean[..., None]) ** 2).sum(-1)

    def mean(self) -> Tensor:
        """(...,) expectation."""
        return self.low + self.step * self._index_moments()[0]

    def mode(self) -> Tensor:
        """(...,) centre of the likeliest bin."""
        return self.low + self.step * self.probs.argmax(-1)

    def point(self, estimate: Estimate) -> Tensor:
        """(...,) the one value that stands for a distribution."""
        if estimate == "mode":
            return self.mode()
        return self.quantile(0.5) if estimate == "median" else self.mean()

    def std(self) -> Tensor:
        """(...,) standard deviation, bin width included."""
        return self.step * (self._index_moments()[1] + 1 / 12).sqrt()

    def quantile(self, level: Tensor | float) -> Tensor:
        """(...,) value below which a share `level` of the mass lies.

        Parameters
        ----------
        level : float or (...,) tensor, in [0, 1]
        """
        cumulative = self.probs.double().cumsum(-1)
        cumulative = cumulative / cumulative[..., -1:]
        wanted = torch.as_tensor(level, dtype=torch.float64, device=self.probs.device)
        wanted = wanted.expand(self.low.shape)[..., None].contiguous()
        index = torch.searchsorted(cumulative.contiguous(), wanted).clamp_max(
            self.probs.shape[-1] - 1
        )
        upper = cumulative.gather(-1, index)
        lower = torch.where(index > 0, cumulative.gather(-1, (index - 1).clamp_min(0)), 0.0)
        inside = ((wanted - lower) / (upper - lower).clamp_min(1e-300)).clamp(0, 1)
        value = self.low + self.step * (index + inside - 0.5).squeeze(-1)
        if self.bounds is None:
            return value
        return value.clamp(self.bounds[..., 0], self.bounds[..., 1])

    def cdf(self, value: Tensor) -> Tensor:
        """(...,) probability of being at most `value`."""
        return self.cdf_at(value[..., None]).squeeze(-1)

    def cdf_at(self, points: Tensor) -> Tensor:
        """(..., P) probability of being at most each of P points of a cell.

        Parameters
        ----------
        points : (..., P), in the units of the data
        """
        probs = self.probs.double()
        probs = probs / probs.sum(-1, keepdim=True)
        before = probs.cumsum(-1) - probs
        step = torch.where(self.step > 0, self.step, 1.0)
        position = (points.double() - self.low[..., None]) / step[..., None] + 0.5
        index = position.floor().clamp(0, probs.shape[-1] - 1).long()
        inside = (position - index).clamp(0, 1)
        spread = before.gather(-1, index) + inside * probs.gather(-1, index)
        is_constant = (self.step == 0)[..., None]
        return torch.where(is_constant, (points >= self.low[..., None]).double(), spread)

    def crps(self, truth: Tensor) -> Tensor:
        """(...,) continuous ranked probability score, in the units of the data."""
        probs = self.probs.double()
        probs = probs / probs.sum(-1, keepdim=True)
        after = probs.cumsum(-1)
        before = after - probs
        position = self._position(truth)
        index = torch.arange(probs.shape[-1], device=probs.device)
        share = (position[..., None] - index).clamp(0, 1)
        middle = before + share * probs
        # Integral of a linear function squared over a piece: width (a² + ab + b²) / 3.
        below = share * (before**2 + before * middle + middle**2)
        rest, end = 1 - middle, 1 - after
        above = (1 - share) * (rest**2 + rest * end + end**2)
        inside = (below + above).sum(-1) / 3
        outside = (-position).clamp_min(0) + (position - probs.shape[-1]).clamp_min(0)
        binned = self.step * (inside + outside)
        return torch.where(self.step > 0, binned, (truth - self.low).abs())

    def sharpened(self, blur: float, floor: float) -> BinDistribution:
        """Take away a known blur: shrink around the mean as if its variance had not been added.

        Parameters
        ----------
        blur : variance to take away, in bins²
        floor : least standard deviation to leave, in bins
        """
        center, variance = self._index_moments()
        wanted = (variance - blur).clamp_min(floor**2)
        shrink = (wanted / (variance + 1 / 12)).clamp_max(1).sqrt()
        mean = self.low + self.step * center
        return BinDistribution(self.probs, mean + shrink * (self.low - mean), shrink * self.step)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> BinDistribution:
        """The distribution whose function is a monotone map of this one's.

        As many bins as before are laid where its mass is: what is sharp becomes finer, and the map
        holds between the old bins as well.

        Parameters
        ----------
        change : (..., P) levels of each cell in [0, 1] to others
        """
        count = self.probs.shape[-1]
        level = self.probs.double().cumsum(-1)
        level = (level / level[..., -1:]).clamp(0, 1)
        coarse = BinDistribution(_masses(change(level)), self.low, self.step)
        low, high = coarse.quantile(_TAIL), coarse.quantile(1 - _TAIL)
        step = (high - low) / count
        edge = torch.arange(1, count + 1, device=low.device, dtype=torch.float64)
        inner = change(self.cdf_at(low[..., None] + step[..., None] * edge))
        inner[..., -1] = 1.0  # the tails belong to the outermost bins
        return BinDistribution(_masses(inner).to(self.probs.dtype), low + step / 2, step)

    def take(self, chosen: Tensor) -> BinDistribution:
        """Some of the cells."""
        bounds = None if self.bounds is None else self.bounds[chosen]
        return BinDistribution(self.probs[chosen], self.low[chosen], self.step[chosen], bounds)

    def _position(self, value: Tensor) -> Tensor:
        """Distance from the lower edge of the first bin, in bins."""
        step = torch.where(self.step > 0, self.step, 1.0)
        return (value.double() - self.low) / step + 0.5


@dataclass(frozen=True, eq=False)
class GaussianDistribution:
    """One Gaussian per cell."""

    center: Tensor
    """(...,) float64."""
    spread: Tensor
    """(...,) float64, standard deviation; zero for a known value."""

    def std(self) -> Tensor:
        """(...,) standard deviation."""
        return self.spread

    def quantile(self, level: float) -> Tensor:
        """(...,) value below which a share `level` of the mass lies."""
        wanted = torch.as_tensor(level, dtype=torch.float64, device=self.center.device)
        value: Tensor = self.center + self.spread * torch.special.ndtri(wanted)
        return value

    def cdf(self, value: Tensor) -> Tensor:
        """(...,) probability of being at most `value`."""
        return self.cdf_at(value[..., None]).squeeze(-1)

    def cdf_at(self, points: Tensor) -> Tensor:
        """(..., P) probability of being at most each of P points of a cell."""
        distance = points - self.center[..., None]
        level: Tensor = torch.special.ndtr(distance / self.spread[..., None].clamp_min(1e-300))
        return level

    def crps(self, truth: Tensor) -> Tensor:
        """(...,) continuous ranked probability score, in closed form."""
        z = (truth - self.center) / self.spread.clamp_min(1e-300)
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        inside = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
        return torch.where(self.spread > 0, self.spread * inside, (truth - self.center).abs())


@dataclass(frozen=True, eq=False)
class SampleDistribution:
    """S samples of each cell, each of the same mass; the distribution function has steps."""

    ordered: Tensor
    """(..., S) float64, rising along the last axis."""

    @classmethod
    def of(cls, samples: Tensor) -> SampleDistribution:
        """From (..., S) samples in any order."""
        return cls(samples.double().contiguous().sort(-1).values)

    def std(self) -> Tensor:
        """(...,) standard deviation."""
        return self.ordered.std(-1, correction=0)

    def quantile(self, level: float) -> Tensor:
        """(...,) the smallest sample that at least a share `level` does not exceed."""
        count = self.ordered.shape[-1]
        return self.ordered[..., max(0, math.ceil(round(level * count, 9)) - 1)]

    def cdf(self, value: Tensor) -> Tensor:
        """(...,) share of the samples that are at most `value`."""
        return self.cdf_at(value[..., None]).squeeze(-1)

    def cdf_at(self, points: Tensor) -> Tensor:
        """(..., P) share of the samples that are at most each of P points of a cell."""
        points = points.double().contiguous()
        below = torch.searchsorted(self.ordered, points, right=True)
        return below.double() / self.ordered.shape[-1]

    def crps(self, truth: Tensor) -> Tensor:
        """(...,) continuous ranked probability score of the step function."""
        count = self.ordered.shape[-1]
        distance = (self.ordered - truth[..., None]).abs().mean(-1)
        # Half the mean |x - x'| over all pairs, from the ranks.
        ranks = 2 * torch.arange(1, count + 1, device=self.ordered.device).double() - count - 1
        return distance - (self.ordered * ranks).sum(-1) / count**2


def mix(weights: Tensor, probs: Tensor, low: Tensor, step: Tensor) -> BinDistribution:
    """Mix several distributions of each cell into one on a common grid.

    Every mass point is split between its two neighbours on the new grid in proportion to their
    nearness, as stochastic discretization does, so the mean is kept.

    Parameters
    ----------
    weights : (C, P) float64
        Weight of part p for cell c; zero for a part that is not there.
    probs : (C, P, K)
    low, step : (C, P) float64

    Returns
    -------
    BinDistribution over C cells with K bins
    """
    num_bins = probs.shape[-1]
    share = weights / weights.sum(1, keepdim=True)
    present = weights > 0
    new_low = torch.where(present, low, torch.inf).amin(1)
    high = torch.where(present, low + step * (num_bins - 1), -torch.inf).amax(1)
    new_step = (high - new_low) / (num_bins - 1)
    safe_step = torch.where(new_step > 0, new_step, 1.0)

    index = torch.arange(num_bins, device=probs.device, dtype=torch.float64)
    points = torch.where(present, low, 0.0)[..., None] + step[..., None] * index
    mass = probs.double() * share[..., None]
    position = ((points - new_low[:, None, None]) / safe_step[:, None, None]).clamp(0, num_bins - 1)
    position = torch.where(present[..., None], position, 0.0)
    below = position.floor().clamp_max(num_bins - 2).long()
    upper_share = position - below
    mixed = torch.zeros(len(probs), num_bins, dtype=torch.float64, device=probs.device)
    mixed.scatter_add_(1, below.flatten(1), (mass * (1 - upper_share)).flatten(1))
    mixed.scatter_add_(1, (below + 1).flatten(1), (mass * upper_share).flatten(1))
    return BinDistribution(mixed.to(probs.dtype), new_low, new_step)
