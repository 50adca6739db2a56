"""The training loop: windows from the device, hide cells, predict them, keep the best weights.

Every random number of step n comes from generators seeded with (seed, n), so a resumed run draws
exactly what an uninterrupted one would have drawn, and several ranks what one would have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mdtim.checkpoint import load_folder, save_folder
from mdtim.config import ModelConfig
from mdtim.diffusion import mask_rate, masked_loss, stratified_times
from mdtim.distributed import RankLost, Ranks
from mdtim.distribution import BinDistribution
from mdtim.inference import Predictor
from mdtim.masks import MaskMix
from mdtim.network import FactorizedDiT
from mdtim.runtime import precision
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.stacking import StackCells
from mdtim.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a network is trained and validated on."""

    series: DeviceSeries
    training: DeviceWindows
    validation: DeviceWindows
    hidden_WTV: Tensor
    """bool, on the device: the observed cells of each validation window that are hidden from it."""
    masks: MaskMix


@dataclass(frozen=True)
class Record:
    """One line of a run's history, written at every validation."""

    step: int
    loss: float
    validation_mae: float
    learning_rate: float
    seconds: float


@dataclass
class Progress:
    """Where a run stands; all of it goes into a checkpoint."""

    step: int = 0
    seconds: float = 0.0
    best_mae: float = math.inf
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    history: list[Record] = field(default_factory=list)


class MovingAverage:
    """Exponential moving average of a network's weights."""

    def __init__(self, network: FactorizedDiT, decay: float) -> None:
        self.decay = decay
        self.live: list[Tensor] = list(network.parameters())
        self.average = [parameter.detach().clone() for parameter in self.live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the live weights; faster in the first steps, which start from noise."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.live, 1 - decay)

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Run a block with the averaged weights in the network."""
        kept = [parameter.detach().clone() for parameter in self.live]
        torch._foreach_copy_(self.live, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self.live, kept)


class Trainer:
    """One run of training.

    Parameters
    ----------
    network : FactorizedDiT
        On the device of the data; ends with the best averaged weights.
    config : ModelConfig
    data : TrainingData
    seed : int
    compile_step : bool
        Let PyTorch compile the loss (worth it on a GPU).
    """

    def __init__(
        self,
        network: FactorizedDiT,
        config: ModelConfig,
        data: TrainingData,
        seed: int,
        *,
        compile_step: bool = False,
    ) -> None:
        self.network = network
        self.config = config
        self.data = data
        self.seed = seed
        self.device = data.series.values_NV.device
        self.tokenizer = Tokenizer(config.tokenizer)
        self.average = MovingAverage(network, config.training.ema_decay)
        self.best = [parameter.clone() for parameter in self.average.average]
        self.optimizer = torch.optim.AdamW(
            network.parameters(),
            lr=config.training.learning_rate,
            weight_decay=config.training.weight_decay,
            fused=True,
        )
        self.progress = Progress()
        self.loss = torch.compile(masked_loss) if compile_step else masked_loss
        self.ranks = Ranks.current()

    def run(
        self,
        *,
        max_seconds: float | None = None,
        on_step: Callable[[Progress, float], None] | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int = 500,
    ) -> str:
        """Train until done and leave the best weights in the network.

        Parameters
        ----------
        max_seconds : time limit of the whole run, resumed parts included
        on_step : called after every step with the progress and the share of the run that is done
        checkpoint : folder to save to every `checkpoint_every` steps, and when the run is cut short

        Returns
        -------
        reason : "finished", "no longer improving", "out of time" or "interrupted"
        """
        training = self.config.training
        began = time.monotonic() - self.progress.seconds
        running = torch.zeros((), device=self.device)
        since = 0
        reason = "finished"
        self.network.train()
        with torch.random.fork_rng(devices=self._cuda_devices()):
            try:
                while self.progress.step < training.max_steps:
                    self.ranks.check()
                    share = self.ranks.agree(self._share_done(max_seconds), self.device)
                    if share >= 1:
                        reason = "out of time"
                        break
                    running += self._step(share)
                    since += 1
                    self.progress.step += 1
                    self.progress.seconds = time.monotonic() - began
                    if self.progress.step % training.validate_every == 0:
                        self._validate(float(running) / since)
                        running.zero_()
                        since = 0
                        if self.progress.stale >= training.patience:
                            reason = "no longer improving"
                            break
                    if checkpoint and self.progress.step % checkpoint_every == 0:
                        self.save(checkpoint)
                    if on_step is not None:
                        on_step(self.progress, self._share_done(max_seconds))
            except KeyboardInterrupt:
                reason = "interrupted"
            except RankLost as loss:
                raise self._lost(loss, checkpoint) from loss
            if checkpoint and reason != "finished":
                # Before the last validation, which an uninterrupted run would not have made.
                self.save(checkpoint)
            if since or not self.progress.history:
                self._validate(float(running) / max(since, 1))
        with torch.no_grad():
            torch._foreach_copy_(list(self.network.parameters()), self.best)
        self.network.eval()
        return reason

    def _lost(self, loss: RankLost, checkpoint: Path | None) -> RankLost:
        """Save what there is, and say how to go on."""
        where = "there is no checkpoint to go on from; name a folder for one"
        if checkpoint is not None:
            self.save(checkpoint)
            where = f"run the same command again to go on from {checkpoint}"
        return RankLost(f"training ended after step {self.progress.step}: {loss}; {where}")

    def _cuda_devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _share_done(self, max_seconds: float | None) -> float:
        """Share of the run that is behind us, by steps or by the clock, whichever is further."""
        by_steps = self.progress.step / self.config.training.max_steps
        return max(by_steps, self.progress.seconds / max_seconds) if max_seconds else by_steps

    def learning_rate(self, share: float) -> float:
        """Warm-up, then constant or a cosine down to zero at the end of the run."""
        training = self.config.training
        warm = min(1.0, (self.progress.step + 1) / max(training.warmup_steps, 1))
        if not training.cosine:
            return training.learning_rate * warm
        begin = min(training.warmup_steps / training.max_steps, 0.99)
        after = min(max(share - begin, 0.0) / (1 - begin), 1.0)
        return training.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * after))

    def _step(self, share: float) -> Tensor:
        """One optimizer step; returns the loss, still on the device."""
        seed = self.seed * 1_000_003 + self.progress.step
        generator = torch.Generator(self.device).manual_seed(seed)
        # Dropout knows only the default generator; each rank has its own windows to drop from.
        torch.manual_seed(seed + (self.ranks.index << 48))
        windows, size = self.data.training, self.config.training.batch_size
        chosen = torch.randint(len(windows), (size,), generator=generator, device=self.device)
        batch = self.data.series.gather(
            windows.starts[chosen], windows.ends[chosen], windows.length
        )
        shape = (size, windows.length, batch.values_BTV.shape[2])
        time_B = stratified_times(size, generator)
        hidden = self.data.masks.draw(mask_rate(time_B), shape, generator)
        noise: list[Tensor | None] = [None, None]
        if self.config.draws_tokens:
            noise = [
                torch.rand(shape, generator=generator, device=self.device) - 0.5 for _ in range(2)
            ]
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(share)
        own = self.ranks.share(size)
        with precision(self.device):
            loss = self.loss(
                self.network,
                self.tokenizer,
                self.config.diffusion,
                values_BTV=batch.values_BTV[own],
                observed_BTV=batch.observed_BTV[own],
                hidden_BTV=hidden[own],
                time_B=time_B[own],
                input_noise_BTV=None if noise[0] is None else noise[0][own],
                target_noise_BTV=None if noise[1] is None else noise[1][own],
            )
        if self.ranks.count > 1:
            # The loss is a mean over a rank's observed cells; together, over all of the batch's.
            loss = loss * (batch.observed_BTV[own].sum() / batch.observed_BTV.sum().clamp_min(1))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        self.ranks.add_([*gradients, loss])
        torch.nn.utils.clip_grad_norm_(
            self.network.parameters(), self.config.training.clip_norm, foreach=True
        )
        self.optimizer.step()
        self.average.update(self.progress.step)
        return loss

    def _validate(self, loss: float) -> None:
        with self.average.applied():
            error = validation_mae(self._predictor(), self.data)
        error = self.ranks.agree(error, self.device)
        progress = self.progress
        rate = self.optimizer.param_groups[0]["lr"]
        progress.history.append(Record(progress.step, loss, error, rate, progress.seconds))
        if error < progress.best_mae:
            progress.best_mae, progress.best_step, progress.stale = error, progress.step, 0
            self.best = [parameter.clone() for parameter in self.average.average]
        else:
            progress.stale += 1
        self.network.train()

    def _predictor(self) -> Predictor:
        # One draw is enough to tell better weights from worse.
        return Predictor(self.network.eval(), self.config.change(num_draws=1), self.seed)

    # -- saving and resuming ----------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write all that is needed to go on as if nothing had happened, on any number of ranks."""
        if not self.ranks.is_first:
            return
        names = [name for name, _ in self.network.named_parameters()]
        tensors: dict[str, Tensor] = {}
        for name, live, average, best in zip(
            names, self.average.live, self.average.average, self.best, strict=True
        ):
            tensors |= {f"live.{name}": live, f"average.{name}": average, f"best.{name}": best}
            state = self.optimizer.state.get(live, {})
            tensors |= {f"optimizer.{key}.{name}": value for key, value in state.items()}
        save_folder(folder, {"kind": "run", "run": self._document()}, tensors)

    def _document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "config": self.config.to_dict(),
            "progress": asdict(self.progress),
        }

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint of the same run; refuses one of another."""
        document, tensors = load_folder(folder)
        mine, theirs = self._document(), document.get("run", {})
        for part in ("seed", "config"):
            # Through JSON, like the file, so that tuples and lists compare alike.
            if _plain(theirs.get(part)) != _plain(mine[part]):
                raise ValueError(
                    f"{folder} is a checkpoint of another run ({part} differs); "
                    "use the same settings, or another checkpoint folder"
                )
        saved = dict(theirs["progress"])
        saved["history"] = [Record(**record) for record in saved["history"]]
        self.progress = Progress(**saved)
        with torch.no_grad():
            for index, (name, live) in enumerate(self.network.named_parameters()):
                live.copy_(tensors[f"live.{name}"])
                self.average.average[index].copy_(tensors[f"average.{name}"])
                self.best[index].copy_(tensors[f"best.{name}"])
                prefix = "optimizer."
                state = {
                    key: tensors[f"{prefix}{key}.{name}"].to(
                        "cpu" if key == "step" and self.device.type == "cpu" else self.device
                    )
                    for key in ("step", "exp_avg", "exp_avg_sq")
                    if f"{prefix}{key}.{name}" in tensors
                }
                if state:
                    self.optimizer.state[live] = state


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, eq=False)
class ValidationCells:
    """Hidden cells of validation windows, in standardized units."""

    truth: Tensor
    """(C,) float64."""
    said: StackCells
    """What network and interpolation say about them."""
    share: Tensor
    """(C,) masked share of each cell's window."""


def validation_cells(
    predictor: Predictor, data: TrainingData, batch_size: int = 256
) -> Iterator[ValidationCells]:
    """Predict the hidden cells of the validation windows, batch by batch."""
    windows = data.validation
    for begin in range(0, len(windows), batch_size):
        part = slice(begin, begin + batch_size)
        batch = data.series.gather(windows.starts[part], windows.ends[part], windows.length)
        scored = data.hidden_WTV[part] & batch.observed_BTV
        said, share = predictor.cells(batch, batch.observed_BTV & ~scored, scored)
        yield ValidationCells(batch.values_BTV[scored].double(), said, share)


def validation_mae(predictor: Predictor, data: TrainingData) -> float:
    """Mean absolute error over the hidden validation cells, in standardized units."""
    total = torch.zeros((), dtype=torch.float64, device=predictor.device)
    count = 0
    for cells in validation_cells(predictor, data):
        total += (predictor.stacked(cells.said).mean() - cells.truth).abs().sum()
        count += len(cells.truth)
    return float(total / max(count, 1))


MAX_CALIBRATION_CELLS = 100_000
"""More cells would not move what is fitted to them, only cost memory."""


def held_out_cells(predictor: Predictor, data: TrainingData) -> ValidationCells | None:
    """All hidden validation cells (or an even subset) on the CPU; None if there are none."""
    seen = list(validation_cells(predictor, data))
    count = sum(len(cells.truth) for cells in seen)
    if not count:
        return None
    every = -(-count // MAX_CALIBRATION_CELLS)

    def collect(pick: Callable[[ValidationCells], Tensor]) -> Tensor:
        return torch.cat([pick(cells)[::every].cpu() for cells in seen])

    distribution = BinDistribution(
        collect(lambda cells: cells.said.distribution.probs),
        collect(lambda cells: cells.said.distribution.low),
        collect(lambda cells: cells.said.distribution.step),
    )
    said = StackCells(
        distribution,
        collect(lambda cells: cells.said.linear),
        collect(lambda cells: cells.said.nearest),
        collect(lambda cells: cells.said.variate),
    )
    return ValidationCells(
        collect(lambda cells: cells.truth), said, collect(lambda cells: cells.share)
    )
