"""The rows a model is fitted to when a data set is too large to be fitted as a whole.

Up to 64 pieces are drawn without replacement, all of them if there are no more. Of each, one run
of consecutive rows is taken (rows sorted by series and time), at a drawn place; together they have
at most the number of rows asked for. The draw is a function of the seed and of the pieces' names
and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mdtim.batch.source import Piece
from mdtim.panel import Panel

MAX_BLOCKS = 64


def sample_panel(
    pieces: Sequence[Piece], read: Callable[[Piece], Panel], rows: int, seed: int
) -> Panel:
    """Draw blocks of rows; each series of a block is a series of the panel.

    Parameters
    ----------
    pieces : those that can be read
    read : gives the panel of a piece
    rows : most rows to take in all
    """
    generator = np.random.default_rng(seed)
    count = min(len(pieces), MAX_BLOCKS, rows)
    chosen = np.sort(generator.permutation(len(pieces))[:count])
    places = generator.random(count)
    share = rows // count
    values, lengths, names = [], list[int](), list[Any]()
    variates: tuple[str, ...] = ()
    seconds = None
    for number, place in zip(chosen, places, strict=True):
        panel = read(pieces[number])
        variates, seconds = panel.variates, panel.step_seconds or seconds
        begin = int(place * max(len(panel.values) - share + 1, 1))
        end = min(begin + share, len(panel.values))
        values.append(panel.values[begin:end])
        lengths_S = np.diff(np.clip(panel.offsets, begin, end))
        taken = np.flatnonzero(lengths_S)
        lengths += lengths_S[taken].tolist()
        known = panel.names or (pieces[number].part.name,)
        names += [known[series] for series in taken]
    offsets = np.append(0, np.cumsum(lengths))
    return Panel(np.concatenate(values), offsets, variates, seconds, names=tuple(names))
