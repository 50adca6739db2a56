"""The training loop: windows from the device, hide cells, predict them, keep the best weights.

Every random number of step n comes from generators seeded with (seed, n), so a resumed run draws
exactly what an uninterrupted one would have drawn, and several ranks what one would have, but for
dropout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mdtim.checkpoint import load_folder, save_folder
from mdtim.config import ModelConfig
from mdtim.diffusion import masked_loss, tokenize
from mdtim.gpu.triton_inverse import MAX_SIZE
from mdtim.inference import Predictor
from mdtim.learning.distributed import RankLost, Ranks
from mdtim.learning.interruption import held_back
from mdtim.learning.lessons import Source
from mdtim.learning.optimization import MovingAverage, Optimizer
from mdtim.learning.replays import Replays
from mdtim.network import FactorizedDiT, Tokens
from mdtim.runtime import own_random_state, precision
from mdtim.threads import threads_for_batches, threads_for_operators
from mdtim.tokenizer import Tokenizer, WindowScale


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


@dataclass(frozen=True, eq=False)
class Exercise:
    """A lesson as the network reads it, and all that its answer is marked by."""

    tokens: Tokens
    scale: WindowScale
    values_BTV: Tensor
    observed_BTV: Tensor
    hidden_BTV: Tensor
    time_B: Tensor
    target_noise_BTV: Tensor | None
    """Uniform in [-0.5, 0.5), where targets are drawn."""
    weight: Tensor | None
    """Share of the batch's observed cells, where several ranks divide a batch."""


class Trainer:
    """One run of training.

    Parameters
    ----------
    network : FactorizedDiT
        On the device of the data; ends with the best averaged weights.
    config : ModelConfig
    data : Source
    seed : int
    replay_steps : bool
        Replay steps as CUDA graphs, where there is a GPU and the table is not too wide for the
        inverses that a graph can capture.
    """

    def __init__(
        self,
        network: FactorizedDiT,
        config: ModelConfig,
        data: Source,
        seed: int,
        *,
        replay_steps: bool = True,
    ) -> None:
        self.network = network
        self.config = config
        self.data = data
        self.seed = seed
        self.device = data.device
        self.tokenizer = Tokenizer(config.tokenizer)
        self.average = MovingAverage(network, config.training.ema_decay)
        self.best = [parameter.clone() for parameter in self.average.average]
        self.optimizer = Optimizer(network, config.training)
        self.progress = Progress()
        self.generator = torch.Generator(self.device)
        self.ranks = Ranks.current()
        captures = data.num_variates <= MAX_SIZE and self.ranks.count == 1
        self.replay_steps = replay_steps and self.device.type == "cuda" and captures
        self.replays: Replays[Exercise] | None = None

    def run(
        self,
        *,
        max_seconds: float | None = None,
        on_step: Callable[[Progress, float], None] | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int = 500,
        validate_first: bool = False,
    ) -> str:
        """Train until done and leave the best weights in the network.

        Parameters
        ----------
        max_seconds : time limit of the whole run, resumed parts included
        on_step : called after every step with the progress and the share of the run that is done
        validate_first : let the weights it starts from compete: the run never ends with worse
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
        if validate_first and self.progress.step == 0:
            self._validate(math.nan)
        self.network.train()
        with (
            held_back() as was_pressed,
            own_random_state(self._cuda_devices()),
            self.stream(),
            threads_for_operators(),
        ):
            try:
                while self.progress.step < training.max_steps:
                    self.ranks.check()
                    if self.progress.stale >= training.patience:
                        reason = "no longer improving"
                        break
                    share = math.inf if was_pressed() else self._share_done(max_seconds)
                    share = self.ranks.agree(share, self.device)
                    if share >= 1:
                        reason = "interrupted" if math.isinf(share) else "out of time"
                        break
                    running += self._step(share)
                    since += 1
                    self.progress.step += 1
                    self.progress.seconds = time.monotonic() - began
                    if self.progress.step % training.validate_every == 0:
                        self._validate(float(running) / since)
                        running.zero_()
                        since = 0
                    if checkpoint and self.progress.step % checkpoint_every == 0:
                        self.save(checkpoint)
                    if on_step is not None:
                        on_step(self.progress, self._share_done(max_seconds))
            except KeyboardInterrupt:
                if was_pressed():  # and now again: not only the training is to end
                    raise
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

    @contextmanager
    def stream(self) -> Iterator[None]:
        """The stream that steps are captured on, in order with what comes before and after.

        The graphs go with it: each holds the memory of a whole step, and as they know the trainer,
        it would stay until Python looks for cycles, which no lack of a GPU's memory makes it do.
        """
        if not self.replay_steps:
            yield
            return
        self.replays = Replays(
            self.device,
            self.generator,
            kind=self.data.prepare,
            seed=self._seed_exercise,
            make=self._make,
            learn=self._learn,
        )
        own = self.replays.stream
        own.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(own):
                yield
        finally:
            own.synchronize()
            self.replays = None

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
        by_steps = self.progress.step / max(self.config.training.max_steps, 1)
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
        step = self.progress.step
        # Dropout knows only the default generator; each rank has its own windows to drop from.
        torch.manual_seed(self._seed_of(step) + (self.ranks.index << 48))
        self.optimizer.set_rate(self.learning_rate(share))
        self.average.set_pace(step)
        if self.replays is not None:
            return self.replays.run(step)
        kind = self.data.prepare(step)
        self._seed_exercise(step)
        return self._learn(self._make(kind))

    def _seed_of(self, step: int) -> int:
        return self.seed * 1_000_003 + step

    def _seed_exercise(self, step: int) -> None:
        self.generator.manual_seed(self._seed_of(step))

    def _make(self, kind: Hashable) -> Exercise:
        """Draw a lesson, and what this rank reads of it."""
        whole = self.data.draw(kind, self.network, self.generator)
        own = self.ranks.share(len(whole.values_BTV))
        noise: list[Tensor | None] = [None, None]
        if self.config.draws_tokens:
            shape = whole.values_BTV.shape
            noise = [
                torch.rand(shape, generator=self.generator, device=self.device)[own] - 0.5
                for _ in range(2)
            ]
        lesson = whole.take(own)
        tokens, scale = tokenize(
            self.tokenizer,
            lesson.values_BTV,
            lesson.observed_BTV & ~lesson.hidden_BTV,
            prior=self.config.network.prior,
            relations=lesson.relations,
            time_B=None if self.config.diffusion.matched_time else lesson.time_B,
            noise_BTV=noise[0],
        )
        weight = None
        if self.ranks.count > 1:
            weight = lesson.observed_BTV.sum() / whole.observed_BTV.sum().clamp_min(1)
        return Exercise(
            tokens,
            scale,
            lesson.values_BTV,
            lesson.observed_BTV,
            lesson.hidden_BTV,
            lesson.time_B,
            target_noise_BTV=noise[1],
            weight=weight,
        )

    def _learn(self, exercise: Exercise) -> Tensor:
        """Follow the gradient of an exercise; returns its loss."""
        with precision(self.device):
            loss = masked_loss(
                self.network,
                self.tokenizer,
                self.config.diffusion,
                tokens=exercise.tokens,
                scale=exercise.scale,
                values_BTV=exercise.values_BTV,
                observed_BTV=exercise.observed_BTV,
                hidden_BTV=exercise.hidden_BTV,
                time_B=exercise.time_B,
                target_noise_BTV=exercise.target_noise_BTV,
            )
        if exercise.weight is not None:
            # The loss is a mean over a rank's observed cells; together, over all of the batch's.
            loss = loss * exercise.weight
        self.optimizer.differentiate(loss)
        loss = loss.detach()
        self.ranks.add_([*self.optimizer.gradients(), loss])
        self.optimizer.step()
        self.average.update()
        return loss

    def _validate(self, loss: float) -> None:
        with self.average.applied(), threads_for_batches(self.device):
            measured = self.data.error(self.predictor())
        error = math.nan if measured is None else self.ranks.agree(measured, self.device)
        progress = self.progress
        record = Record(progress.step, loss, error, self.optimizer.rate, progress.seconds)
        progress.history.append(record)
        # Where nothing could be hidden, nothing tells better weights from worse: keep the last.
        if measured is None or error < progress.best_mae:
            progress.best_mae, progress.best_step, progress.stale = error, progress.step, 0
            self.best = [parameter.clone() for parameter in self.average.average]
        else:
            progress.stale += 1
        self.network.train()

    def predictor(self) -> Predictor:
        """The network as it stands; one draw is enough to tell better weights from worse."""
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
            memory = self.optimizer.memory(live)
            tensors |= {f"optimizer.{key}.{name}": value for key, value in memory.items()}
        save_folder(folder, {"kind": "run", "run": self._document()}, tensors)

    def _document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "config": self.config.to_dict(),
            "data": self.data.fingerprint,
            "progress": asdict(self.progress),
        }

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint of the same run; refuses one of another."""
        document, tensors = load_folder(folder)
        mine, theirs = self._document(), document.get("run", {})
        for part in ("seed", "config", "data"):
            # Through JSON, like the file, so that tuples and lists compare alike.
            if _plain(theirs.get(part)) != _plain(mine[part]):
                raise ValueError(
                    f"{folder} is a checkpoint of another run ({part} differs); "
                    "use the same settings and data, or another checkpoint folder"
                )
        saved = dict(theirs["progress"])
        saved["history"] = [Record(**record) for record in saved["history"]]
        self.progress = Progress(**saved)
        with torch.no_grad():
            for index, (name, live) in enumerate(self.network.named_parameters()):
                live.copy_(tensors[f"live.{name}"])
                self.average.average[index].copy_(tensors[f"average.{name}"])
                self.best[index].copy_(tensors[f"best.{name}"])
                memory = {
                    key: tensors[f"optimizer.{key}.{name}"]
                    for key in ("step", "exp_avg", "exp_avg_sq", "momentum")
                    if f"optimizer.{key}.{name}" in tensors
                }
                self.optimizer.remember(live, memory)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
