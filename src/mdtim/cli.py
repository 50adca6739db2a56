"""The command line: parse, call, show. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable

from mdtim.batch.cli import batch
from mdtim.bench.cli import app as bench_app
from mdtim.benchmark.cli import app as benchmark_app
from mdtim.messages import out, user_messages
from mdtim.options import (
    Adapt,
    Columns,
    Device,
    Freq,
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
    Report,
    Seed,
    Source,
    Time,
    Window,
    quantile_levels,
    refuse_training,
    table_options,
    window_length,
)
from mdtim.pretraining.cli import pretrain
from mdtim.service.cli import serve

if TYPE_CHECKING:
    from mdtim.evaluation import Evaluation
    from mdtim.imputer import MDTIMImputer

app = typer.Typer(
    name="mdtim",
    help="Fill the gaps in time series: values, intervals and a report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(benchmark_app, name="benchmark")
app.add_typer(bench_app, name="bench")
app.command()(serve)
app.command()(pretrain)
app.command()(batch)


@app.command()
def fit(
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model.")],
    time: Time = None,
    id: Id = None,
    freq: Freq = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    window: Window = "auto",
    from_: Annotated[
        str, typer.Option("--from", help="pretrained, or nothing: train from random weights.")
    ] = "pretrained",
    preset: Preset = "auto",
    max_minutes: MaxMinutes = 5.0,
    max_steps: MaxSteps = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; an existing one is resumed.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from a table and keep the model; with torchrun, in several processes."""
    with user_messages() as said:
        from mdtim.checkpoint import check_free
        from mdtim.learning.distributed import joined_ranks

        check_free(output)  # refused now rather than after the fit

        with joined_ranks(device) as (ranks, own_device):
            silent = quiet or as_json or not ranks.is_first
            options = table_options(time, id, freq, columns, inf_as_missing, missing_values)
            preset, adapt = _start(from_, preset, own_device)
            training = (window, preset, adapt, max_minutes, max_steps, seed, own_device, silent)
            imputer = _imputer(None, options, *training)
            imputer.set_params(checkpoint=checkpoint)
            imputer.fit(_read(source))
            if ranks.is_first:
                imputer.save(output)
    if ranks.is_first:
        _show_fit(imputer, said, as_json, quiet, {"model": str(output)})


@app.command()
def impute(
    context: typer.Context,
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the filled table.")],
    model: Model = None,
    time: Time = None,
    id: Id = None,
    freq: Freq = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    quantiles: Quantiles = None,
    window: Window = "auto",
    preset: Preset = "auto",
    adapt: Adapt = False,
    max_minutes: MaxMinutes = 5.0,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    device: Device = "auto",
    report: Report = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of a table."""
    levels = quantile_levels(quantiles)
    with user_messages() as said:
        from mdtim.tables.files import parquet_source, read_styled, table_suffixes, write_frame

        _check_targets(source, output, report)
        table_suffixes(output)  # refused now rather than after the fit
        frame, style = read_styled(source)
        # Now: the file may be another after the fit.
        parquet = parquet_source(source, adds_rows=freq is not None)
        options = table_options(time, id, freq, columns, inf_as_missing, missing_values)
        training = (window, preset, adapt, max_minutes, max_steps, seed, device, quiet or as_json)
        refuse_training(model, context)
        imputer = _imputer(model, options, *training)
        if model is None:
            imputer.fit(frame)
        result = imputer.impute(_as_fitted(imputer, frame))
        filled = result.with_quantiles(levels)
        new = [name for name in filled.columns if name not in frame.columns]
        write_frame(filled[[*frame.columns, *new]], output, style, parquet)
        if report is not None:
            result.report(report, name=source.name, notes=said)
    facts = {
        "output": str(output),
        "rows": len(filled),
        "missing": result.num_missing,
        "filled": result.num_filled,
        "report": None if report is None else str(report),
    }
    _show_fit(imputer, said, as_json, quiet, facts)


@app.command()
def report(
    context: typer.Context,
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the HTML page.")],
    model: Model = None,
    time: Time = None,
    id: Id = None,
    freq: Freq = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    window: Window = "auto",
    preset: Preset = "auto",
    adapt: Adapt = False,
    max_minutes: MaxMinutes = 5.0,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of a table and show them on one HTML page."""
    with user_messages() as said:
        from mdtim.report import write_report

        frame = _read(source)
        _check_targets(source, output)
        options = table_options(time, id, freq, columns, inf_as_missing, missing_values)
        training = (window, preset, adapt, max_minutes, max_steps, seed, device, quiet or as_json)
        refuse_training(model, context)
        imputer = _imputer(model, options, *training)
        if model is None:
            imputer.fit(frame)
        result = imputer.impute(_as_fitted(imputer, frame))
        summary = write_report(result, output, name=source.name, notes=said)
    facts: dict[str, Any] = {"report": str(output)}
    _show_fit(imputer, said, as_json, quiet, facts | summary.to_dict() if as_json else facts)


@app.command()
def evaluate(
    context: typer.Context,
    source: Source,
    model: Model = None,
    share: Annotated[float, typer.Option(help="Share of the known cells to hide.")] = 0.1,
    time: Time = None,
    id: Id = None,
    freq: Freq = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    window: Window = "auto",
    preset: Preset = "auto",
    adapt: Adapt = False,
    max_minutes: MaxMinutes = 5.0,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    device: Device = "auto",
    report: Report = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hide a share of the known cells, fill them, and score the fill beside simple methods."""
    with user_messages() as said:
        from mdtim import evaluation

        frame = _read(source)
        _check_targets(source, report)
        options = table_options(time, id, freq, columns, inf_as_missing, missing_values)
        training = (window, preset, adapt, max_minutes, max_steps, seed, device, quiet or as_json)
        refuse_training(model, context)
        imputer = _imputer(model, options, *training)
        frame = _as_fitted(imputer, frame)
        scores, _ = evaluation.evaluate(imputer, frame, share=share, seed=seed, fit=model is None)
        if report is not None:
            imputer.impute(frame).report(report, scores, name=source.name, notes=said)
    if as_json:
        print(json.dumps({**scores.to_dict(), "warnings": said}))
    elif not quiet:
        show_evaluation(scores)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A table, or the folder of a model.")],
    time: Time = None,
    id: Id = None,
    freq: Freq = None,
    columns: Columns = None,
    inf_as_missing: InfAsMissing = False,
    missing_values: MissingValues = None,
    as_json: Json = False,
) -> None:
    """Say what is missing in a table, or what a model folder holds."""
    with user_messages() as said:
        if path.is_dir():
            from mdtim.tables.inspection import describe_model

            facts = describe_model(path)
        else:
            from mdtim.tables.inspection import describe_table
            from mdtim.tables.table import Table, TableOptions

            options = table_options(time, id, freq, columns, inf_as_missing, missing_values)
            facts = describe_table(Table.read(_read(path), TableOptions(**options)))
    if as_json:
        print(json.dumps({**facts, "warnings": said}))
        return
    details = facts.pop("columns", [])
    for name, value in facts.items():
        out.print(f"{name.replace('_', ' ')}: {value}", markup=False, highlight=False)
    if details:
        _print_table(details)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the files.")] = Path(
        "demo"
    ),
    adapt: Adapt = False,
    max_minutes: MaxMinutes = 3.0,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fill a year of real weather with real gaps, and score the fill on hidden cells."""
    with user_messages() as said:
        from mdtim.demo import run_demo

        scores, imputer = run_demo(
            output,
            adapt=adapt,
            max_minutes=max_minutes,
            max_steps=max_steps,
            seed=seed,
            device=device,
            progress=False if as_json else "auto",
        )
    if as_json:
        print(json.dumps({**scores.to_dict(), "warnings": said}))
        return
    report = imputer.report_
    trained = f"fitted {report.steps} steps in {report.seconds:.0f} s" if report.steps else ""
    out.print(
        f"NYC weather 2013, three airports: {scores.num_hidden:,} further known cells hidden; "
        f"{trained or 'pretrained network, not trained on this table'}.",
        highlight=False,
    )
    show_evaluation(scores)
    out.print(f"written: {output / 'filled.csv'}, {output / 'report.html'}", highlight=False)


# -- pieces the commands share --------------------------------------------------------------


def _imputer(
    model: Path | None,
    options: dict[str, Any],
    window: str,
    preset: str,
    adapt: bool,
    max_minutes: float,
    max_steps: int | None,
    seed: int,
    device: str,
    silent: bool,
) -> MDTIMImputer:
    """That of a model folder, or one that is still to be fitted."""
    from mdtim.imputer import MDTIMImputer

    if model is not None:
        return _load_imputer(model, options, device)
    return MDTIMImputer(
        window=window_length(window),
        preset=preset,
        adapt=adapt,
        max_minutes=max_minutes,
        max_steps=max_steps,
        seed=seed,
        device=device,
        progress=False if silent else "auto",
        **options,
    )


def _start(from_: str, preset: str, device: str) -> tuple[str, bool]:
    """What a fit starts from: the preset, and whether it adapts a pretrained network."""
    from mdtim.pretrained import is_pretrained
    from mdtim.runtime import resolve_device

    if from_ not in ("pretrained", "nothing"):
        raise ValueError(f"--from is pretrained or nothing, got {from_!r}")
    if from_ == "nothing" and is_pretrained(preset):
        raise ValueError(f"{preset} starts from pretrained weights; leave out --from nothing")
    if preset == "auto" and from_ == "nothing":
        preset = "large" if resolve_device(device).type == "cuda" else "small"
    return preset, from_ == "pretrained" and (preset == "auto" or is_pretrained(preset))


def _load_imputer(folder: Path, options: dict[str, Any], device: str) -> MDTIMImputer:
    """Load a model; what the user says about this table goes before what the model remembers."""
    from mdtim.imputer import MDTIMImputer

    imputer = MDTIMImputer.load(folder, device=device)
    given = {name: value for name, value in options.items() if value not in (None, False, ())}
    imputer.set_params(**given)
    return imputer


def _as_fitted(imputer: MDTIMImputer, frame: Any) -> Any:
    """The columns in the order of the model's, if it has names for them."""
    from mdtim.tables.columns import in_order

    return in_order(frame, list(getattr(imputer, "feature_names_in_", frame.columns)))


def _read(path: Path) -> Any:
    from mdtim.tables.files import read_frame

    return read_frame(path)


def _check_targets(source: Path, *targets: Path | None) -> None:
    """Refuse, before anything is computed, what could not be written or would overwrite."""
    from mdtim.atomic import check_folder

    seen = {source.resolve(): "the input itself"}
    for target in filter(None, targets):
        place = check_folder(target)
        if place in seen:
            raise ValueError(f"{target} is {seen[place]}; choose another output")
        seen[place] = "written to already"


def _show_fit(
    imputer: MDTIMImputer, said: list[str], as_json: bool, quiet: bool, facts: dict[str, Any]
) -> None:
    from dataclasses import asdict

    if as_json:
        fitted = {"window": imputer.window_, "fit": asdict(imputer.report_)}
        print(json.dumps({**facts, **fitted, "warnings": said}))
        return
    if quiet:
        return
    report = imputer.report_
    if report.validation_mae is not None and report.linear_mae is not None:
        trained = f"{report.steps} steps ({report.reason})" if report.steps else report.reason
        out.print(
            f"window {imputer.window_}, {trained}; held-out MAE "
            f"{report.validation_mae:.4f} of a std, linear interpolation {report.linear_mae:.4f}",
            highlight=False,
        )
    for name, value in facts.items():
        if value is not None:
            out.print(f"{name}: {value}", markup=False, highlight=False)


def show_evaluation(scores: Evaluation) -> None:
    """Print the scores as a table."""
    table = RichTable(title="hidden cells, errors in units of each column's std")
    for heading in ("method", "MAE", "RMSE", "CRPS", "90 % coverage"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in scores.rows:
        covered = "–" if row.coverage90 is None else f"{row.coverage90:.1%}"
        table.add_row(row.method, f"{row.mae:.4f}", f"{row.rmse:.4f}", f"{row.crps:.4f}", covered)
    out.print(table)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    table = RichTable()
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "))
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    out.print(table)


def main() -> None:
    """Entry point of the `mdtim` command."""
    app()
