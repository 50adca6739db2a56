"""A progress bar for people, a callback for programs; silence for everyone else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mdtim.inference import OnWindows
from mdtim.learning.fitting import FitReport
from mdtim.learning.training import Progress

OnStep = Callable[[Progress, float], None]
Listener = Callable[[float, str], None]
"""Told the share of a fit or a fill that is done, from 0 to 1, and what is being done, in words."""


def _is_shown(wanted: bool | str | Listener) -> bool:
    if callable(wanted):
        return False
    if wanted not in (True, False, "auto"):
        raise ValueError(f'progress must be True, False, "auto" or a function, got {wanted!r}')
    return sys.stderr.isatty() if wanted == "auto" else bool(wanted)


def show_fit(wanted: bool | str | Listener, report: FitReport) -> None:
    """Say how the fit went, in one line on stderr, where a progress bar was shown."""
    if not _is_shown(wanted) or report.validation_mae is None:
        return
    trained = f"fitted {report.steps} steps in {report.seconds:.0f} s ({report.reason})"
    print(
        f"{trained if report.steps else report.reason}: held-out MAE "
        f"{report.validation_mae:.4f} of a std, linear interpolation {report.linear_mae:.4f}",
        file=sys.stderr,
    )


@contextmanager
def training_progress(wanted: bool | str | Listener) -> Iterator[OnStep | None]:
    """Show steps, validation error and time left on stderr, or tell a listener.

    Parameters
    ----------
    wanted : True, False, "auto": only on a terminal; or a listener
    """
    if callable(wanted):
        yield lambda progress, share: wanted(share, f"training, {_words(progress)}")
        return
    if not _is_shown(wanted):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=1.0, words="")

        def on_step(progress: Progress, share: float) -> None:
            bar.update(task, completed=share, words=_words(progress))

        yield on_step


def filling_progress(wanted: bool | str | Listener) -> OnWindows | None:
    """Tell a listener how many windows are filled; there is no bar for it."""
    if not callable(wanted):
        return None
    return lambda done, total: wanted(done / total, f"filling, {done:,} of {total:,} windows")


def _words(progress: Progress) -> str:
    known = progress.history and math.isfinite(progress.best_mae)
    mae = f", validation MAE {progress.best_mae:.4f}" if known else ""
    return f"step {progress.step}{mae}"
