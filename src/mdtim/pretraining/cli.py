"""The command `mdtim pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mdtim.messages import fail, out, user_messages
from mdtim.options import Device, Seed


def pretrain(
    name: Annotated[str, typer.Argument(help="zero-mini or zero-base.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the weights.")],
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 20_000,
    checkpoint: Annotated[
        Path, typer.Option(help="Folder for the checkpoint of a run that is cut short.")
    ] = Path("pretraining"),
    max_minutes: Annotated[float, typer.Option(help="Stop then; the same command goes on.")] = 60.0,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Train a network that comes with the package, on made-up tables."""
    with user_messages():
        from mdtim.pretraining.run import pretrain as train
        from mdtim.runtime import resolve_device

        done = train(
            name,
            output,
            steps=steps,
            seed=seed,
            device=resolve_device(device),
            checkpoint=checkpoint,
            max_seconds=60 * max_minutes,
            log=lambda line: out.print(line, highlight=False),
        )
    if not done:
        fail("out of time; the same command goes on from the checkpoint")
