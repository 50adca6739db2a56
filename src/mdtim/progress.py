"""A progress bar for people; silence for everyone else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mdtim.fitting import FitReport
from mdtim.training import Progress

OnStep = Callable[[Progress, float], None]


def _is_shown(wanted: bool | str) -> bool:
    if wanted not in (True, False, "auto"):
        raise ValueError(f'progress must be True, False or "auto", got {wanted!r}')
    return sys.stderr.isatty() if wanted == "auto" else bool(wanted)


def show_fit(wanted: bool | str, report: FitReport) -> None:
    """Say how the fit went, in one line on stderr, where a progress bar was shown."""
    if not _is_shown(wanted) or report.validation_mae is None:
        return
    print(
        f"fitted {report.steps} steps in {report.seconds:.0f} s ({report.reason}): held-out MAE "
        f"{report.validation_mae:.4f} of a std, linear interpolation {report.linear_mae:.4f}",
        file=sys.stderr,
    )


@contextmanager
def training_progress(wanted: bool | str) -> Iterator[OnStep | None]:
    """Show steps, validation error and time left on stderr.

    Parameters
    ----------
    wanted : True, False, or "auto": only on a terminal
    """
    if not _is_shown(wanted):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("fitting"),
        BarColumn(),
        TextColumn("step {task.fields[step]}  validation MAE {task.fields[mae]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fitting", total=1.0, step=0, mae="–")

        def on_step(progress: Progress, share: float) -> None:
            mae = f"{progress.best_mae:.4f}" if progress.history else "–"
            bar.update(task, completed=share, step=progress.step, mae=mae)

        yield on_step
