"""`Imputation.plot`: columns with their filled gaps as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mdtim.panel import IntArray, Panel
from mdtim.report.gaps import empty_columns
from mdtim.report.lines import Fill, make_line
from mdtim.tables.labels import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mdtim.imputation import Imputation

MAX_COLUMNS = 8
_STRETCHES = 2_000
_OBSERVED, _FILLED = "#34506e", "#d4500c"


def plot(imputation: Imputation, columns: Sequence[str] | None, series: Any) -> Figure:
    """Draw columns of one series below each other, see :meth:`Imputation.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot() draws with matplotlib: pip install 'mdtim[plot]'") from error
    panel = imputation.table.panel
    variates, number = _choose_columns(imputation, columns), _choose_series(panel, series)
    fill = Fill.of(imputation)
    # A figure of its own, not one of pyplot's: it shows in a notebook and leaks nowhere.
    figure = Figure(figsize=(10, 0.6 + 2.1 * len(variates)), layout="constrained")
    axes = figure.subplots(len(variates), 1, sharex=True, squeeze=False)[:, 0]
    for axis, variate in zip(axes, variates, strict=True):
        _draw(axis, fill, variate, number)
    name = Labels.of(panel).of_series(number)
    if name is not None:
        figure.suptitle(f"series {name}", parse_math=False)
    axes[0].legend(loc="upper left", bbox_to_anchor=(0, 1.3), ncols=4, frameon=False)
    return figure


def _draw(axis: Axes, fill: Fill, variate: int, number: int) -> None:
    line = make_line(fill, variate, number, stretches=_STRETCHES, details=[], detail_stretches=1)
    panel, first, labels = fill.panel, int(fill.panel.offsets[number]), Labels.of(fill.panel)

    def place(positions: IntArray) -> Any:
        places = labels.on_axis(first + positions)
        return places if panel.timestamps is None else places.astype("M8[ms]")

    filled, marks = place(line.filled.positions), place(line.marks.positions)
    for low, high, alpha, label in ((0, 3, 0.2, "90 % band"), (1, 2, 0.3, "50 % band")):
        bounds = line.filled.bounds
        axis.fill_between(
            filled, bounds[low], bounds[high], color=_FILLED, alpha=alpha, lw=0, label=label
        )
    axis.plot(
        place(line.observed.positions),
        line.observed.values,
        color=_OBSERVED,
        lw=1,
        label="observed",
    )
    alone = line.observed.alone()
    axis.plot(place(alone.positions), alone.values, ".", color=_OBSERVED, ms=3)
    axis.plot(filled, line.filled.values, color=_FILLED, lw=1.5, label="filled")
    axis.vlines(marks, line.marks.bounds[0], line.marks.bounds[-1], color=_FILLED, alpha=0.4, lw=1)
    axis.plot(marks, line.marks.values, ".", color=_FILLED, ms=4)
    axis.set_ylabel(panel.variates[variate], parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)


def _choose_columns(imputation: Imputation, columns: Sequence[str] | None) -> list[int]:
    panel = imputation.table.panel
    if columns is None:
        order = np.lexsort((panel.observed.sum(axis=0), empty_columns(imputation)))
        return [int(variate) for variate in order[:MAX_COLUMNS]]
    names = [columns] if isinstance(columns, str) else list(columns)
    unknown = [name for name in names if name not in panel.variates]
    if unknown or not names:
        raise ValueError(
            f"no column {unknown} to plot; the columns are {list(panel.variates)}"
            if unknown
            else "plot() was given an empty list of columns; give None for those with most gaps"
        )
    return [panel.variates.index(name) for name in names]


def _choose_series(panel: Panel, series: Any) -> int:
    if series is None:
        missing = np.add.reduceat(~panel.observed, panel.offsets[:-1][panel.lengths > 0], axis=0)
        return int(np.flatnonzero(panel.lengths > 0)[missing.sum(axis=1).argmax()])
    names = list(panel.names) or list(range(panel.num_series))
    if series not in names:
        raise ValueError(f"no series {series!r} to plot; the first ones are {names[:5]}")
    return names.index(series)
