"""What the owner of a table should know before trusting a fit or a fill, as warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mdtim.learning.fitting import FitReport
from mdtim.panel import Panel
from mdtim.scaling import Standardizer
from mdtim.series_scales import ENOUGH, PanelScales

FAR = 8.0
"""Standard deviations, or times as wide, by which a table is not like the one of the fit."""
FAULTY = 1000.0
"""Standard deviations from the mean at which no reading of a column can be right."""
FEW = 20
"""Fewer known values do not tell how far a column strays."""
MANY = 100
"""Known values that tell how much a column varies."""
WIDER = 2.0
"""Times as much as in the fit, by which a column that varies more has intervals too narrow."""
SHORT = 8
"""Steps of a series below which intervals hold less than they promise."""
TINY = 5
"""Steps of a series below which a network that knows longer ones has little to say."""
OTHER_STEP = 1.5
"""Times as long as that of the fit, or a part of it, a step is another; months differ by less."""


class ImputationWarning(UserWarning):
    """Something the user should know about a fit or a fill."""


def of_columns(panel: Panel) -> None:
    """Columns, or all of a table, that tell too little to learn from."""
    counts = panel.observed.sum(axis=0)
    if unseen := _names(panel, counts == 0):
        _warn(f"nothing is observed in column(s) {unseen}: they are left missing")
    if once := _names(panel, (counts == 1) & (len(panel.values) > 1)):
        _warn(
            f"column(s) {once} have a single known value: it is repeated in every gap, and that "
            "its intervals are narrow means nothing"
        )
    if few := _names(panel, (counts > 1) & (counts < FEW) & (len(panel.values) >= 10 * FEW)):
        _warn(
            f"column(s) {few} have fewer than {FEW} known values: their intervals rest on little "
            "and may be too narrow"
        )
    if len(panel.values) > 1 and panel.lengths.max() < TINY and not panel.observed.all():
        _warn(
            f"no series has {TINY} steps or more: what is filled is little more than a guess; "
            "interpolate such tables"
        )
    elif TINY <= panel.lengths.max() < SHORT and not panel.observed.all():
        _warn(
            f"no series has {SHORT} steps or more: intervals of 90 % were seen to hold 76 to 84 % "
            "of such tables"
        )


def of_the_window(panel: Panel, asked: int | str, taken: int) -> None:
    """A window that was cut as most of it would lie beyond the ends of all series."""
    if asked not in ("auto", taken):
        _warn(
            f"window {asked} is longer than is of use to series of at most "
            f"{panel.lengths.max()} steps; {taken} are taken"
        )


def of_readings(panel: Panel, standardized: NDArray[np.float32]) -> None:
    """Readings so far from all others that they are faults, or in other units.

    Parameters
    ----------
    standardized : (N, V) the panel's values in the scales of columns or series
    """
    far = np.abs(np.nan_to_num(standardized)) > FAULTY
    for column in np.flatnonzero(far.any(axis=0)):
        readings = panel.values[far[:, column], column]
        _warn(
            f"column {panel.variates[column]!r} holds {readings.size} readings far from all "
            f"others, such as {readings[0]:g}: they are pulled in where gaps are near; if they are "
            "faults, remove them"
        )


def of_series(panel: Panel, scales: PanelScales) -> None:
    """Where series differ in size: those that tell too little of theirs, or have another now."""
    gaps = np.zeros(scales.rough.shape, dtype=bool)
    rows, columns = np.nonzero(~panel.observed)
    gaps[panel.series_of_rows()[rows], columns] = True
    few = f"have fewer than {ENOUGH} known values: their gaps are filled in the scale of all"
    more = (
        "vary far more than when the model was fitted: they are filled in the scale they have "
        "here; check their units, or fit on this table"
    )
    for chosen, what in ((scales.rough & gaps, few), (scales.outgrown, more)):
        for column in np.flatnonzero(chosen.any(axis=0)):
            those = np.flatnonzero(chosen[:, column])
            such_as = f", such as {panel.names[those[0]]!r}," if panel.names else ""
            _warn(
                f"in column {panel.variates[column]!r} series differ much in size, and "
                f"{those.size} of {panel.num_series}{such_as} {what}"
            )


def of_the_fit(report: FitReport) -> None:
    """A fit that is not worth its while, or of which nothing tells whether it is."""
    if report.reason == "interrupted":
        _warn(
            f"the training was interrupted after {report.steps} steps: the best of these is kept; "
            "fit again for more"
        )
    if report.validation_mae is None and report.steps:
        _warn(
            "no observed cell could be held out: the error is not known, and intervals are not "
            "calibrated; give more data, or a shorter window"
        )
    if report.validation_mae is not None and not report.better_than_linear:
        advice = "train longer" if report.steps else "train on this table (adapt=True)"
        _warn(
            f"on held-out cells the model's error ({report.validation_mae:.3g}) is not below that "
            f"of linear interpolation ({report.linear_mae:.3g}); {advice}, give more data, or "
            "interpolate"
        )


def of_another_table(panel: Panel, scales: PanelScales) -> None:
    """Columns that look as if they were in other units than when the model was fitted."""
    fitted, mean, std = scales.columns, scales.columns.mean, scales.columns.std
    values, unit = panel.values, np.full(len(mean), "")
    if scales.apart.any():  # its series are compared with themselves
        values = np.where(scales.apart, scales.forward(values, panel.series_of_rows()), values)
        mean, std = np.where(scales.apart, 0.0, mean), np.where(scales.apart, 1.0, std)
        unit = np.where(scales.apart, " in stds of its series", "")
    here = Standardizer.fit(values)
    enough = (panel.observed.sum(axis=0) >= 20) & fitted.varies & here.seen
    away = np.abs(here.mean - mean) > FAR * std
    wider = here.varies & (here.std > FAR * std)
    # A calm stretch is narrower than a year, but hardly by as much as other units would be.
    narrower = here.varies & (here.std * FAR**2 < std)
    far = np.flatnonzero(enough & (away | wider | narrower))
    if far.size:
        told = ", ".join(
            f"{panel.variates[column]!r} ({here.mean[column]:.3g} ± {here.std[column]:.3g}, fitted "
            f"on {mean[column]:.3g} ± {std[column]:.3g}{unit[column]})"
            for column in far
        )
        _warn(
            f"column(s) {told} lie far from what the model was fitted on: check their units, or "
            "fit on this table"
        )
    many = panel.observed.sum(axis=0) >= MANY
    more = enough & many & here.varies & (here.std > WIDER * std) & ~(away | wider)
    if more.any():
        told = ", ".join(
            f"{panel.variates[column]!r} ({here.std[column] / std[column]:.1f} times)"
            for column in np.flatnonzero(more)
        )
        _warn(
            f"column(s) {told} vary more than when the model was fitted: intervals may be too "
            "narrow; fit on this table"
        )


def of_the_same_table(panel: Panel, fitted: Standardizer) -> None:
    """A table that the model was fitted to, by its statistics: hidden cells are known to it."""
    here = Standardizer.fit(panel.values)
    if np.array_equal(here.mean, fitted.mean) and np.array_equal(here.std, fitted.std):
        _warn(
            "the model was fitted to this very table and has seen the cells that are hidden here: "
            "its error elsewhere is larger; evaluate without a model, or on another table"
        )


def of_another_step(panel: Panel, fitted: float | None) -> None:
    """Rows that lie farther apart than those of the fit, or closer: a step means something else."""
    here = panel.step_seconds
    if here is not None and fitted is not None and not 1 / OTHER_STEP < here / fitted < OTHER_STEP:
        _warn(
            f"rows lie {here:g} s apart, those of the fit {fitted:g} s: what the model knows of "
            "neighbouring rows does not hold here, and intervals may be too narrow; fit on this "
            "table"
        )


def of_what_never_varied(panel: Panel, fitted: Standardizer) -> None:
    """Columns that were constant or empty when the model was fitted, and are not here."""
    known, constant = panel.observed, fitted.seen & ~fitted.varies
    if changed := _names(panel, constant & (known & (panel.values != fitted.mean)).any(axis=0)):
        _warn(
            f"column(s) {changed} were constant when the model was fitted and vary now: their gaps "
            "get the old constant; fit again on a table in which they vary"
        )
    if found := _names(panel, known.any(axis=0) & ~fitted.seen):
        _warn(
            f"column(s) {found} were empty when the model was fitted and are not now: their gaps "
            "are left missing; fit again on a table in which they have values"
        )


def _names(panel: Panel, chosen: Iterable[bool]) -> list[str]:
    return [name for name, one in zip(panel.variates, chosen, strict=True) if one]


def _warn(text: str) -> None:
    # At the caller of the estimator's method, which asks the model, which asks here.
    warnings.warn(text, ImputationWarning, stacklevel=5)
