"""A progress bar for people; silence for everyone else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mdtim.training import Progress

OnStep = Callable[[Progress, float], None]


@contextmanager
def training_progress(wanted: bool | str) -> Iterator[OnStep | None]:
    """Show steps, validation error and time left on stderr.

    Parameters
    ----------
    wanted : True, False, or "auto": only on a terminal
    """
    if wanted not in (True, False, "auto"):
        raise ValueError(f'progress must be True, False or "auto", got {wanted!r}')
    if not (sys.stderr.isatty() if wanted == "auto" else wanted):
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
