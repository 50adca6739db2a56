"""`mdtim benchmark`: run, list and render the experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mdtim.messages import user_messages

app = typer.Typer(help="Run the paper's experiments and render their tables.", no_args_is_help=True)

Experiment = Annotated[
    str,
    typer.Option(help="Name of the experiment (see `list`), or several: main,downstream."),
]
Results = Annotated[Path, typer.Option(help="Results file; rows are appended.")]
Runs = Annotated[Path, typer.Option(help="Folder for models, checkpoints and predictions.")]


@app.command()
def run(
    experiment: Experiment,
    dataset: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    preset: Annotated[str | None, typer.Option(help="Only this configuration.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Only these methods, such as mdtim,saits,linear; without: all it has."),
    ] = None,
    settings: Annotated[
        str,
        typer.Option(
            help="Settings of methods that the experiment does not have; +name=value changes one."
        ),
    ] = "default",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop after this time; the next run goes on.")
    ] = None,
    results: Results = Path("results/paper.csv"),
    runs: Runs = Path("runs"),
) -> None:
    """Train and score every cell that has no row yet."""
    from mdtim.benchmark.experiments import cells_of, with_methods
    from mdtim.benchmark.runner import run_cells
    from mdtim.runtime import resolve_device

    with user_messages():
        cells = []
        for name in experiment.split(","):
            every = cells_of(name, dataset)
            own = [cell for cell in every if preset in (None, cell.preset)]
            if not own:
                known = ", ".join(sorted({cell.preset for cell in every if cell.preset}))
                raise ValueError(f"experiment {name} has no preset {preset!r}; it has {known}")
            cells += own if methods is None else with_methods(own, methods.split(","), settings)
        complete = run_cells(
            cells,
            results,
            runs,
            resolve_device(device),
            max_minutes=max_minutes,
            log=typer.echo,  # unlike print, at once, to a file too
        )
    if not complete:
        raise typer.Exit(1)


@app.command("list")
def list_experiments() -> None:
    """List the experiments with their cells and models."""
    from mdtim.benchmark.experiments import EXPERIMENTS, cells_of

    for name in EXPERIMENTS:
        cells = cells_of(name)
        models = {
            (cell.dataset, cell.window, cell.preset, seed)
            for cell in cells
            if cell.model_config is not None
            for seed in cell.train_seeds
        }
        sets = ", ".join(sorted({cell.dataset for cell in cells}))
        typer.echo(f"{name}: {len(cells)} cells, {len(models)} models, on {sets}")


@app.command()
def tables(
    results: Results = Path("results/paper.csv"),
    output: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("docs/results.md"),
    summary: Annotated[
        Path | None, typer.Option(help="Page whose section of averages is rendered anew.")
    ] = None,
) -> None:
    """Render the results file as tables, beside the paper's figures."""
    from mdtim.atomic import atomic_path
    from mdtim.benchmark.summary import update
    from mdtim.benchmark.tables import render

    with user_messages():
        with atomic_path(output) as path:
            path.write_text(render(results), encoding="utf-8")
        if summary is not None:
            update(summary, results)


@app.command()
def figures(
    runs: Runs = Path("runs"),
    output: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/figures"),
    preset: Annotated[str, typer.Option(help="Configuration whose predictions are drawn.")] = (
        "base"
    ),
) -> None:
    """Draw filled windows, from the predictions that the experiment main kept."""
    from mdtim.benchmark.figures import draw_figures

    with user_messages():
        for path in draw_figures(runs, output, preset):
            typer.echo(f"wrote {path}")
