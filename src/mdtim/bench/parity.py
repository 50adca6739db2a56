"""Train on ETTh with this implementation and with plain PyTorch: the same error, seed by seed.

Kernels in bfloat16 may be as exact as one likes on random numbers; what counts is whether a
network learns the same with them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch

from mdtim.bench.environment import commit, device_name, versions
from mdtim.bench.speed import Variant, set_up
from mdtim.config import ModelConfig, preset
from mdtim.datasets import load
from mdtim.learning.fitting import new_network
from mdtim.learning.lessons import TrainingData
from mdtim.learning.relations import read_relations
from mdtim.learning.training import Trainer
from mdtim.masks import MaskMix
from mdtim.missingness import uniform
from mdtim.runtime import resolve_device
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.windows import every_window

SEEDS = (0, 1, 2)
VARIANTS: tuple[Variant, ...] = ("mdtim", "eager")
WINDOW = 48
VALIDATION_WINDOWS = 512
HIDDEN = 0.5


@dataclass(frozen=True)
class ParityRow:
    """One training."""

    variant: str
    seed: int
    steps: int
    validation_mae: float
    """Of the averaged weights after the last step, half of the cells hidden."""
    seconds: float
    device: str
    versions: str
    commit: str


def train(config: ModelConfig, variant: Variant, seed: int, device: torch.device) -> ParityRow:
    """Train once; validate at the end."""
    dataset = load("etth", WINDOW)
    series = DeviceSeries.put(dataset.values.astype(np.float32), device)
    index = every_window(np.array(dataset.training), WINDOW)
    held = every_window(np.array(dataset.validation), WINDOW)
    held = held.take(np.linspace(0, len(held) - 1, VALIDATION_WINDOWS).astype(np.int64))
    shape = (len(held), WINDOW, dataset.values.shape[1])
    hidden = torch.from_numpy(uniform(shape, HIDDEN, np.random.default_rng(0))).to(device)
    data = TrainingData(
        series,
        DeviceWindows.put(index, device),
        DeviceWindows.put(held, device),
        hidden,
        MaskMix.from_config(config.diffusion),
        config.training.batch_size,
    )
    network = set_up(new_network(config, shape[2], seed).to(device), variant)
    network.learn_relations(read_relations(series, index, config.network.prior))
    trainer = Trainer(network, config, data, seed, replay_steps=variant == "mdtim")
    trainer.run()
    last = trainer.progress.history[-1]
    return ParityRow(
        variant=variant,
        seed=seed,
        steps=last.step,
        validation_mae=round(last.validation_mae, 5),
        seconds=round(trainer.progress.seconds, 1),
        device=device_name(device),
        versions=versions(),
        commit=commit(),
    )


def run_parity(device: str = "auto", steps: int = 600) -> Iterator[ParityRow]:
    """Every variant with every seed: the large network on a GPU, the small one on a CPU."""
    found = resolve_device(device)
    size = "large" if found.type == "cuda" else "small"
    config = preset(size).change(
        max_steps=steps, max_passes=None, max_views=None, validate_every=steps
    )
    for variant in VARIANTS:
        for seed in SEEDS:
            yield train(config, variant, seed, found)


def main() -> None:
    """Run without the command line's dependencies: `python -m mdtim.bench.parity [device]`."""
    device, *_ = [*sys.argv[1:], "auto"]
    for row in run_parity(device):
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
