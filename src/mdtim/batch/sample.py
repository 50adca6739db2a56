"""The rows a model is fitted to: all of a small data set, blocks of a large one.

Pieces follow each other in blocks of about as many rows as are taken from each. If there are more
rows than asked for, up to 64 blocks are drawn without replacement, and of each one run of
consecutive rows (sorted by series and time), at a drawn place. The draw is a function of the seed
and of the pieces' names and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdtim.batch.plan import Layout
from mdtim.batch.source import Piece
from mdtim.panel import FloatArray, Panel

MAX_BLOCKS = 64


def sample_panel(
    layout: Layout, pieces: Sequence[Piece], read: Callable[[Piece], Panel], rows: int, seed: int
) -> Panel:
    """Draw blocks of rows; what follows each other in a block is one series of the panel.

    Parameters
    ----------
    layout : of the runs of all pieces
    pieces : those that can be read
    read : gives the panel of a piece
    rows : most rows to take in all
    """
    generator = np.random.default_rng(seed)
    steps = np.bincount(layout.runs.pieces, layout.runs.steps, minlength=len(pieces))
    blocks = _blocks(steps.astype(int).tolist(), rows)
    count = min(len(blocks), MAX_BLOCKS, rows)
    chosen = np.sort(generator.permutation(len(blocks))[:count])
    places = generator.random(count)
    share = rows // count
    values, times, lengths, names = [], [], list[int](), list[Any]()
    variates: tuple[str, ...] = ()
    seconds = None
    for number, place in zip(chosen, places, strict=True):
        panel = _read_block(layout, pieces, blocks[number], read)
        variates, seconds = panel.variates, panel.step_seconds or seconds
        begin = int(place * max(len(panel.values) - share + 1, 1))
        end = min(begin + share, len(panel.values))
        values.append(panel.values[begin:end])
        times.append(_times_of(panel)[begin:end])
        lengths_S = np.diff(np.clip(panel.offsets, begin, end))
        taken = np.flatnonzero(lengths_S)
        lengths += lengths_S[taken].tolist()
        names += [panel.names[series] for series in taken]
    offsets = np.append(0, np.cumsum(lengths))
    told = tuple(names) if any(name != "" for name in names) else ()
    stamps = np.concatenate(times)
    timestamps = None if np.isnat(stamps).all() else stamps
    return Panel(np.concatenate(values), offsets, variates, seconds, timestamps, told)


def _times_of(panel: Panel) -> NDArray[np.datetime64]:
    """(N,) NaT where the panel has no times."""
    if panel.timestamps is None:
        return np.full(len(panel.values), np.datetime64("NaT"), dtype="M8[ns]")
    return panel.timestamps


def _blocks(counts: Sequence[int], rows: int) -> list[range]:
    """Numbers of the pieces of each block, from the steps in each of all pieces."""
    share = rows if sum(counts) <= rows else max(rows // MAX_BLOCKS, 1)
    edges, held = [0], 0
    for number, count in enumerate(counts):
        held += count
        if held >= share:
            edges.append(number + 1)
            held = 0
    if edges[-1] < len(counts):
        edges.append(len(counts))
    return [range(first, stop) for first, stop in pairwise(edges)]


def _read_block(
    layout: Layout, pieces: Sequence[Piece], block: range, read: Callable[[Piece], Panel]
) -> Panel:
    """The runs of some pieces, those of one series one after the other."""
    panels = {number: read(pieces[number]) for number in block}
    first = panels[block[0]]
    values, times, lengths, names = [], [], list[int](), list[Any]()
    for name, runs in _series_of(layout, panels):
        values += [run for run, _ in runs]
        times += [stamps for _, stamps in runs]
        lengths.append(sum(len(run) for run, _ in runs))
        names.append(name)
    offsets = np.append(0, np.cumsum(lengths))
    seconds = next((panel.step_seconds for panel in panels.values() if panel.step_seconds), None)
    return Panel(
        np.concatenate(values),
        offsets,
        first.variates,
        seconds,
        np.concatenate(times),
        tuple(names),
    )


Run = tuple[FloatArray, NDArray[np.datetime64]]
"""Values and times."""


def _series_of(layout: Layout, panels: dict[int, Panel]) -> Iterator[tuple[Any, list[Run]]]:
    """Names of series with their runs; steps between two runs are missing."""
    inside = np.flatnonzero(np.isin(layout.runs.pieces, list(panels)))
    most = sum(len(panel.values) for panel in panels.values())
    places = {
        number: {str(name): place for place, name in enumerate(panel.names or ("",))}
        for number, panel in panels.items()
    }
    name, runs, end, last = None, list[Run](), 0, -1
    for run in inside.tolist():
        piece = int(layout.runs.pieces[run])
        panel, local = panels[piece], places[piece][str(layout.runs.names[run])]
        rows = slice(panel.offsets[local], panel.offsets[local + 1])
        own, times = panel.values[rows], _times_of(panel)[rows]
        begin = int(layout.begins[run])
        skipped = begin - end
        # Runs of other blocks may lie between two; and far apart in time, more missing steps than
        # there are rows.
        follows = run == last + 1 and layout.series[run] == layout.series[last]
        if runs and (not follows or skipped > most):
            yield name, runs
            runs = []
        elif runs and skipped:
            nothing = np.full((skipped, own.shape[1]), np.nan)
            runs.append((nothing, np.full(skipped, np.datetime64("NaT"), dtype=times.dtype)))
        name = panel.names[local] if panel.names else ""
        runs.append((own, times))
        end, last = begin + len(own), run
    if runs:
        yield name, runs
