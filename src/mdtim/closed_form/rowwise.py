"""What the other variates of a step say of a cell, by the law of the whole table's rows.

A network reads a window around its own middle. Where a window shows nothing of a variate, for a
sensor was dead for months, it cannot know at what level the variate lies; the other variates know.
Here the rows of a table are taken for draws of one normal law. A cell is what the visible cells of
its row make likeliest, and what that leaves unexplained at the nearest visible cells of the variate
goes on for as long as it does elsewhere in the table. What is usual at the time of a row
(:mod:`mdtim.closed_form.profile`) is taken from it first, and given back in the end.

N rows, V variates, K variates that are asked, L lags, B windows, T steps, C cells, U systems.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mdtim.closed_form.guesses import Neighbours
from mdtim.closed_form.seldom import SELDOM, learn_seldom, seldom_known
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.scaling import ABSURD

FAR = 8
"""Steps of a gap beyond which rows are asked; within, the network knows better."""
MAX_ASKED = 32
"""Of more variates those are asked that have most to do with one."""
RIDGE = 3e-3
"""Added to every variance, as a share of it."""
DOUBT = 1.0
"""Rows that speak against every slope in the first look, times the root of the slopes."""
ROUNDS = 3
"""Of expectation and maximization behind the first look."""
MAX_VARIATES, MAX_ROWS, MAX_ENTRIES = 64, 6_000, 8_000_000
"""Of a table that is looked at more than once."""
STRETCH, MAX_STRETCHES = 4_096, 8
"""Successive rows in which one can see how long what is unexplained lasts."""
NUM_LAGS = 11
"""Of 1 step, 2, up to 4, up to 8 and so on."""
LASTS = 0.8
"""Correlation, over half of such a gap, from which on a line bridges it."""
_SHORT = 2
"""Of the lags the one of that many steps, 3 to 4."""
_FEW = 10.0
"""Pairs of cells that say little of how alike cells at a lag are."""
NUGGET = 0.01
"""Share of what is unexplained that does not last for a step."""
_AT_ONCE = 20_000
"""Systems that are solved together."""


@dataclass(frozen=True, eq=False)
class RowModel:
    """The law of a table's rows, in standardized units; float64, on the CPU."""

    mean_V: Tensor
    covariance_VV: Tensor
    lasting_VL: Tensor
    """Correlation, at growing lags, of what all others leave unexplained."""
    lasting_alone_VL: Tensor
    """The same where no other says anything."""
    seldom_V: Tensor
    """bool, the variates that the table seldom knows."""

    @classmethod
    def fit(cls, values_NV: FloatArray, offsets: IntArray) -> RowModel:
        """Read the law off series one below the other, NaN where missing."""
        values_NV = np.where(np.abs(values_NV) <= ABSURD, values_NV, np.nan)
        mean_V, covariance_VV = _first_look(values_NV)
        count, num_variates = values_NV.shape
        most = min(MAX_ROWS, MAX_ENTRIES // num_variates**2)
        if num_variates <= MAX_VARIATES:
            some = values_NV[np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))]
            for _ in range(ROUNDS):
                mean_V, covariance_VV = _look_again(some, mean_V, covariance_VV)
        mean_V, covariance_VV = learn_seldom(values_NV, offsets, mean_V, covariance_VV)
        lasting = _lasting(values_NV, offsets, mean_V, covariance_VV)
        known = (mean_V, covariance_VV, *lasting, seldom_known(~np.isnan(values_NV)))
        return cls(*map(torch.from_numpy, known))

    def say(
        self,
        values_BTV: Tensor,
        neighbours: Neighbours,
        wanted_BTV: Tensor,
        shown_B1V: Tensor,
        usual_BTV: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Value and std (C,) float64 of the wanted cells; NaN of those that are not asked about.

        Asked about are cells of long gaps, and all of a variate that the table seldom knows where a
        window shows little of it too.

        Parameters
        ----------
        values_BTV : standardized, anything where not visible
        neighbours : of the visible cells
        wanted_BTV : bool, cells that are not visible
        shown_B1V : share of the window's steps at which the variate is visible
        usual_BTV : what was taken from the table's rows before their law was read
        """
        device = values_BTV.device
        value_C = torch.full((int(wanted_BTV.sum()),), torch.nan, dtype=torch.float64)
        value_C = value_C.to(device)
        spread_C = value_C.clone()
        visible_BTV, gap_BTV = neighbours.visible_BTV, neighbours.gap_BTV
        is_little_B1V = (shown_B1V < SELDOM) & self.seldom_V.to(device)
        far_BTV = wanted_BTV & ((gap_BTV > FAR) | is_little_B1V)
        if not far_BTV.any():
            return value_C, spread_C
        window, step, variate = far_BTV.nonzero(as_tuple=True)
        mean_BTV = self.mean_V.to(device).expand(values_BTV.shape)
        if usual_BTV is not None:
            mean_BTV = mean_BTV + usual_BTV
        away_BTV = torch.where(visible_BTV, values_BTV.double() - mean_BTV, 0.0)
        asked_CK = self.asked_VK.to(device)[variate]
        # A short gap of a variate that lasts is bridged by a line, and so is a cell beside, of
        # which the row does not know all that is asked.
        lasts_V = self.lasting_alone_VL[:, _SHORT].to(device) >= LASTS
        near_BTV = visible_BTV | ((gap_BTV <= FAR) & lasts_V)
        line_BTV = neighbours.line(away_BTV.to(values_BTV.dtype)).double()
        bridged_BTV = torch.where(visible_BTV, away_BTV, line_BTV)
        known_CK = near_BTV[window[:, None], step[:, None], asked_CK]
        slopes_CK, left_C = (part.to(device) for part in self._slopes(variate, known_CK))
        own = bridged_BTV[window[:, None], step[:, None], asked_CK]
        told_C = (slopes_CK * own).sum(-1)
        lasting = self._lasting_of(variate, left_C)
        sides = (
            (neighbours.left_BTV, neighbours.to_left_BTV),
            (neighbours.right_BTV, neighbours.to_right_BTV),
        )
        unexplained, likeness, distances = [], [], []
        for at_BTV, distance_BTV in sides:
            at, distance = at_BTV[far_BTV], distance_BTV[far_BTV].double()
            told = slopes_CK * bridged_BTV[window[:, None], at[:, None], asked_CK]
            unexplained.append(away_BTV[window, at, variate] - told.sum(-1))
            likeness.append(_at_distance(lasting, distance))
            distances.append(distance)
        left, right = likeness
        between = _at_distance(lasting, distances[0] + distances[1])
        whole = 1 + NUGGET
        scale = whole**2 - between**2
        of_left = (whole * left - between * right) / scale
        of_right = (whole * right - between * left) / scale
        chosen = far_BTV[wanted_BTV]
        value_C[chosen] = (
            mean_BTV[far_BTV] + told_C + of_left * unexplained[0] + of_right * unexplained[1]
        )
        rest = 1 - (of_left * left + of_right * right)
        spread_C[chosen] = (left_C * rest.clamp_min(NUGGET)).sqrt()
        return value_C, spread_C

    @cached_property
    def asked_VK(self) -> Tensor:
        """(V, K) the variates that each one is asked of; itself where there are too few."""
        deviation_V = self.covariance_VV.diagonal().clamp_min(1e-12).sqrt()
        likeness = (self.covariance_VV / deviation_V / deviation_V[:, None]).abs()
        likeness.fill_diagonal_(-1.0)
        count = max(1, min(MAX_ASKED, len(likeness) - 1))
        return likeness.topk(count).indices.sort(dim=-1).values

    def _slopes(self, variate_C: Tensor, known_CK: Tensor) -> tuple[Tensor, Tensor]:
        """Regression of cells on what is known beside them, (C, K), and the variance left."""
        variate_C, known_CK = variate_C.cpu(), known_CK.cpu()
        places = torch.arange(known_CK.shape[1])
        # Cells of one variate that know the same have one system.
        keys = (variate_C << MAX_ASKED) | (known_CK.long() << places).sum(-1)
        systems, member_C = torch.unique(keys, return_inverse=True)
        variate_U = systems >> MAX_ASKED
        known_UK = (systems[:, None] >> places) & 1 > 0
        solved = [
            self._solve(variate_U[begin : begin + _AT_ONCE], known_UK[begin : begin + _AT_ONCE])
            for begin in range(0, len(systems), _AT_ONCE)
        ]
        slopes_UK, left_U = (torch.cat(parts) for parts in zip(*solved, strict=True))
        return slopes_UK[member_C], left_U[member_C]

    def _solve(self, variate_U: Tensor, known_UK: Tensor) -> tuple[Tensor, Tensor]:
        ridged_VV = torch.from_numpy(_ridged(self.covariance_VV.numpy()))
        asked_UK = self.asked_VK[variate_U]
        # A variate that does not know itself is asked for nothing.
        known_UK = known_UK & (asked_UK != variate_U[:, None])
        both = known_UK[:, :, None] & known_UK[:, None, :]
        among_UKK = torch.where(both, ridged_VV[asked_UK[:, :, None], asked_UK[:, None, :]], 0.0)
        among_UKK = among_UKK + torch.diag_embed((~known_UK).double())
        with_own_UK = self.covariance_VV[variate_U[:, None], asked_UK] * known_UK
        factor = torch.linalg.cholesky_ex(among_UKK).L
        slopes_UK = torch.cholesky_solve(with_own_UK[:, :, None], factor).squeeze(-1)
        whole_U = self.covariance_VV.diagonal()[variate_U]
        left_U = whole_U - (slopes_UK * with_own_UK).sum(-1)
        return slopes_UK, torch.maximum(left_U, RIDGE * whole_U + 1e-9)

    @cached_property
    def least_V(self) -> Tensor:
        """(V,) variance that is left where all that is asked is known."""
        variate_V = torch.arange(len(self.mean_V))
        return self._slopes(variate_V, torch.ones_like(self.asked_VK, dtype=torch.bool))[1]

    def _lasting_of(self, variate_C: Tensor, left_C: Tensor) -> Tensor:
        """(C, L) correlations between those with all known beside and with nothing known."""
        parts = (
            self.least_V,
            self.covariance_VV.diagonal(),
            self.lasting_VL,
            self.lasting_alone_VL,
        )
        least_V, most_V, related_VL, alone_VL = (part.to(left_C.device) for part in parts)
        least_C, most_C = least_V[variate_C], most_V[variate_C]
        share_C = ((left_C - least_C) / (most_C - least_C).clamp_min(1e-9)).clamp(0, 1)
        return torch.lerp(related_VL[variate_C], alone_VL[variate_C], share_C[:, None])

    def to_tensors(self) -> dict[str, Tensor]:
        """For a file of weights."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> RowModel:
        """Rebuild from :meth:`to_tensors`."""
        return cls(**tensors)


def _ridged(covariance_VV: FloatArray) -> FloatArray:
    return covariance_VV + np.diag(RIDGE * covariance_VV.diagonal() + 1e-6)


def _at_distance(lasting_CL: Tensor, distance_C: Tensor) -> Tensor:
    """Correlations (C,) at a distance in steps; none at infinity."""
    place = distance_C.clamp(1, 2.0 ** (NUM_LAGS - 1)).log2()
    low = place.floor().long().clamp_max(NUM_LAGS - 2)
    first, second = (lasting_CL.gather(1, (low + k)[:, None]).squeeze(1) for k in (0, 1))
    return torch.where(torch.isfinite(distance_C), torch.lerp(first, second, place - low), 0.0)


# -- reading the law ------------------------------------------------------------------------


def _first_look(values_NV: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance: variates filled one after the other, the best known first.

    Each is regressed on those before it, over the rows that know it. Where what is known of one is
    known of the next as well, that is all there is to find out, however seldom a variate is known.
    """
    known_NV = ~np.isnan(values_NV)
    count_V = known_NV.sum(0)
    filled_NV = np.where(known_NV, values_NV, 0.0)
    mean_V = filled_NV.sum(0) / np.maximum(count_V, 1)
    noise_V = np.zeros(len(mean_V))
    # Of equally many it is told by what they hold, not by where they stand.
    order = np.lexsort((filled_NV.sum(0), -count_V))
    for number, variate in enumerate(order):
        known = known_NV[:, variate]
        if known.all():
            continue
        before = _most_alike(filled_NV, known, variate, order[:number])
        there, own = filled_NV[known][:, before], filled_NV[known, variate]
        middle = there.mean(0) if len(there) else np.zeros(len(before))
        away, own_away = there - middle, own - mean_V[variate]
        system = away.T @ away + DOUBT * len(before) ** 0.5 * np.eye(len(before))
        slopes = np.linalg.solve(system, away.T @ own_away)
        filled_NV[~known, variate] = (
            mean_V[variate] + (filled_NV[~known][:, before] - middle) @ slopes
        )
        if len(own):
            noise_V[variate] = np.square(own_away - away @ slopes).mean() * (~known).mean()
    away_NV = filled_NV - filled_NV.mean(0)
    covariance_VV = away_NV.T @ away_NV / len(away_NV) + np.diag(noise_V)
    return filled_NV.mean(0), _free_of_chance(covariance_VV, known_NV)


def _most_alike(
    filled_NV: FloatArray, known: BoolArray, variate: int, before: IntArray
) -> IntArray:
    """Those of some variates that move most like one, if they are many."""
    if len(before) <= MAX_ASKED:
        return before
    away = filled_NV[known][:, before] - filled_NV[known][:, before].mean(0)
    own = filled_NV[known, variate] - filled_NV[known, variate].mean()
    size = np.sqrt(np.square(away).sum(0)) + 1e-12
    return before[np.argsort(-np.abs(own @ away) / size, kind="stable")[:MAX_ASKED]]


def _free_of_chance(covariance_VV: FloatArray, known_NV: BoolArray) -> FloatArray:
    """Shrink what variates seem to have to do with each other by what chance alone would show."""
    count_V = known_NV.sum(0)
    fewer_VV = np.minimum(count_V, count_V[:, None])
    kept_VV = fewer_VV / (fewer_VV + min(len(count_V), MAX_ASKED))
    np.fill_diagonal(kept_VV, 1.0)
    # Entries shrunk unevenly need not make a covariance together: the nearest one does.
    values, vectors = np.linalg.eigh(covariance_VV * kept_VV)
    found: FloatArray = (vectors * np.maximum(values, 1e-6 * values.mean())) @ vectors.T
    return found


def _look_again(
    values_NV: FloatArray, mean_V: FloatArray, covariance_VV: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """One round of expectation and maximization."""
    known_NV = ~np.isnan(values_NV)
    patterns, member_N, counts = np.unique(
        known_NV, axis=0, return_inverse=True, return_counts=True
    )
    away_NV = np.where(known_NV, values_NV - mean_V, 0.0)
    filled_NV, doubt_VV = np.empty_like(away_NV), np.zeros_like(covariance_VV)
    slopes_PVV, left_PVV = _given(patterns, covariance_VV)
    filled_NV = np.where(
        known_NV, away_NV, (slopes_PVV[member_N.ravel()] @ away_NV[:, :, None]).squeeze(-1)
    )
    doubt_VV = (left_PVV * counts[:, None, None]).sum(0)
    shift_V = filled_NV.mean(0)
    filled_NV -= shift_V
    return mean_V + shift_V, (filled_NV.T @ filled_NV + doubt_VV) / len(filled_NV)


def _given(patterns_PV: BoolArray, covariance_VV: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each pattern of known variates: slopes (P, V, V) on them, and the covariance left."""
    known_PV = torch.from_numpy(patterns_PV)
    covariance = torch.from_numpy(covariance_VV)
    both = known_PV[:, :, None] & known_PV[:, None, :]
    among = torch.where(both, torch.from_numpy(_ridged(covariance_VV)), 0.0)
    factor = torch.linalg.cholesky_ex(among + torch.diag_embed((~known_PV).double())).L
    with_known_PVV = covariance * known_PV[:, None, :]
    slopes_PVV = torch.cholesky_solve(with_known_PVV.mT, factor).mT
    left_PVV = covariance - slopes_PVV @ with_known_PVV.mT
    left_PVV *= ~known_PV[:, :, None] & ~known_PV[:, None, :]
    return slopes_PVV.numpy(), left_PVV.numpy()


def _lasting(
    values_NV: FloatArray, offsets: IntArray, mean_V: FloatArray, covariance_VV: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(V, L) correlations of what is unexplained by all others, and of the variates themselves."""
    precision_VV = np.linalg.inv(_ridged(covariance_VV))
    shape = (values_NV.shape[1], 2**NUM_LAGS)
    sums = [np.zeros(shape) for _ in range(4)]
    for part_NV in _stretches(values_NV, offsets):
        known_NV = ~np.isnan(part_NV)
        alone_NV = np.where(known_NV, part_NV - mean_V, 0.0)
        filled_NV = _bridged(alone_NV, known_NV)
        related_NV = filled_NV @ precision_VV / precision_VV.diagonal() * known_NV
        for number, part in enumerate((related_NV, alone_NV)):
            products, pairs = _at_lags(part, known_NV, shape[1])
            sums[2 * number] += products
            sums[2 * number + 1] += pairs
    return _correlations(*sums[:2]), _correlations(*sums[2:])


def _stretches(values_NV: FloatArray, offsets: IntArray) -> Iterator[FloatArray]:
    """Successive rows of the table's series, evenly chosen if there are many."""
    begins = [
        (begin, min(begin + STRETCH, int(end)))
        for start, end in pairwise(offsets)
        for begin in range(int(start), int(end), STRETCH)
    ]
    every = -(-len(begins) // MAX_STRETCHES)
    for begin, end in begins[::every]:
        yield values_NV[begin:end]


def _bridged(away_NV: FloatArray, known_NV: BoolArray) -> FloatArray:
    """Lines over what is missing, 0 where nothing is known."""
    filled_NV, steps = away_NV.copy(), np.arange(len(away_NV))
    for variate, known in enumerate(known_NV.T):
        if known.any() and not known.all():
            filled_NV[~known, variate] = np.interp(
                steps[~known], steps[known], away_NV[known, variate]
            )
    return filled_NV


def _at_lags(
    away_NV: FloatArray, known_NV: BoolArray, num_lags: int
) -> tuple[FloatArray, FloatArray]:
    """(V, lags) sums of products of cells so many steps apart, and how many there were."""
    size = 2 ** math.ceil(math.log2(2 * len(away_NV)))
    found = []
    for part in (away_NV, known_NV.astype(np.float64)):
        spectrum = np.fft.rfft(part, size, axis=0)
        whole = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=0)[: min(num_lags, len(part))]
        found.append(np.pad(whole, ((0, num_lags - len(whole)), (0, 0))).T)
    return found[0], found[1]


def _correlations(products_VN: FloatArray, pairs_VN: FloatArray) -> FloatArray:
    """(V, L) correlations, never rising with the lag, never below 0."""
    variance_V = products_VN[:, 0] / np.maximum(pairs_VN[:, 0], 1.0)
    edges = np.append(1, 2 ** np.arange(NUM_LAGS) + 1)  # lag 1, 2, 3 to 4, 5 to 8, and so on
    parts = [slice(edges[k], edges[k + 1]) for k in range(NUM_LAGS)]
    products = np.stack([products_VN[:, part].sum(1) for part in parts], axis=1)
    pairs = np.stack([pairs_VN[:, part].sum(1) for part in parts], axis=1)
    found = products / np.maximum(variance_V, 1e-12)[:, None]
    # Few pairs say little: as if some more had been seen that are as alike as at the next lag.
    weight = pairs + _FEW
    following = np.zeros(len(found))
    for lag in reversed(range(NUM_LAGS)):
        following = (found[:, lag] + _FEW * following) / weight[:, lag]
        found[:, lag] = following
    return np.stack([_never_rising(*one) for one in zip(found, weight, strict=True)]).clip(0, 1)


def _never_rising(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The values nearest to some that never rise: neighbours that do are pooled."""
    means, sums, counts = list[float](), list[float](), list[int]()
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while means and means[-1] < mean:
            before, of_before = means.pop(), sums.pop()
            mean = (before * of_before + mean * total) / (of_before + total)
            total, count = total + of_before, count + counts.pop()
        means.append(mean)
        sums.append(total)
        counts.append(count)
    return np.repeat(means, counts)
