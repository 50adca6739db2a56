"""Which rows each piece must see, so that its cells are those of the whole data set.

A series that lies in several pieces is cut at the pieces' edges. A cut is widened to all that the
windows over it see (its halo, read from the neighbouring pieces), and knows the nearest observed
cells beyond that. All this is a function of the runs and the length of a window; no values of the
data set are held here. R runs, V variates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mdtim.batch.runs import Runs
from mdtim.batch.source import Piece
from mdtim.panel import FloatArray, IntArray, SeriesMoments
from mdtim.series_scales import SeriesScales
from mdtim.tables.grid import Spacing, steps_between
from mdtim.windows import halo


@dataclass(frozen=True, eq=False)
class Cuts:
    """The cuts of one piece, one for each of its C series. Steps count along the series."""

    names: NDArray[np.str_]
    """(C,)"""
    begins: IntArray
    """(C,) step of the series at which the cut begins."""
    wide_begins: IntArray
    """(C,) first step to be seen."""
    wide_ends: IntArray
    """(C,) first step that need not be seen."""
    before_steps: IntArray
    """(C, V) the last observed cell before all that is seen."""
    before_values: FloatArray
    """(C, V) its value, NaN where there is none."""
    after_steps: IntArray
    """(C, V) the first observed cell after all that is seen."""
    after_values: FloatArray
    """(C, V) its value, NaN where there is none."""
    counts: IntArray
    """(C, V) known values of the whole series, 0 where the model need not know."""
    means: FloatArray
    """(C, V) their mean."""
    stds: FloatArray
    """(C, V) their std."""

    def digest(self) -> bytes:
        """Checksum of everything here."""
        digest = hashlib.sha256()
        for item in fields(self):
            array = getattr(self, item.name)
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A piece from which some cuts of another one take rows."""

    piece: int
    cuts: IntArray
    """(H,) which of the cuts."""
    begins: IntArray
    """(H,) step at which the neighbour's own run of that series begins."""


@dataclass(frozen=True, eq=False)
class PiecePlan:
    """A piece, its cuts, and where their halo is read."""

    cuts: Cuts
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """R runs one after the other along their series."""

    runs: Runs
    """Sorted by series, then time."""
    series: IntArray
    """(R,) number of the series."""
    begins: IntArray
    """(R,) step of the series at which the run begins."""
    totals: IntArray
    """(R,) steps of the whole series."""


def lay_out(runs: Runs, pieces: Sequence[Piece], spacing: Spacing, *, timed: bool) -> Layout:
    """Put the runs of each series in order.

    Parameters
    ----------
    runs : of all pieces that could be read
    pieces : all pieces; runs refer to them by number
    spacing : of the whole data set
    timed : whether the rows have times; otherwise pieces follow each other in their order

    Raises
    ------
    ValueError
        If two pieces hold the same time of one series, or lie no whole step apart.
    """
    _, series = np.unique(runs.names, return_inverse=True)
    order = np.lexsort((runs.pieces, runs.first, series) if timed else (runs.pieces, series))
    runs, series = runs.take(order), series[order]
    joined = series[1:] == series[:-1]
    gaps = np.ones(len(joined), dtype=np.int64)
    if timed:
        distances = np.where(joined, runs.first[1:] - runs.last[:-1], 1)
        gaps = steps_between(distances, spacing)
        wrong = np.flatnonzero(joined & ((distances <= 0) | (gaps < 1)))
        if wrong.size:
            raise ValueError(_overlap(runs, pieces, int(wrong[0])))
    ahead = np.append(0, np.cumsum(runs.steps[:-1] - 1 + gaps))
    is_first, is_last = np.append(True, ~joined), np.append(~joined, True)
    number = np.cumsum(is_first) - 1
    begins = ahead - ahead[is_first][number]
    return Layout(runs, series, begins, (begins + runs.steps)[is_last][number])


def _overlap(runs: Runs, pieces: Sequence[Piece], which: int) -> str:
    here, there = (pieces[int(runs.pieces[which + k])].part.name for k in (0, 1))
    name = str(runs.names[which])
    what = f"series {name!r}" if name else "the series"
    return (
        f"{what} overlaps in time between {here} and {there}; each time of a series belongs into "
        "one part (with several series, name their column with --id)"
    )


def make_plan(
    layout: Layout, length: int, series_scales: SeriesScales | None = None
) -> dict[int, PiecePlan]:
    """Plan every piece that has runs.

    Parameters
    ----------
    length : steps of the model's windows
    series_scales : the model's; of series that have no scale there a piece must know their own
    """
    runs, series, begins = layout.runs, layout.series, layout.begins
    ends = begins + runs.steps
    wide_begins, wide_ends = halo(begins, ends, layout.totals, length)
    before = _nearest(series, begins[:, None] + runs.last_seen, runs.last_seen, runs.last_value)
    backwards = slice(None, None, -1)
    after = _nearest(
        series[backwards],
        (begins[:, None] + runs.first_seen)[backwards],
        runs.first_seen[backwards],
        runs.first_value[backwards],
    )
    before_steps, before_values = before
    after_steps, after_values = after[0][backwards], after[1][backwards]
    # What lies inside the halo is seen there.
    before_values = np.where(before_steps < wide_begins[:, None], before_values, np.nan)
    after_values = np.where(after_steps >= wide_ends[:, None], after_values, np.nan)
    cuts = Cuts(
        runs.names,
        begins,
        wide_begins,
        wide_ends,
        np.where(np.isnan(before_values), 0, before_steps),
        before_values,
        np.where(np.isnan(after_values), 0, after_steps),
        after_values,
        *_whole_moments(runs, series, series_scales),
    )
    links = _links(series, begins, ends, wide_begins, wide_ends)
    return _by_piece(runs, cuts, links)


def _whole_moments(
    runs: Runs, series: IntArray, known: SeriesScales | None
) -> tuple[IntArray, FloatArray, FloatArray]:
    """(R, V) counts, means and stds of the whole series, where a model needs them."""
    shape = runs.counts.shape
    if known is None:
        return np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    _, number = np.unique(series, return_inverse=True)
    starts = np.searchsorted(number, np.arange(number[-1] + 1))

    def mean_of(values: FloatArray) -> FloatArray:
        parts = np.add.reduceat(share * values, starts)
        return parts[number]

    counts = np.add.reduceat(runs.counts, starts)[number]
    share = runs.counts / np.maximum(counts, 1)
    mean = mean_of(runs.means)
    away = runs.means - mean
    # The largest is taken out, so that no square is 0 or infinite.
    largest = np.maximum.reduceat(np.maximum(runs.stds, np.abs(away)), starts)[number]
    unit = np.where(largest > 0, largest, 1.0)
    std = unit * np.sqrt(mean_of((runs.stds / unit) ** 2 + (away / unit) ** 2))
    whole = SeriesMoments(counts, mean, std)
    wanted = known.outgrown(runs.names.tolist(), whole)
    return np.where(wanted, counts, 0), np.where(wanted, mean, 0.0), np.where(wanted, std, 0.0)


def _nearest(
    series: IntArray, steps: IntArray, seen: IntArray, values: FloatArray
) -> tuple[IntArray, FloatArray]:
    """(R, V) step and value of the last observed cell in earlier runs of the series, or NaN."""
    count, num_variates = seen.shape
    latest = np.maximum.accumulate(np.where(seen >= 0, np.arange(count)[:, None], -1), axis=0)
    latest = np.concatenate([np.full((1, num_variates), -1), latest[:-1]])
    there = np.maximum(latest, 0)
    found = (latest >= 0) & (series[there] == series[:, None])
    variate = np.arange(num_variates)
    return steps[there, variate], np.where(found, values[there, variate], np.nan)


def _links(
    series: IntArray, begins: IntArray, ends: IntArray, wide_begins: IntArray, wide_ends: IntArray
) -> tuple[IntArray, IntArray]:
    """(L,) pairs of runs: the first takes rows of its halo from the second."""
    takers, givers = [], []
    count = len(series)
    for direction in (-1, 1):
        taker = np.arange(count)
        giver = taker
        while True:
            giver = giver + direction
            inside = (giver >= 0) & (giver < count)
            taker, giver = taker[inside], giver[inside]
            near = series[taker] == series[giver]
            near &= (ends[giver] > wide_begins[taker]) & (begins[giver] < wide_ends[taker])
            taker, giver = taker[near], giver[near]
            if not len(taker):
                break
            takers.append(taker)
            givers.append(giver)
    empty = np.zeros(0, dtype=np.int64)
    return np.concatenate([empty, *takers]), np.concatenate([empty, *givers])


def _by_piece(runs: Runs, cuts: Cuts, links: tuple[IntArray, IntArray]) -> dict[int, PiecePlan]:
    """Sort runs and links by the piece they belong to."""
    place = np.zeros(len(runs), dtype=np.int64)
    members: dict[int, IntArray] = {}
    for piece, chosen in _groups(runs.pieces):
        members[piece] = chosen
        place[chosen] = np.arange(len(chosen))
    takers, givers = links
    neighbours: dict[int, list[Neighbour]] = {}
    for taking, among in _groups(runs.pieces[takers]):
        neighbours[taking] = [
            Neighbour(giving, place[takers[among[those]]], cuts.begins[givers[among[those]]])
            for giving, those in _groups(runs.pieces[givers[among]])
        ]
    return {
        piece: PiecePlan(
            Cuts(*(getattr(cuts, item.name)[chosen] for item in fields(Cuts))),
            tuple(neighbours.get(piece, ())),
        )
        for piece, chosen in members.items()
    }


def _groups(labels: IntArray) -> list[tuple[int, IntArray]]:
    """Each label with the places where it stands, both rising."""
    order = np.argsort(labels, kind="stable")
    found, first = np.unique(labels[order], return_index=True)
    parts = np.split(order, first[1:])
    return (
        [(int(label), part) for label, part in zip(found, parts, strict=True)]
        if len(labels)
        else []
    )
