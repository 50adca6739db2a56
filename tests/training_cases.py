"""A run of training of any kind that ends in a second."""

from __future__ import annotations

import numpy as np
import torch

from conftest import waves
from mdtim.config import ModelConfig
from mdtim.masks import MaskMix
from mdtim.missingness import uniform
from mdtim.network import FactorizedDiT
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.training import Trainer, TrainingData
from mdtim.windows import every_window

CPU = torch.device("cpu")


def trainer(config: ModelConfig, seed: int = 0) -> Trainer:
    values = waves(160, 2).astype(np.float32)
    values[30:34, 0] = np.nan
    index = every_window(np.array([0, 160]), 16)
    training, validation = index.take(np.arange(0, 110)), index.take(np.arange(126, 145, 3))
    data = TrainingData(
        DeviceSeries.put(values, CPU),
        DeviceWindows.put(training, CPU),
        DeviceWindows.put(validation, CPU),
        torch.from_numpy(uniform((len(validation), 16, 2), 0.3, np.random.default_rng(0))),
        MaskMix.from_config(config.diffusion, torch.tensor([3.0, 5.0])),
    )
    torch.manual_seed(seed)
    network = FactorizedDiT(config.network, config.tokenizer, 2)
    return Trainer(network, config, data, seed)
