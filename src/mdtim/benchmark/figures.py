"""Pictures of filled windows, from the predictions that a run kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mdtim.benchmark.experiments import FOUR_SETS, PATTERNS, TITLES
from mdtim.benchmark.predictions import LEVELS, PAIR, PICTURED_RATE, Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRUTH, _FILL, _BAND = "#9a9a9a", "#0b5fa5", "#5aa0d8"


def draw_figures(folder: Path, output: Path, preset: str = "base") -> list[Path]:
    """Draw what there are predictions for; returns the files written.

    Parameters
    ----------
    folder : runs folder
    output : folder of the pictures
    """
    found: dict[tuple[str, str], Predictions] = {}
    for path in sorted((folder / "predictions").glob(f"*-{preset}-*.npz")):
        predictions = Predictions.load(path)
        found[predictions.dataset, predictions.pattern] = predictions
    if not found:
        raise ValueError(
            f"no predictions of {preset} under {folder}; run the experiment main first"
        )
    pyplot = _pyplot()
    output.mkdir(parents=True, exist_ok=True)
    written = []
    with pyplot.rc_context(_STYLE):
        if any(pattern in PATTERNS for _, pattern in found):
            written.append(output / "filled.png")
            _draw_sets(pyplot, found, written[-1])
        for predictions in (found[key] for key in sorted(found) if key[1] == PAIR):
            written.append(output / "pair.png")
            _draw_pair(pyplot, predictions, written[-1])
    return written


def _draw_sets(pyplot: Any, found: dict[tuple[str, str], Predictions], path: Path) -> None:
    """One row for each data set, one column for each pattern."""
    sets = [name for name in FOUR_SETS if any((name, pattern) in found for pattern in PATTERNS)]
    size = (11, 2.3 * len(sets))
    figure, axes = pyplot.subplots(len(sets), 2, figsize=size, squeeze=False, sharex=True)
    for row, name in zip(axes, sets, strict=True):
        for axis, pattern in zip(row, PATTERNS, strict=True):
            if (name, pattern) in found:
                predictions = found[name, pattern]
                window, variate = liveliest(predictions)
                _draw_series(axis, predictions, window, variate)
                axis.set_title(f"{TITLES[name]}, {predictions.variates[variate]}: {pattern}")
            else:
                axis.set_axis_off()
    _finish(figure, axes[-1], f"{PICTURED_RATE:.0%} of the cells hidden")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("pictures need a package: pip install 'mdtim[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def liveliest(predictions: Predictions) -> tuple[int, int]:
    """Window and variate whose known values move most, among those with enough hidden cells."""
    enough = predictions.hidden_WTV.sum(axis=1) >= predictions.hidden_WTV.shape[1] // 4
    known = ~np.isnan(predictions.truth_WTV).any(axis=1)
    steps = np.abs(np.diff(predictions.truth_WTV, axis=1)).sum(axis=1)
    low, high = np.quantile(predictions.truth_WTV, (0.25, 0.75), axis=1)
    # Much movement for its roughness, and not in a few peaks: a curve that the eye can follow.
    movement = np.where(enough & known, (high - low) ** 2 / np.maximum(steps, 1e-9), -1.0)
    window, variate = np.unravel_index(int(movement.argmax()), movement.shape)
    return int(window), int(variate)


def _draw_series(axis: Axes, predictions: Predictions, window: int, variate: int) -> None:
    """Truth, what was visible, the fill, and its bands."""
    place = (window, slice(None), variate)
    truth, hidden = predictions.truth_WTV[place], predictions.hidden_WTV[place]
    steps = np.arange(len(truth))
    # A band closes at visible cells, so that it begins and ends at what is known.
    bounds = {
        level: np.where(hidden, quantile[place], truth)
        for level, quantile in zip(LEVELS, predictions.quantiles_QWTV, strict=True)
    }
    near = hidden.copy()
    near[1:] |= hidden[:-1]
    near[:-1] |= hidden[1:]
    for low, high, alpha, label in ((0.05, 0.95, 0.3, "90 %"), (0.25, 0.75, 0.5, "50 %")):
        axis.fill_between(
            steps, bounds[low], bounds[high], where=near.tolist(), color=_BAND, alpha=alpha,
            linewidth=0, label=f"{label} interval",
        )  # fmt: skip
    axis.plot(steps, truth, color=_TRUTH, linewidth=1, label="truth")
    filled = np.where(hidden, predictions.mean_WTV[place], truth)
    line = np.where(near, filled, np.nan)
    axis.plot(steps, line, color=_FILL, linewidth=1.4, label="fill")
    axis.plot(steps[~hidden], truth[~hidden], "o", color="black", markersize=2.6, label="visible")
    axis.margins(x=0.01)


def _draw_pair(pyplot: Any, predictions: Predictions, path: Path) -> None:
    """Both variates, and below them how unsure the model is about the first."""
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 6), sharex=True)
    first, second = predictions.shown
    spread = np.ptp(predictions.truth_WTV[:, :, first], axis=1)
    window = int(np.argsort(spread)[len(spread) // 2])
    for axis, variate in zip(axes[:2], (first, second), strict=True):
        _draw_series(axis, predictions, window, variate)
        axis.set_title(predictions.variates[variate])
    sigma = axes[2]
    steps = np.arange(predictions.truth_WTV.shape[1])
    hidden = predictions.hidden_WTV[window]
    deviation = predictions.std_WTV[window, :, first]
    both = hidden[:, first] & hidden[:, second]
    alone = hidden[:, first] & ~both
    for chosen, label, color in ((alone, "one hidden", _BAND), (both, "both hidden", _FILL)):
        label = f"{label}: {deviation[chosen].mean():.3f} on average"
        sigma.bar(steps[chosen], deviation[chosen], width=0.8, color=color, label=label)
    sigma.set_title(f"σ of {predictions.variates[first]}")
    sigma.legend(loc="upper center")
    _finish(figure, axes[-1:], f"{TITLES[predictions.dataset]}: one hidden, then both")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _finish(figure: Any, last_row: Sequence[Axes], title: str) -> None:
    for axis in last_row:
        axis.set_xlabel("step of the window")
    figure.supylabel("standardized value", fontsize=9)
    first = figure.axes[0]
    handles, labels = first.get_legend_handles_labels()
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.legend(handles, labels, loc="upper right", ncols=len(labels))
    figure.tight_layout(rect=(0, 0, 1, 0.98))
