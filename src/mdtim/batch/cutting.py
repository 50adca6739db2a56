"""Fill one piece of a data set, with what its neighbours say about its edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from mdtim.batch.plan import Cuts, PiecePlan
from mdtim.inference import Cells
from mdtim.model import FittedModel
from mdtim.panel import IntArray, Panel, SeriesMoments, Surroundings


def fill_piece(
    model: FittedModel,
    own: Panel,
    plan: PiecePlan,
    read: Callable[[int], Panel],
    *,
    keep_distribution: bool,
) -> Cells:
    """All that can be said about a piece's missing cells, its series taken as whole.

    Parameters
    ----------
    own : the piece
    plan : its cuts and neighbours
    read : gives the panel of a neighbour, by the number of its piece
    """
    panel = _widened(own, plan, read)
    cells = model.fill(panel, keep_distribution=keep_distribution)
    return _own_cells(cells, _places(own, plan.cuts), len(panel.values))


def _series_of(panel: Panel, cuts: Cuts) -> IntArray:
    """(S,) which cut each series of a panel is."""
    names = np.array([str(name) for name in panel.names] or [""])
    order = np.argsort(cuts.names)
    return np.asarray(order[np.searchsorted(cuts.names[order], names)])


def _offsets(cuts: Cuts) -> IntArray:
    return np.append(0, np.cumsum(cuts.wide_ends - cuts.wide_begins))


def _places(panel: Panel, cuts: Cuts) -> IntArray:
    """(N,) row of the widened panel for each row of the piece's own."""
    cut = _series_of(panel, cuts)
    first = _offsets(cuts)[cut] + cuts.begins[cut] - cuts.wide_begins[cut]
    return np.repeat(first - panel.offsets[:-1], panel.lengths) + np.arange(len(panel.values))


def _widened(panel: Panel, plan: PiecePlan, read: Callable[[int], Panel]) -> Panel:
    """The cuts with their halo; what nobody holds is missing."""
    cuts = plan.cuts
    offsets = _offsets(cuts)
    values = np.full((int(offsets[-1]), panel.values.shape[1]), np.nan)
    values[_places(panel, cuts)] = panel.values
    times = None
    if panel.timestamps is not None:
        times = np.full(len(values), np.datetime64("NaT"), dtype=panel.timestamps.dtype)
        times[_places(panel, cuts)] = panel.timestamps
    for neighbour in plan.neighbours:
        other = read(neighbour.piece)
        begins = dict(zip(cuts.names[neighbour.cuts], neighbour.begins, strict=True))
        at = dict(zip(cuts.names[neighbour.cuts], neighbour.cuts, strict=True))
        names = [str(name) for name in other.names] or [""]
        for number, name in enumerate(names):
            if name not in at:
                continue
            cut, begin = at[name], begins[name]
            low = max(int(cuts.wide_begins[cut]), begin)
            high = min(int(cuts.wide_ends[cut]), begin + int(other.lengths[number]))
            source, target = other.offsets[number] - begin, offsets[cut] - cuts.wide_begins[cut]
            into, there = slice(target + low, target + high), slice(source + low, source + high)
            values[into] = other.values[there]
            if times is not None and other.timestamps is not None:
                times[into] = other.timestamps[there]
    first = cuts.wide_begins
    surroundings = Surroundings(
        first,
        cuts.before_steps - first[:, None],
        cuts.before_values,
        cuts.after_steps - first[:, None],
        cuts.after_values,
        SeriesMoments(cuts.counts, cuts.means, cuts.stds),
    )
    names_of = tuple(cuts.names.tolist()) if panel.names else ()
    # Times of rows that nobody holds are not known; nothing is, of these.
    return replace(
        panel,
        values=values,
        offsets=offsets,
        timestamps=times,
        names=names_of,
        surroundings=surroundings,
    )


def _own_cells(cells: Cells, own: IntArray, num_rows: int) -> Cells:
    """The cells that belong to the piece, by their rows in it."""
    row_of = np.full(num_rows, -1, dtype=np.int64)
    row_of[own] = np.arange(len(own))
    rows = row_of[cells.rows]
    kept = np.flatnonzero(rows >= 0)
    said = distribution = cells.distribution
    if said is not None:
        distribution = said.take(torch.from_numpy(kept))
    return Cells(rows[kept], cells.variates[kept], cells.filled[kept], distribution)
