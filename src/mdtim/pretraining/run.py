"""Train a network that comes with the package: the exact way its weights were made."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mdtim.bench.environment import commit, device_name, versions
from mdtim.config import ModelConfig, preset
from mdtim.learning.fitting import new_network
from mdtim.learning.training import Trainer
from mdtim.pretrained import save_pretrained
from mdtim.pretraining.school import SHAPES, School

NETWORKS = ("zero-mini", "zero-base")


def pretraining_config(name: str, steps: int) -> ModelConfig:
    """The preset with the schedule of pretraining instead of that of adaptation."""
    return preset(name).change(
        optimizer="muon",
        max_steps=steps,
        learning_rate=2e-3,
        weight_decay=0.01,
        warmup_steps=1_000,
        ema_decay=0.999,
        validate_every=max(1, steps // 12),
        patience=steps,
    )


def pretrain(
    name: str,
    folder: Path,
    *,
    steps: int,
    seed: int,
    device: torch.device,
    checkpoint: Path,
    max_seconds: float,
    log: Callable[[str], None],
) -> bool:
    """Train on made-up tables and write weights and card; False if the time was not enough.

    A run that is cut short leaves a checkpoint, from which the same call goes on.
    """
    if name not in NETWORKS:
        raise ValueError(f"{name!r} cannot be pretrained; choose one of {', '.join(NETWORKS)}")
    config = pretraining_config(name, steps)
    network = new_network(config, 1, seed).to(device)
    school = School(device, seed)
    trainer = Trainer(network, config, school, seed)
    if checkpoint.exists():
        trainer.resume(checkpoint)
    limit = time.monotonic() + max_seconds
    told = len(trainer.progress.history)

    def on_step(progress: Any, share: float) -> None:
        nonlocal told
        if len(progress.history) > told:
            told = len(progress.history)
            last = progress.history[-1]
            log(
                f"step {last.step:6d}  loss {last.loss:.4f}  error / linear "
                f"{last.validation_mae:.4f}  {last.seconds:.0f} s"
            )
        if time.monotonic() > limit:
            raise KeyboardInterrupt

    reason = trainer.run(on_step=on_step, checkpoint=checkpoint, checkpoint_every=steps)
    if reason == "interrupted":
        return False
    ratios = school.ratios(trainer.predictor())
    cells = sum(shape.num_windows * shape.num_steps * shape.num_variates for shape in SHAPES)
    card = {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "data": "made-up tables (mdtim.pretraining.tables) with made-up gaps; no real data",
        "steps": steps,
        "windows": steps * sum(shape.num_windows for shape in SHAPES) // len(SHAPES),
        "cells": steps * cells // len(SHAPES),
        "seed": seed,
        "seconds": round(trainer.progress.seconds),
        "command": f"mdtim pretrain {name} --steps {steps} --seed {seed} --device {device.type}",
        "error_relative_to_linear": {
            f"{shape.num_steps} steps, {shape.num_variates} variates": round(ratio, 4)
            for shape, ratio in ratios.items()
        },
        "device": device_name(device),
        "versions": versions(),
        "commit": commit(),
    }
    save_pretrained(network, config, folder, card)
    return True
