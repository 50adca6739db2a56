"""`mdtim bench`: how fast this machine is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mdtim.bench.section import append_rows
from mdtim.messages import out, user_messages

app = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def speed(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    output: Annotated[Path | None, typer.Option(help="Append the rows to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Training steps and imputation, beside the same network run otherwise."""
    from mdtim.bench.speed import run_speed

    with user_messages():
        rows = [asdict(row) for row in run_speed(device)]
    if output is not None:
        append_rows(output, rows)
    _show(rows, ("case", "variant", "size", "milliseconds", "tflops", "peak_memory_gb"), as_json)


@app.command()
def parity(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    steps: Annotated[int, typer.Option(help="Of each training.", min=1)] = 600,
    output: Annotated[Path | None, typer.Option(help="Append the rows to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Train on ETTh with the fast path and with plain PyTorch, three seeds each."""
    from mdtim.bench.parity import run_parity

    with user_messages():
        rows = [asdict(row) for row in run_parity(device, steps)]
    if output is not None:
        append_rows(output, rows)
    _show(rows, ("variant", "seed", "steps", "validation_mae", "seconds"), as_json)


@app.command()
def table(
    rows: Annotated[str, typer.Option(help="Lengths, one run each.")] = "17420,174200",
    variates: Annotated[int, typer.Option(help="Columns.", min=1)] = 7,
    missing: Annotated[float, typer.Option(help="Share of the cells that is missing.")] = 0.3,
    preset: Annotated[str, typer.Option(help="small, or a pretrained network.")] = "small",
    output: Annotated[Path | None, typer.Option(help="Append the rows to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Fill tables on the CPU: time and memory as they grow."""
    from mdtim.bench.table import run_table

    with user_messages():
        lengths = [int(length) for length in rows.split(",")]
        found = run_table(lengths, preset=preset, variates=variates, missing=missing)
        measured = [asdict(row) for row in found]
    if output is not None:
        append_rows(output, measured)
    _show(measured, ("preset", "rows", "variates", "missing", "seconds", "peak_memory_gb"), as_json)


@app.command()
def file(
    case: Annotated[str, typer.Argument(help="random, blocks, outages or weather.")],
    preset: Annotated[str, typer.Option(help="zero-mini or zero-base.")] = "zero-mini",
    adapt: Annotated[bool, typer.Option("--fit", help="Train further on the file.")] = False,
    minutes: Annotated[float, typer.Option(help="Time limit of that training.")] = 4.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="Append the rows to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Fill one file with the pretrained network: error, intervals and time."""
    from mdtim.bench.file import run_file

    with user_messages():
        found = run_file(case, preset, adapt=adapt, device=device, minutes=minutes)
    rows = [asdict(row) for row in found]
    if output is not None:
        append_rows(output, rows)
    _show(rows, ("case", "method", "steps", "window", "mae", "crps", "cover90", "seconds"), as_json)


@app.command()
def load(
    seconds: Annotated[float, typer.Option(help="How long clients upload.")] = 60.0,
    clients: Annotated[int, typer.Option(help="Clients at the same time.")] = 50,
    workers: Annotated[int, typer.Option(help="Workers of the service.")] = 2,
    output: Annotated[Path | None, typer.Option(help="Append the row to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """The service on loopback while many clients upload tables of 1,000 × 8 cells."""
    from mdtim.bench.load import run_load

    with user_messages():
        rows = [asdict(run_load(seconds, clients, workers))]
    if output is not None:
        append_rows(output, rows)
    shown = ("accepted", "done", "failed", "refused", "server_errors", "job_p50", "job_p99")
    _show(rows, shown, as_json)


@app.command()
def report(
    output: Annotated[Path | None, typer.Option(help="Append the row to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a table of 100,000 × 50 cells: its size and the time it takes."""
    from mdtim.bench.report import run_report

    rows = [asdict(run_report())]
    if output is not None:
        append_rows(output, rows)
    _show(rows, ("rows", "columns", "missing", "gaps", "seconds", "megabytes", "load"), as_json)


@app.command()
def scale(
    rows: Annotated[int, typer.Option(help="Rows of the data set.", min=1)] = 10_000_000,
    variates: Annotated[int, typer.Option(help="Columns to fill.", min=1)] = 8,
    parts: Annotated[int, typer.Option(help="Files of the data set.", min=1)] = 64,
    missing: Annotated[float, typer.Option(help="Share of the cells that is missing.")] = 0.02,
    size: Annotated[str, typer.Option(help="Network: tiny, or a preset.")] = "tiny",
    workers: Annotated[str, typer.Option(help="Numbers of workers, one run each.")] = "1,2",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="Append the rows to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Fill a data set in parts with one worker and with two."""
    from mdtim.bench.scale import run_scale

    with user_messages():
        measured = run_scale(
            rows=rows,
            variates=variates,
            parts=parts,
            missing_share=missing,
            size=size,
            workers=[int(count) for count in workers.split(",")],
            device=device,
        )
    shown = [asdict(row) for row in measured]
    if output is not None:
        append_rows(output, shown)
    columns = ("rows", "variates", "parts", "workers", "seconds", "rows_per_second", "speedup")
    _show(shown, (*columns, "first_memory_gb", "last_memory_gb", "load"), as_json)


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.table import Table

    shown = Table()
    for column in columns:
        shown.add_column(column.replace("_", " "))
    for row in rows:
        shown.add_row(*(str(row[column]) for column in columns))
    out.print(shown)
