"""What makes distributions sharp and their intervals cover what they promise.

C cells, K bins, V variates, G masked shares, P knots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mdtim.distribution import BinDistribution

OPEN = 1e10
"""Steps of a gap of which a window shows one end."""
GAPS = (1.5, 3.5, 24.5, OPEN / 2, 2 * OPEN)
"""Edges between groups of cells, in steps of the gap they lie in: 1, 2 to 3, up to 24, more; then
those with nothing visible on one side, and those with nothing on both."""
NUM_GAPS = len(GAPS) + 1
CLUMPED = 1.2
"""Of a window whose gaps are longer than that, in units of :attr:`Places.clumping`, cells are
groups of their own: as much is missing, but in fewer places, and farther from what is visible."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where C cells lie, as far as it says how sure one can be of them."""

    share: Tensor
    """(C,) masked share of the window each cell was predicted in."""
    clumping: Tensor
    """(C,) mean length of that window's gaps, over what it would be if chance had masked it."""
    gap: Tensor
    """(C,) steps between the visible cells on both sides; :data:`OPEN` where one side has none,
    infinite where both have none."""
    variate: Tensor
    """(C,) int64."""

    def take(self, chosen: Tensor) -> Places:
        """Some of the cells."""
        return Places(
            self.share[chosen], self.clumping[chosen], self.gap[chosen], self.variate[chosen]
        )

    def group(self) -> Tensor:
        """(C,) which group cells belong to: by their gap, then by the gaps of their window."""
        edges = torch.tensor(GAPS, dtype=self.gap.dtype, device=self.gap.device)
        return torch.bucketize(self.gap, edges) + NUM_GAPS * (self.clumping > CLUMPED)


@dataclass(frozen=True)
class LevelMap:
    """A monotone map of cumulative probabilities, linear between knots."""

    predicted: tuple[float, ...]
    """(P,) levels of a distribution function, strictly rising from 0 to 1."""
    actual: tuple[float, ...]
    """(P,) share of the validation cells at or below them, rising from 0 to 1."""

    @classmethod
    def fit(cls, levels: Tensor, knots_at: Sequence[float], doubt: float = 0.0) -> LevelMap:
        """From (C,) levels at the truth: their own quantiles.

        Parameters
        ----------
        knots_at : (P,) shares of the cells, rising from 0 to 1
        doubt : what the belief that nothing is to be changed counts for, in cells
        """
        actual = torch.tensor(knots_at, dtype=torch.float64)
        knots = torch.quantile(levels.cpu(), actual)
        believed = len(levels) / (len(levels) + doubt)
        if doubt:
            # What chance would do to so many levels is doubted, what is far beyond it is not.
            believed = max(believed, 1 - 1 / max(1.0, _unevenness(levels)))
        knots = torch.lerp(actual, knots, believed)
        # Nothing lies beyond the ends; strictly rising keeps the map invertible.
        knots[0], knots[-1] = 0.0, 1.0
        ramp = torch.linspace(0, 1e-6, len(actual), dtype=torch.float64)
        knots = (knots.cummax(0).values + ramp) / (1 + 1e-6)
        return cls(tuple(knots.tolist()), tuple(actual.tolist()))

    @classmethod
    def none(cls, knots_at: Sequence[float]) -> LevelMap:
        """The map that changes nothing."""
        return cls(tuple(knots_at), tuple(knots_at))

    def apply(self, levels: Tensor) -> Tensor:
        """Map predicted levels to actual ones, elementwise."""
        predicted_1P, actual_1P = (levels.new_tensor([x]) for x in (self.predicted, self.actual))
        return _between(predicted_1P, actual_1P, levels.reshape(1, -1)).view(levels.shape)


def _unevenness(levels: Tensor) -> float:
    """How far (C,) levels are from even: what chance makes of even ones is about 1.

    Cramér and von Mises' statistic, by its mean.
    """
    count = len(levels)
    even = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    gaps = levels.cpu().double().sort().values - even
    return 6 * (float(gaps.square().sum()) + 1 / (12 * count))


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
        cls,
        distribution: BinDistribution,
        truth: Tensor,
        shares: Tensor,
        has_say: Tensor,
        blur: float,
    ) -> Levels:
        """Fit from C validation cells (see :meth:`Calibration.fit`).

        Parameters
        ----------
        has_say : (C,) cells that tell what levels mean; how sharp they may be is told by all
        """
        # The least spread left is the one that scores best; none of it is the network's own.
        floors = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
        scores = [float(distribution.sharpened(blur, f).crps(truth).mean()) for f in floors]
        floor = floors[scores.index(min(scores))]
        levels = distribution.sharpened(blur, floor).cdf(truth)[has_say]
        shares = shares[has_say].double()
        num_groups = max(1, min(5, levels.numel() // 300))
        edges = torch.quantile(shares, torch.arange(1, num_groups).double() / num_groups)
        member = torch.bucketize(shares, edges)
        centers, maps = [], []
        for group in range(num_groups):
            inside = member == group
            if not inside.any():
                continue  # equal shares stay together
            centers.append(float(shares[inside].mean()))
            maps.append(LevelMap.fit(levels[inside], _knots(int(inside.sum()))))
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


OFTEN = 0.2
"""Share of a variate's cells from which on one value comes often."""
ENOUGH = 50
"""Cells that can speak for all."""
KNOWN = 0.75
"""Share of a variate's levels in the middle half from which on its cells are all but known: they
say nothing of how uncertain others are."""


def _knots(num_cells: int) -> list[float]:
    """Shares of a group's cells to put knots at: even, and at the ends of the usual intervals."""
    # An even knot should stand on about thirty cells.
    num_even = max(2, min(41, num_cells // 30 + 2))
    ends = (0.025, 0.05, 0.95, 0.975) if num_cells >= 100 else ()
    return sorted({*torch.linspace(0, 1, num_even, dtype=torch.float64).tolist(), *ends})


@dataclass(frozen=True, eq=False)
class _Votes:
    """Which of C cells have a say in what levels mean."""

    varied: Tensor
    """(C,) those of variates that are not mostly one value."""
    unsettled: Tensor
    """(C,) those that are not said to be the value that their variate often has."""
    pooled: Tensor
    """(C,) those that are judged together, whatever their variate."""

    @classmethod
    def count(
        cls,
        distribution: BinDistribution,
        truth: Tensor,
        variate: Tensor,
        blur: float,
        num_variates: int,
    ) -> _Votes:
        varied, unsettled, uncertain = (
            torch.ones_like(variate, dtype=torch.bool) for _ in range(3)
        )
        levels = distribution.sharpened(blur, 0.2).cdf(truth)
        for number in range(num_variates):
            own = variate == number
            values, counts = torch.unique(truth[own], return_counts=True)
            if not len(counts):
                continue
            often = counts.max() / counts.sum()
            varied[own] = bool(2 * often <= 1)
            if often > OFTEN:
                value = values[counts.argmax()].expand(int(own.sum()))
                said, near = distribution.take(own), 1.5 * distribution.step[own]
                unsettled[own] = said.cdf(value + near) - said.cdf(value - near) <= 0.5
            inner = (levels[own] - 0.5).abs() < 0.25
            uncertain[own] = bool(inner.double().mean() < KNOWN)
        choices = (unsettled & varied & uncertain, unsettled & varied, unsettled)
        large = [one for one in choices if int(one.sum()) >= ENOUGH]
        few = varied if varied.any() else torch.ones_like(varied)
        pooled = large[0] if large else few
        return cls(varied, unsettled, pooled)


@dataclass(frozen=True)
class Calibration:
    """What makes distributions sharp and their intervals cover what they promise.

    Soft labels teach a network to blur what it knows; that blur is known and taken away again.
    Then come monotone maps of probabilities: first for single missing cells, gaps and open ends
    apart, each in windows where gaps lie as chance puts them and in windows where they come in
    clumps; then for each variate. Not all cells have a say in the first: where the truth is all but
    known, as of a row number, of rain on a dry day or of the sun at night, all levels are the same,
    and would make the intervals of the others too narrow.
    """

    MIN_CELLS: ClassVar[int] = 200
    """Of a group, from which on it is judged by itself."""
    KNOTS: ClassVar[tuple[float, ...]] = (
        *(0.0, 0.025, 0.05, 0.1, 0.25),
        *(0.5, 0.75, 0.9, 0.95, 0.975, 1.0),
    )
    """Of a variate's map: few, as its cells are, and at the ends of the usual intervals."""
    DOUBT: ClassVar[float] = 500.0
    """Of a variate's map, see :meth:`LevelMap.fit`."""
    JUDGED_CELLS: ClassVar[int] = 20_000
    """At most so many decide whether variates of mostly one value get a map."""

    blur: float
    """Variance that the labels add, in bins²."""
    by_place: tuple[Levels, ...]
    """One for each group of cells, see :meth:`Places.group`."""
    by_variate: tuple[LevelMap, ...]
    """(V,) what is left to be corrected: little where a variate has few cells to tell, nothing
    where it is mostly one value and a map would not help."""

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
        group = at.group()
        votes = _Votes.count(distribution, truth, at.variate, blur, num_variates)
        levels = torch.empty_like(truth)
        by_place: list[Levels] = []
        fitted: dict[str, Levels] = {}
        for number in range(2 * NUM_GAPS):
            own, gap = group == number, number % NUM_GAPS
            # A group with few cells is judged with all of its gap, those with all there are.
            wider = {
                f"group {number}": own,
                f"gap {gap}": group % NUM_GAPS == gap,
                "all": torch.ones_like(own),
            }
            large = [
                name
                for name, one in wider.items()
                if int((one & votes.pooled).sum()) >= cls.MIN_CELLS
            ]
            name = large[0] if large else "all"
            if name not in fitted:
                seen = wider[name]
                told = distribution.take(seen), truth[seen], at.share[seen], votes.pooled[seen]
                fitted[name] = Levels.fit(*told, blur)
            found = fitted[name]
            sharp = distribution.take(own).sharpened(blur, found.floor)
            levels[own] = found.apply(sharp.cdf(truth[own]), at.share[own].double())
            by_place.append(found)
        nothing = LevelMap.none(cls.KNOTS)
        plain = cls(blur, tuple(by_place), (nothing,) * num_variates)
        maps = list(plain._variate_maps(levels[votes.unsettled], at.variate[votes.unsettled]))
        if not votes.varied.all():
            helped = plain._helped(distribution, truth, at, levels, votes.unsettled)
            for number in torch.unique(at.variate[~votes.varied]).tolist():
                maps[number] = maps[number] if helped[number] else nothing
        return replace(plain, by_variate=tuple(maps))

    @classmethod
    def of_blur(cls, blur: float, floor: float, num_variates: int) -> Calibration:
        """Take away a known blur and nothing else.

        Parameters
        ----------
        floor : least standard deviation to leave, in bins
        """
        nothing = LevelMap.none(cls.KNOTS)
        levels = Levels(floor, (0.0,), (nothing,))
        return cls(blur, (levels,) * (2 * NUM_GAPS), (nothing,) * num_variates)

    def _variate_maps(self, levels: Tensor, variate: Tensor) -> tuple[LevelMap, ...]:
        """A map for each variate, from the levels of its cells."""
        maps = []
        for number, nothing in enumerate(self.by_variate):
            own = levels[variate == number]
            maps.append(LevelMap.fit(own, self.KNOTS, self.DOUBT) if len(own) else nothing)
        return tuple(maps)

    def _helped(
        self,
        distribution: BinDistribution,
        truth: Tensor,
        at: Places,
        levels: Tensor,
        unsettled: Tensor,
    ) -> list[bool]:
        """Which variates a map of their own helps: fitted to one half of the cells, on the other.

        A column that is mostly one value, as rain is, can be better off without.
        """
        first = torch.arange(len(truth), device=truth.device) < len(truth) // 2
        gain_V = torch.zeros(len(self.by_variate), dtype=torch.float64, device=truth.device)
        # Drawn, not every tenth: the variates take turns, and a stride could miss some.
        mixed = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))
        some = mixed[: self.JUDGED_CELLS].sort().values.to(truth.device)
        for fitted in (first, ~first):
            judged = some[~fitted[some]]
            told = fitted & unsettled
            maps = self._variate_maps(levels[told], at.variate[told])
            said, places = distribution.take(judged), at.take(judged)
            without, with_maps = (
                calibration.apply(said, places).crps(truth[judged])
                for calibration in (self, replace(self, by_variate=maps))
            )
            gain_V.index_add_(0, places.variate, without - with_maps)
        return (gain_V > 0).tolist()

    def apply(self, distribution: BinDistribution, at: Places) -> BinDistribution:
        """Sharpen, then map every cumulative probability to the share that validation saw below it.

        Parameters
        ----------
        distribution : over (C,) cells
        at : where the cells lie
        """
        probs = torch.empty_like(distribution.probs)
        low, step = distribution.low.clone(), distribution.step.clone()
        group = at.group()
        for number, levels in enumerate(self.by_place):
            own = group == number
            sharp = distribution.take(own).sharpened(self.blur, levels.floor)
            share, variate = at.share[own, None], at.variate[own]
            better = sharp.mapped(partial(self._change, levels, share, variate))
            probs[own], low[own], step[own] = better.probs, better.low, better.step
        return BinDistribution(probs, low, step)

    def _change(self, by: Levels, share_C1: Tensor, variate_C: Tensor, levels_CK: Tensor) -> Tensor:
        """Map (C, K) levels of cells of one group."""
        mapped_CK = by.apply(levels_CK, share_C1.expand(levels_CK.shape))
        return self._of_variates(mapped_CK, variate_C)

    def _of_variates(self, levels_CK: Tensor, variate_C: Tensor) -> Tensor:
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

        by_place = tuple(
            Levels(one["floor"], tuple(one["shares"]), tuple(map(level_map, one["maps"])))
            for one in tree["by_place"]
        )
        return cls(tree["blur"], by_place, tuple(map(level_map, tree["by_variate"])))
