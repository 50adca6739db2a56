"""`mdtim batch`: fill a data set in parts."""

from __future__ import annotations

import json
import sys
import time as clock
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mdtim.messages import notes, out, user_messages
from mdtim.options import (
    Columns,
    Device,
    Id,
    InfAsMissing,
    Json,
    MaxMinutes,
    MaxSteps,
    MissingValues,
    Model,
    Preset,
    Quantiles,
    Quiet,
    Seed,
    Time,
    Window,
    quantile_levels,
    refuse_training,
    table_options,
    window_length,
)

if TYPE_CHECKING:
    from mdtim.batch.engine import Engine
    from mdtim.batch.run import BatchReport
    from mdtim.batch.scans import Watch

PARTS_FAILED = 1
"""Exit code if parts could not be read or filled; the others are written."""


def batch(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Folder of Parquet or CSV parts, or its address.")],
    target: Annotated[str, typer.Option("-o", "--output", help="Folder for the filled parts.")],
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Processes; 1 with local, one per CPU with ray.", min=1)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; without, one is started.")
    ] = None,
    model: Model = None,
    time: Time = None,
    id: Id = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    quantiles: Quantiles = None,
    window: Window = "auto",
    preset: Preset = "auto",
    max_minutes: MaxMinutes = 5.0,
    max_steps: MaxSteps = None,
    sample_rows: Annotated[
        int, typer.Option(help="Rows a model is fitted to, where none is given.", min=1)
    ] = 200_000,
    piece_rows: Annotated[
        int, typer.Option(help="Rows of a Parquet part held at once.", min=1)
    ] = 1_000_000,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fill a data set part by part; a second run does what is missing or changed."""
    levels = tuple(quantile_levels(quantiles))
    with user_messages() as said:
        refuse_training(model, context)
        from mdtim.batch.run import BatchOptions, run_batch
        from mdtim.batch.source import Place
        from mdtim.imputer import MDTIMImputer
        from mdtim.tables.table import TableOptions

        given = table_options(time, id, None, columns, inf_as_missing, missing_values)
        options = BatchOptions(
            TableOptions(**given),
            levels,
            piece_rows,
            sample_rows,
            device,
        )
        estimator = MDTIMImputer(
            window_length(window),
            preset,
            seed=seed,
            device=device,
            max_minutes=max_minutes,
            max_steps=max_steps,
            progress=False if quiet or as_json else "auto",
        )
        with ExitStack() as stack:
            report = run_batch(
                source,
                target,
                options,
                model=model,
                estimator=estimator,
                engine=stack.enter_context(_engine(engine, workers, address, device)),
                watch=stack.enter_context(_progress(quiet or as_json)),
            )
    _show(report, str(Place(target)), said, as_json, quiet)  # without keys and passwords
    if report.failures:
        raise typer.Exit(PARTS_FAILED)


@contextmanager
def _engine(name: str, workers: int | None, address: str | None, device: str) -> Iterator[Engine]:
    from mdtim.batch.engine import Inline, Pooled
    from mdtim.batch.engine_local import LocalPool

    if name not in ("local", "ray"):
        raise ValueError(f"--engine must be local or ray, got {name!r}")
    if name == "ray":
        from mdtim.batch.engine_ray import ray_pool

        with ray_pool(address, workers, device) as pool:
            yield Pooled(pool)
        return
    if address is not None:
        raise ValueError("--address names a Ray cluster; add --engine ray")
    yield Inline() if workers in (None, 1) else Pooled(LocalPool(workers or 1))


@contextmanager
def _progress(silent: bool) -> Iterator[Watch]:
    """Show parts, rows/s and time left: a bar on a terminal, a line now and then elsewhere."""
    if silent:
        yield lambda stage, done, total, rows: None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("parts  {task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    began = clock.monotonic()
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("", total=None, speed="")

        def watch(stage: str, done: int, total: int, rows: int) -> None:
            nonlocal began
            if done == 0 or bar.tasks[0].description != stage:
                began = clock.monotonic()
                bar.reset(shown, description=stage, total=total or None)
            bar.update(shown, completed=done, speed=_speed(rows, began))

        yield watch


def _speed(rows: int, began: float) -> str:
    seconds = max(clock.monotonic() - began, 1e-9)
    return f"{rows / seconds:,.0f} rows/s" if rows else ""


def _lines() -> Watch:
    began = last = clock.monotonic()
    stage_now = ""

    def watch(stage: str, done: int, total: int, rows: int) -> None:
        nonlocal began, last, stage_now
        now = clock.monotonic()
        if stage != stage_now:
            stage_now, began, last = stage, now, now - 60
        if now - last < 10 and done != total:
            return
        last = now
        left = f", {(now - began) / done * (total - done):.0f} s left" if done else ""
        count = f": {done} of {total} parts" if total else ""
        speed = f", {_speed(rows, began)}" if rows else ""
        notes.print(f"{stage}{count}{speed}{left}", markup=False, highlight=False)

    return watch


def _show(report: BatchReport, target: str, said: list[str], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"output": target, **asdict(report), "warnings": said}))
        return
    for note in report.notes:
        notes.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    for name, sentence in report.failures.items():
        text = sentence if name in sentence else f"{name}: {sentence}"
        notes.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    if quiet:
        return
    speed = f", {report.rows / report.seconds:,.0f} rows/s" if report.seconds else ""
    out.print(
        f"{report.filled_parts} parts filled ({report.rows:,} rows, {report.filled:,} cells"
        f"{speed}), {report.kept_parts} kept, {len(report.failures)} failed; written: {target}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
