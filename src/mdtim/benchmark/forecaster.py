"""What a fill is good for: forecasts from filled windows, by a PatchTST that never saw a gap.

The forecaster is the one in `transformers`. It is trained once for each horizon on whole windows
and never again, so that what differs between fills is their own doing.

B and W windows, T steps, V variates, H steps ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mdtim.checkpoint import load_folder, load_weights, save_folder
from mdtim.datasets import Dataset
from mdtim.windows import every_window


@dataclass(frozen=True)
class ForecasterConfig:
    """Size and training of the forecaster: that of its paper, with patches for short windows."""

    patch_length: int = 8
    patch_stride: int = 4
    width: int = 128
    num_heads: int = 16
    num_layers: int = 3
    ffn_width: int = 256
    dropout: float = 0.2
    batch_size: int = 128
    max_steps: int = 3_000
    learning_rate: float = 5e-4
    validate_every: int = 250
    seed: int = 0


class Forecaster:
    """A forecaster of H steps, trained on the whole windows of a data set or loaded."""

    def __init__(
        self,
        dataset: Dataset,
        window: int,
        horizon: int,
        device: torch.device,
        config: ForecasterConfig | None = None,
    ) -> None:
        self.config = config or ForecasterConfig()
        self.window, self.horizon, self.device = window, horizon, device
        self.dataset = dataset
        self.values_NV = torch.from_numpy(dataset.values.astype(np.float32)).to(device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.config.seed)
            self.network = _patchtst(self.config, dataset.values.shape[1], window, horizon)
        self.network.to(device)
        self.train_seconds = 0.0

    def prepare(self, runs: Path, log: Callable[[str], None]) -> None:
        """Load the forecaster from its folder, or train it and put it there."""
        key = (self.dataset.name, self.window, self.horizon, self.config.seed)
        folder = runs / "-".join(map(str, ("patchtst", *key)))
        wanted = {"kind": "forecaster", "config": asdict(self.config)}
        if (folder / "config.json").exists():
            document, tensors = load_folder(folder)
            if all(document.get(name) == value for name, value in wanted.items()):
                state = self.network.state_dict()
                self.network.load_state_dict(load_weights(state, tensors, folder))
                self.network.eval()
                self.train_seconds = document["train_seconds"]
                return
        self._train(log)
        document = {**wanted, "train_seconds": self.train_seconds}
        save_folder(folder, document, self.network.state_dict())

    def _train(self, log: Callable[[str], None]) -> None:
        config = self.config
        began = time.monotonic()
        training, validation = (
            self._starts(rows) for rows in (self.dataset.training, self.dataset.validation)
        )
        # Neighbours say the same: an even subset tells better weights from worse.
        validation = validation[:: max(len(validation) // 1_024, 1)]
        generator = torch.Generator(self.device).manual_seed(config.seed)
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=config.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.max_steps)
        best, best_error = self.network.state_dict(), float("inf")
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(config.seed)  # dropout knows only the default generator
            for step in range(1, config.max_steps + 1):
                self.network.train()
                chosen = torch.randint(
                    len(training), (config.batch_size,), generator=generator, device=self.device
                )
                past, future = self._cut(training[chosen])
                loss = nn.functional.mse_loss(self._predict(past), future)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                if step % config.validate_every == 0 or step == config.max_steps:
                    error, _ = self.errors(self._cut(validation)[0], validation)
                    log(f"  forecaster of {self.horizon}: step {step:5d}  MAE {error:.5f}")
                    if error < best_error:
                        state = self.network.state_dict()
                        best = {name: tensor.clone() for name, tensor in state.items()}
                        best_error = error
        self.network.load_state_dict(best)
        self.network.eval()
        self.train_seconds = time.monotonic() - began

    def _starts(self, rows: tuple[int, int]) -> Tensor:
        """First rows of all windows that lie inside the rows together with their future."""
        index = every_window(np.array(rows), self.window + self.horizon)
        return torch.from_numpy(index.starts).to(self.device)

    def _cut(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(self.window + self.horizon, device=self.device)
        both = self.values_NV[starts[:, None] + steps]
        return both[:, : self.window], both[:, self.window :]

    def _predict(self, past_BTV: Tensor) -> Tensor:
        prediction: Tensor = self.network(past_values=past_BTV).prediction_outputs
        return prediction

    @torch.no_grad()
    def errors(self, past_WTV: Tensor, starts: Tensor) -> tuple[float, float]:
        """Mean absolute and squared error of the forecasts from windows as they were filled.

        Parameters
        ----------
        past_WTV : filled windows
        starts : (W,) their first rows; the known rows after them are the truth
        """
        self.network.eval()
        absolute = squared = 0.0
        for begin in range(0, len(starts), 512):
            part = slice(begin, begin + 512)
            error = (self._predict(past_WTV[part]) - self._cut(starts[part])[1]).double()
            absolute += float(error.abs().sum())
            squared += float((error**2).sum())
        count = len(starts) * self.horizon * past_WTV.shape[2]
        return absolute / count, squared / count


def _patchtst(config: ForecasterConfig, num_variates: int, window: int, horizon: int) -> nn.Module:
    try:
        from transformers import PatchTSTConfig, PatchTSTForPrediction
    except ImportError as error:
        raise ValueError("the forecaster is in a package: pip install 'mdtim[bench]'") from error
    options: dict[str, Any] = {
        "num_input_channels": num_variates,
        "context_length": window,
        "prediction_length": horizon,
        "patch_length": config.patch_length,
        "patch_stride": config.patch_stride,
        "d_model": config.width,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "ffn_dim": config.ffn_width,
        "attention_dropout": config.dropout,
        "ff_dropout": config.dropout,
        "head_dropout": config.dropout,
        "scaling": "std",
        # All patches reach the head, as in the forecaster's paper.
        "pooling_type": None,
        "loss": "mse",
    }
    network: nn.Module = PatchTSTForPrediction(PatchTSTConfig(**options))
    return network
