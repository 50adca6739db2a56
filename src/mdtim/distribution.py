"""What is said about a cell: a distribution over equally spaced bins, a Gaussian one, or samples.

The mass of a bin is spread evenly over it, so the distribution function is piecewise linear;
mean, spread, quantiles, samples and CRPS below are all exact for that one function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mdtim.config import Estimate


@dataclass(frozen=True, eq=False)
class BinDistribution:
    """One distribution per cell; `...` is any shape of cells, K the number of bins."""

    probs: Tensor
    """(..., K) float, sums to one over the last axis."""
    low: Tensor
    """(...,) float64, centre of the first bin, in the units of the data."""
    step: Tensor
    """(...,) float64, distance of neighbouring centres; zero for a known constant."""

    @classmethod
    def join(cls, parts: Sequence[BinDistribution]) -> BinDistribution:
        """Distributions of several sets of cells, one after the other."""
        return cls(
            torch.cat([part.probs for part in parts]),
            torch.cat([part.low for part in parts]),
            torch.cat([part.step for part in parts]),
        )

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
        return self.low + self.step * (index + inside - 0.5).squeeze(-1)

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
        before = probs.cumsum(-1) - probs
        step = torch.where(self.step > 0, self.step, 1.0)
        position = (points.double() - self.low[..., None]) / step[..., None] + 0.5
        index = position.floor().clamp(0, probs.shape[-1] - 1).long()
        inside = (position - index).clamp(0, 1)
        return before.gather(-1, index) + inside * probs.gather(-1, index)

    def crps(self, truth: Tensor) -> Tensor:
        """(...,) continuous ranked probability score, in the units of the data."""
        probs = self.probs.double()
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

    def recalibrated(self, calibration: Calibration, at: Places) -> BinDistribution:
        """Sharpen, then map every cumulative probability to the share that validation saw below it.

        Parameters
        ----------
        at : where the (C,) cells lie
        """
        probs, low, step = torch.empty_like(self.probs), self.low.clone(), self.step.clone()
        group = reach_group(at.nearest)
        for number, levels in enumerate(calibration.by_reach):
            own = group == number
            sharp = self.take(own).sharpened(calibration.blur, levels.floor)
            cumulative = sharp.probs.double().cumsum(-1)
            level = (cumulative / cumulative[..., -1:]).clamp(0, 1)
            mapped = levels.apply(level, at.share[own, None].expand(level.shape))
            mapped = calibration.of_variates(mapped, at.variate[own])
            mass = mapped.diff(dim=-1, prepend=torch.zeros_like(mapped[..., :1]))
            probs[own], low[own], step[own] = mass.to(probs.dtype), sharp.low, sharp.step
        return BinDistribution(probs, low, step)

    def take(self, chosen: Tensor) -> BinDistribution:
        """Some of the cells."""
        return BinDistribution(self.probs[chosen], self.low[chosen], self.step[chosen])

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


REACH = (1.5, 3.5)
"""Edges between groups of cells, in steps to the nearest visible cell: 1, 2 to 3, more."""


def reach_group(nearest: Tensor) -> Tensor:
    """(...,) which of the groups cells belong to, by steps to the nearest visible cell."""
    return torch.bucketize(nearest, torch.tensor(REACH, dtype=nearest.dtype, device=nearest.device))


@dataclass(frozen=True, eq=False)
class Places:
    """Where C cells lie, as far as it says how sure one can be of them."""

    share: Tensor
    """(C,) masked share of the window each cell was predicted in."""
    nearest: Tensor
    """(C,) steps to the nearest visible cell of the variate; infinite where there is none."""
    variate: Tensor
    """(C,) int64."""


@dataclass(frozen=True)
class LevelMap:
    """A monotone map of cumulative probabilities, linear between knots."""

    predicted: tuple[float, ...]
    """(P,) levels of a distribution function, strictly rising from 0 to 1."""
    actual: tuple[float, ...]
    """(P,) share of the validation cells at or below them, rising from 0 to 1."""

    @classmethod
    def fit(cls, levels: Tensor, num_knots: int, doubt: float = 0.0) -> LevelMap:
        """From (C,) levels at the truth: their own quantiles.

        Parameters
        ----------
        doubt : what the belief that nothing is to be changed counts for, in cells
        """
        actual = torch.linspace(0, 1, num_knots, dtype=torch.float64)
        knots = torch.quantile(levels.cpu(), actual)
        knots = torch.lerp(actual, knots, len(levels) / (len(levels) + doubt))
        # Nothing lies beyond the ends; strictly rising keeps the map invertible.
        knots[0], knots[-1] = 0.0, 1.0
        ramp = torch.linspace(0, 1e-6, num_knots, dtype=torch.float64)
        knots = (knots.cummax(0).values + ramp) / (1 + 1e-6)
        return cls(tuple(knots.tolist()), tuple(actual.tolist()))

    @classmethod
    def none(cls, num_knots: int) -> LevelMap:
        """The map that changes nothing."""
        even = tuple(torch.linspace(0, 1, num_knots, dtype=torch.float64).tolist())
        return cls(even, even)

    def apply(self, levels: Tensor) -> Tensor:
        """Map predicted levels to actual ones, elementwise."""
        predicted_1P, actual_1P = (levels.new_tensor([x]) for x in (self.predicted, self.actual))
        return _between(predicted_1P, actual_1P, levels.reshape(1, -1)).view(levels.shape)


def _between(predicted_NP: Tensor, actual_NP: Tensor, levels_NK: Tensor) -> Tensor:
    """Interpolate linearly between knots, row by row."""
    index = torch.searchsorted(predicted_NP.contiguous(), levels_NK.contiguous())
    index = index.clamp(1, predicted_NP.shape[1] - 1)
    x0, x1 = predicted_NP.gather(1, index - 1), predicted_NP.gather(1, index)
    y0, y1 = actual_NP.gather(1, index - 1), actual_NP.gather(1, index)
    return (y0 + (levels_NK - x0) / (x1 - x0) * (y1 - y0)).clamp(0, 1)


@dataclass(frozen=True)
class Levels:
    """How sharp a group of cells is, and what its levels mean.

    A network is surer than it should be where little is visible and less sure where much is, so
    there is one map for each of several masked shares of the window, and linear between them.
    """

    floor: float
    """Least standard deviation that is left, in bins."""
    shares: tuple[float, ...]
    """(G,) rising masked shares."""
    maps: tuple[LevelMap, ...]
    """(G,)"""

    @classmethod
    def fit(
        cls, distribution: BinDistribution, truth: Tensor, shares: Tensor, blur: float
    ) -> Levels:
        """Fit from C validation cells (see :meth:`Calibration.fit`)."""
        # The least spread left is the one that scores best; none of it is the network's own.
        floors = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
        scores = [float(distribution.sharpened(blur, f).crps(truth).mean()) for f in floors]
        floor = floors[scores.index(min(scores))]
        levels = distribution.sharpened(blur, floor).cdf(truth)
        shares = shares.double()
        num_groups = max(1, min(3, levels.numel() // 300))
        # A knot should stand on about thirty cells.
        num_knots = max(2, min(41, levels.numel() // num_groups // 30 + 2))
        edges = torch.quantile(shares, torch.arange(1, num_groups).double() / num_groups)
        member = torch.bucketize(shares, edges)
        centers, maps = [], []
        for group in range(num_groups):
            inside = member == group
            if not inside.any():
                continue  # equal shares stay together
            centers.append(float(shares[inside].mean()))
            maps.append(LevelMap.fit(levels[inside], num_knots))
        return cls(floor, tuple(centers), tuple(maps))

    def apply(self, levels: Tensor, shares: Tensor) -> Tensor:
        """Map predicted levels to actual ones, elementwise, at the given masked shares."""
        mapped = self.maps[0].apply(levels)
        for group in range(1, len(self.shares)):
            low, high = self.shares[group - 1], self.shares[group]
            weight = ((shares - low) / max(high - low, 1e-9)).clamp(0, 1)
            step = self.maps[group].apply(levels) - self.maps[group - 1].apply(levels)
            mapped = mapped + weight * step
        return mapped


@dataclass(frozen=True)
class Calibration:
    """What makes distributions sharp and their intervals cover what they promise.

    Soft labels teach a network to blur what it knows; that blur is known and taken away again.
    Then come monotone maps of probabilities: first for single missing cells and long gaps apart,
    then for each variate.
    """

    MIN_CELLS: ClassVar[int] = 200
    """Of a group, from which on it is judged by itself."""
    KNOTS: ClassVar[int] = 21
    """Of a variate's map."""
    DOUBT: ClassVar[float] = 500.0
    """Of a variate's map, see :meth:`LevelMap.fit`."""

    blur: float
    """Variance that the labels add, in bins²."""
    by_reach: tuple[Levels, ...]
    """One for each group of cells, see :func:`reach_group`."""
    by_variate: tuple[LevelMap, ...]
    """(V,) what is left to be corrected: little, where a variate has few cells to tell."""

    @classmethod
    def fit(
        cls,
        distribution: BinDistribution,
        truth: Tensor,
        at: Places,
        blur: float,
        num_variates: int,
    ) -> Calibration:
        """Fit from C validation cells.

        Parameters
        ----------
        distribution : over (C,) cells
        truth : (C,) the known values
        at : where the cells lie
        blur : variance that the labels add, in bins²
        """
        group = reach_group(at.nearest)
        levels = torch.empty_like(truth)
        by_reach = []
        for number in range(len(REACH) + 1):
            own = group == number
            # A group with few cells is judged with all.
            seen = own if int(own.sum()) >= cls.MIN_CELLS else torch.ones_like(own)
            found = Levels.fit(distribution.take(seen), truth[seen], at.share[seen], blur)
            sharp = distribution.take(own).sharpened(blur, found.floor)
            levels[own] = found.apply(sharp.cdf(truth[own]), at.share[own].double())
            by_reach.append(found)
        by_variate = []
        for variate in range(num_variates):
            own = levels[at.variate == variate]
            fitted = LevelMap.fit(own, cls.KNOTS, cls.DOUBT) if len(own) else None
            by_variate.append(fitted or LevelMap.none(cls.KNOTS))
        return cls(blur, tuple(by_reach), tuple(by_variate))

    def of_variates(self, levels_CK: Tensor, variate_C: Tensor) -> Tensor:
        """Map (C, K) levels of cells by the maps of their variates."""
        predicted_VP = levels_CK.new_tensor([one.predicted for one in self.by_variate])
        actual_VP = levels_CK.new_tensor([one.actual for one in self.by_variate])
        return _between(predicted_VP[variate_C], actual_VP[variate_C], levels_CK)

    @classmethod
    def from_dict(cls, tree: dict[str, Any] | None) -> Calibration | None:
        """Rebuild from `dataclasses.asdict`; None stays None."""
        if tree is None:
            return None

        def level_map(one: dict[str, Any]) -> LevelMap:
            return LevelMap(tuple(one["predicted"]), tuple(one["actual"]))

        by_reach = tuple(
            Levels(one["floor"], tuple(one["shares"]), tuple(map(level_map, one["maps"])))
            for one in tree["by_reach"]
        )
        return cls(tree["blur"], by_reach, tuple(map(level_map, tree["by_variate"])))


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
