"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mdtim.messages import fail

Source = Annotated[Path, typer.Argument(help="CSV or Parquet file, compressed or not.")]
Time = Annotated[str | None, typer.Option(help="Time column; found by itself if not given.")]
Id = Annotated[str | None, typer.Option(help="Column that names the series of a panel.")]
Freq = Annotated[str | None, typer.Option(help="Sampling period (h, 10min): adds missing rows.")]
Columns = Annotated[str | None, typer.Option(help="Columns to look at and fill, comma-separated.")]
InfAsMissing = Annotated[bool, typer.Option("--inf-as-missing", help="Treat ±inf as missing.")]
MissingValues = Annotated[
    str | None, typer.Option(help="Numbers that stand for missing, such as -999,-9999.")
]
Window = Annotated[str, typer.Option(help="Steps the network sees at once, or auto.")]
Preset = Annotated[
    str,
    typer.Option(
        help="auto (a pretrained network), zero-mini, zero-base; base, which is trained further on "
        "the table; or, to train from nothing, small, large, paper-small, paper-large."
    ),
]
Adapt = Annotated[
    bool, typer.Option("--fit", help="Train the pretrained network further on this table.")
]
MaxMinutes = Annotated[float, typer.Option(help="Time limit of the fit.")]
MaxSteps = Annotated[
    int | None, typer.Option(help="Train for so many steps at most; asks for training.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Model = Annotated[
    Path | None, typer.Option(help="Folder of a fitted model; without, the pretrained network.")
]
Report = Annotated[Path | None, typer.Option(help="Write an HTML report here.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but warnings and errors.")]

Quantiles = Annotated[
    str | None, typer.Option(help="Extra columns, such as 0.05,0.95 (name_q0.05).")
]


def table_options(
    time: str | None,
    id: str | None,
    freq: str | None,
    columns: str | None,
    inf_as_missing: bool,
    missing_values: str | None,
) -> dict[str, Any]:
    """What was said of a table, as arguments of `TableOptions` and `MDTIMImputer`."""
    try:
        placeholders = tuple(float(part) for part in (missing_values or "").split(",") if part)
    except ValueError:
        raise ValueError(
            f"--missing-values takes numbers such as -999,-9999, got {missing_values!r}"
        ) from None
    return {
        "time": time,
        "id": id,
        "freq": freq,
        "columns": None if columns is None else tuple(name.strip() for name in columns.split(",")),
        "inf_as_missing": inf_as_missing,
        "missing_values": placeholders,
    }


def quantile_levels(text: str | None) -> list[float]:
    """Read `--quantiles`; a mistake ends the command."""
    if text is None:
        return []
    try:
        levels = [float(part) for part in text.split(",")]
    except ValueError:
        fail(f"--quantiles takes numbers such as 0.05,0.95, got {text!r}")
    if not all(0 < level < 1 for level in levels):
        fail(f"--quantiles lie between 0 and 1, got {text}")
    return levels


def window_length(text: str) -> int | str:
    """Read `--window`."""
    if text != "auto" and not text.isdigit():
        raise ValueError(f"--window must be auto or a whole number of steps, got {text!r}")
    return text if text == "auto" else int(text)


def refuse_training(model: Path | None, context: typer.Context) -> None:
    """Nothing is trained where there is a model: an option that asks for it would be ignored."""
    asked = {"window", "preset", "adapt", "max_minutes", "max_steps"}
    if context.info_name != "evaluate":  # where the seed hides cells
        asked.add("seed")
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in asked
        and getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
    if model is not None and given:
        raise ValueError(
            f"{', '.join(given)} cannot be followed: a model given with --model is used as it was "
            "fitted; leave out one or the other"
        )
