"""A run of training of any kind that ends in a second."""

from __future__ import annotations

import numpy as np
import torch

from conftest import waves
from mdtim.config import ModelConfig
from mdtim.learning.lessons import TrainingData
from mdtim.learning.training import Trainer
from mdtim.masks import MaskMix
from mdtim.missingness import uniform
from mdtim.network import FactorizedDiT
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.windows import every_window

CPU = torch.device("cpu")


def trainer(
    config: ModelConfig, seed: int = 0, device: torch.device = CPU, **options: bool
) -> Trainer:
    values = waves(160, 2).astype(np.float32)
    values[30:34, 0] = np.nan
    index = every_window(np.array([0, 160]), 16)
    training, validation = index.take(np.arange(0, 110)), index.take(np.arange(126, 145, 3))
    hidden = uniform((len(validation), 16, 2), 0.3, np.random.default_rng(0))
    data = TrainingData(
        DeviceSeries.put(values, device),
        DeviceWindows.put(training, device),
        DeviceWindows.put(validation, device),
        torch.from_numpy(hidden).to(device),
        MaskMix.from_config(config.diffusion, torch.tensor([3.0, 5.0], device=device)),
        config.training.batch_size,
    )
    torch.manual_seed(seed)
    network = FactorizedDiT(config.network, config.tokenizer, 2).to(device)
    return Trainer(network, config, data, seed, **options)
