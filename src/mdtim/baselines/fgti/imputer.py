"""FGTI behind the protocol: train the noise network, draw samples, take their median.

Samples depend on the seed and the window alone: a window gets the same ones in any batch.
W windows, B windows of a batch, T steps, V variates, S samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mdtim.baselines.diffusion import Schedule
from mdtim.baselines.fgti.filling import FusedFilling, PlainFilling
from mdtim.baselines.fgti.network import GuidedNoiseNetwork, NetworkSizes
from mdtim.baselines.noise import CELLS_AT_ONCE, cell_keys, normal, parts, samples_first
from mdtim.baselines.protocol import Filled, HeldOut, Windows, keep_observed
from mdtim.baselines.settings import Settings
from mdtim.baselines.training_clock import TrainingClock
from mdtim.closed_form.guesses import Neighbours

VALIDATION_LEVELS = 5
"""Noise levels per validation window; the score is their mean."""
_WEIGHT_DECAY = 1e-6
"""That of CSDI's authors."""


class FGTIImputer:
    """A diffusion imputer guided by frequencies.

    Parameters
    ----------
    num_steps, num_variates : T and V of all windows
    """

    def __init__(
        self,
        settings: Settings,
        num_steps: int,
        num_variates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        values = dict(settings.values)
        self.num_samples: int = values.pop("num_samples")
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be 1 or more, got {self.num_samples}")
        self.learning_rate: float = values.pop("lr")
        # Shares of the updates, or of the time if that ends first, each followed by a tenth of it.
        self.lr_drops: list[float] = values.pop("lr_drops")
        first, last = values.pop("beta_first"), values.pop("beta_last")
        self.limits = settings.limits
        self.seed = seed
        self.device = device
        sizes = NetworkSizes(**values)
        self.num_variates = num_variates
        self.network = self._new_network(sizes)
        self.schedule = Schedule.quadratic(sizes.num_diffusion_steps, first, last, device)
        self._filling: PlainFilling | FusedFilling | None = None
        self.fill_dtype = torch.float16 if device.type == "cuda" else torch.float32

    def _new_network(self, sizes: NetworkSizes) -> GuidedNoiseNetwork:
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            return GuidedNoiseNetwork(sizes, self.num_variates).to(self.device)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    # -- training ---------------------------------------------------------------------------

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        """Adam with two drops of its rate; the best epoch by the validation's noise error."""
        limits = self.limits
        epochs = limits.epochs(len(training_WTV))
        self.network = self._new_network(self.network.sizes)
        generator = np.random.default_rng(self.seed)
        optimizer = torch.optim.Adam(
            self.network.parameters(), lr=self.learning_rate, weight_decay=_WEIGHT_DECAY
        )
        num_updates = epochs * -(-len(training_WTV) // limits.batch_size)
        clock = TrainingClock(60 * limits.max_minutes, num_updates, self.lr_drops)
        best, best_state, waited = math.inf, None, 0
        for _ in range(epochs):
            self.network.train()
            order = generator.permutation(len(training_WTV))
            for begin in range(0, len(order), limits.batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = clock.rate(self.learning_rate)
                batch = training_WTV[np.sort(order[begin : begin + limits.batch_size])]
                loss = self._training_loss(batch, generator)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                clock.updates += 1
                if clock.is_out_of_time:
                    break
            error = self._validation_error(validation)
            if error < best:
                best, best_state, waited = error, copy.deepcopy(self.network.state_dict()), 0
            else:
                waited += 1
            if clock.is_out_of_time or (waited >= limits.patience and clock.may_end_early):
                break
        if best_state is None:
            raise ValueError("FGTI's validation error was never a finite number")
        self.restore(best_state)

    def _training_loss(self, batch_BTV: Windows, generator: np.random.Generator) -> Tensor:
        """Squared error of the noise at cells hidden at random, a random share in each window."""
        share = generator.uniform(size=(len(batch_BTV), 1, 1))
        known = ~np.isnan(batch_BTV)
        hidden = known & (generator.uniform(size=batch_BTV.shape) < share)
        step = generator.integers(len(self.schedule), size=len(batch_BTV))
        noise = generator.standard_normal(batch_BTV.shape)
        return self._noise_error(batch_BTV, hidden, step, noise)

    def _noise_error(
        self, values_BTV: Windows, hidden: np.ndarray, step: np.ndarray, noise: np.ndarray
    ) -> Tensor:
        put = self._put
        condition = self.network.condition(*self._see(np.where(hidden, np.nan, values_BTV)))
        hidden_BTV = torch.from_numpy(hidden).to(self.device)
        noise_BTV, step_B = put(noise), torch.from_numpy(step).to(self.device)
        noised = self.schedule.noised(put(np.nan_to_num(values_BTV)), noise_BTV, step_B)
        said = self.network(noised * hidden_BTV, step_B, condition)
        error = (said - noise_BTV).square() * hidden_BTV
        mean: Tensor = error.sum() / hidden_BTV.sum().clamp_min(1)
        return mean

    @torch.no_grad()
    def _validation_error(self, validation: HeldOut) -> float:
        self.network.eval()
        generator = np.random.default_rng(self.seed)
        scored = validation.hidden_WTV & ~np.isnan(validation.values_WTV)
        at_once = max(1, CELLS_AT_ONCE // math.prod(scored.shape[1:]))
        total = count = 0.0
        for _ in range(VALIDATION_LEVELS):
            for begin in range(0, len(scored), at_once):
                part = slice(begin, begin + at_once)
                truth = validation.values_WTV[part]
                step = generator.integers(len(self.schedule), size=len(truth))
                noise = generator.standard_normal(truth.shape)
                cells = float(scored[part].sum())
                total += cells * float(self._noise_error(truth, scored[part], step, noise))
                count += cells
        return total / max(count, 1.0)

    # -- filling ----------------------------------------------------------------------------

    @torch.no_grad()
    def fill(self, visible_WTV: Windows) -> Filled:
        """Samples by running the noise backwards; the fill is their median."""
        self.network.eval()
        if self._filling is None:
            if FusedFilling.fits(self.network, *visible_WTV.shape[1:]):
                self._filling = FusedFilling(self.network)
            else:
                self._filling = PlainFilling(self.network, self.fill_dtype)
        num_cells = self.num_samples * math.prod(visible_WTV.shape[1:])
        which = parts(len(visible_WTV), num_cells, self.device)
        drawn = [self._samples(self._filling, visible_WTV[part]) for part in which]
        samples_SWTV = np.concatenate(drawn, axis=1)[:, : len(visible_WTV)]
        samples_SWTV = keep_observed(visible_WTV, samples_SWTV)
        return Filled(keep_observed(visible_WTV, np.median(samples_SWTV, axis=0)), samples_SWTV)

    def _samples(self, filling: PlainFilling | FusedFilling, visible_BTV: Windows) -> Windows:
        count = self.num_samples
        say = filling.given(*self._see(visible_BTV))
        hidden = torch.from_numpy(np.isnan(visible_BTV)).to(self.device)
        hidden = hidden.repeat_interleave(count, 0)
        keys = cell_keys(visible_BTV, count).to(self.device)
        current = normal(self.seed, len(self.schedule), keys)
        for step in reversed(range(len(self.schedule))):
            said = say(current * hidden, step)
            current = self.schedule.back(current, said, step, normal(self.seed, step, keys))
        return samples_first(current, count)

    def _see(self, visible_BTV: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Visible values, where they are, and the lines through them."""
        values = self._put(np.nan_to_num(visible_BTV))
        seen = torch.from_numpy(~np.isnan(visible_BTV)).to(self.device)
        # A spectrum needs every step: gaps are bridged by straight lines first.
        return values, seen, Neighbours.find(seen, values.dtype).line(values)

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    # -- keeping ----------------------------------------------------------------------------

    def state(self) -> Mapping[str, Tensor]:
        """The weights of the best epoch."""
        return self.network.state_dict()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take trained weights."""
        self._filling = None  # has a copy of the weights
        self.network.load_state_dict(state)
