"""Sixteen systems of PyPOTS behind the protocol: its models, its training, our windows and masks.

Nothing of PyPOTS is imported before a system is built. Three of its habits are put right here:
it draws from global random states (they are set and given back), it goes on in silence when
training fails after a first epoch (that is an error here), and it keeps every attention map of
what it fills (windows are filled in small batches). W windows, T steps, V variates, S samples.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdtim import missingness
from mdtim.baselines.csdi import CSDISampler
from mdtim.baselines.noise import cell_keys, normal
from mdtim.baselines.protocol import (
    Filled,
    HeldOut,
    OutOfTime,
    Windows,
    conceal,
    keep_observed,
)
from mdtim.baselines.settings import Settings
from mdtim.baselines.training_clock import TrainingClock

MODELS = {
    "brits": "BRITS",
    "mrnn": "MRNN",
    "grud": "GRUD",
    "transformer": "Transformer",
    "informer": "Informer",
    "patchtst": "PatchTST",
    "saits": "SAITS",
    "imputeformer": "ImputeFormer",
    "timesnet": "TimesNet",
    "scinet": "SCINet",
    "dlinear": "DLinear",
    "film": "FiLM",
    "frets": "FreTS",
    "gpvae": "GPVAE",
    "usgan": "USGAN",
    "csdi": "CSDI",
}
"""Our names of the systems, and PyPOTS's classes."""

_LOGGER = "PyPOTS running log"
FILL_BATCH = 256
SAMPLE_BATCH = 512
"""Windows at a time; samples keep no attention maps, and small batches leave a GPU waiting."""


class PyPOTSMissing(ImportError, ValueError):
    """PyPOTS cannot be imported, for whoever imports a module or asks for a system."""


def import_pypots() -> Any:
    """The package, without its banner; an error with what to install where it is missing."""
    # Its banner asks the stream for an encoding, so the stream must have one.
    nowhere = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    logger = logging.getLogger(_LOGGER)
    # Its log gets its handlers now, for all who use it, so they must not be touched.
    logger.addFilter(_say_nothing)
    try:
        with contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pypots.imputation
            import pypots.optim
    except ImportError as error:
        raise PyPOTSMissing(
            f"this comes with PyPOTS, which cannot be imported ({error}); "
            "install it with: pip install 'mdtim[bench]'"
        ) from error
    finally:
        logger.removeFilter(_say_nothing)
    return pypots


def _say_nothing(record: logging.LogRecord) -> bool:
    return False


class PyPOTSImputer:
    """One of PyPOTS's models with its settings.

    Parameters
    ----------
    num_steps, num_variates : T and V of all windows
    seed : of the initial weights, the order of windows and PyPOTS's own masks
    """

    def __init__(
        self,
        settings: Settings,
        num_steps: int,
        num_variates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.settings = settings
        self.shape = num_steps, num_variates
        self.seed = seed
        self.device = device
        values = dict(settings.values)
        self.num_hidings = _count("hide_training", values.pop("hide_training"), 0)
        self.num_samples: int | None = None
        if "num_samples" in values:
            self.num_samples = _count("num_samples", values.pop("num_samples"), 1)
        self.validate_every = _count("validate_every", values.pop("validate_every", 1), 1)
        self.learning_rate: float = values.pop("lr")
        self.weight_decay: float = values.pop("weight_decay", 0.0)
        # Shares of the updates, or of the time if that ends first, each followed by a tenth of it.
        self.lr_drops: list[float] = values.pop("lr_drops", [])
        self.values = {
            key: num_variates if value == "variates" else value for key, value in values.items()
        }
        self.model: Any = None
        self._sampler: CSDISampler | None = None

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.model.model.parameters())

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        """Train as PyPOTS does, within the limits; keep the best epoch by validation."""
        if self.num_hidings:
            generator = np.random.default_rng(self.seed)
            ways = [hide_mixed(training_WTV, generator) for _ in range(self.num_hidings)]
            training_WTV = np.concatenate(ways)
        validated = slice(None, None, self.validate_every)
        sets = (
            {"X": training_WTV},
            {"X": validation.visible_WTV[validated], "X_ori": validation.values_WTV[validated]},
        )
        with _global_seed(self.seed, self.device), _quiet() as said:
            clock = self._build(len(training_WTV))
            try:
                self.model.fit(*sets)
            except ValueError as error:
                _pass_on_interrupt(said, clock)
                if not clock.rang:
                    raise
                raise OutOfTime(
                    f"no epoch of {self.settings.method} ended within "
                    f"{self.settings.limits.max_minutes:g} minutes; give it more (max_minutes)"
                ) from error
        _pass_on_interrupt(said, clock)
        if said and not clock.rang:
            # PyPOTS logs a failure in mid-training, and returns.
            raise RuntimeError(f"PyPOTS's training stopped: {'; '.join(said)}")

    def _build(self, num_windows: int = 1) -> _Clock:
        """A new model, and the clock of its training on so many windows."""
        package = import_pypots()
        num_steps, num_variates = self.shape
        limits = self.settings.limits
        epochs = limits.epochs(num_windows)
        num_updates = epochs * -(-num_windows // limits.batch_size)
        clock = _Clock(60 * limits.max_minutes, num_updates, self.lr_drops)
        self._sampler = None  # has a copy of the weights
        create = getattr(package.imputation, MODELS[self.settings.method])
        optimizers = (
            ("G_optimizer", "D_optimizer") if create.__name__ == "USGAN" else ("optimizer",)
        )
        self.model = create(
            n_steps=num_steps,
            n_features=num_variates,
            batch_size=limits.batch_size,
            epochs=epochs,
            # With drops to come a standstill may be the rate's, and PyPOTS counts epochs alone.
            patience=epochs if self.lr_drops else min(limits.patience, epochs),
            device=self.device,
            verbose=False,
            **{name: self._timed_adam(package, clock) for name in optimizers},
            **self.values,
        )
        return clock

    def _timed_adam(self, package: Any, clock: _Clock) -> Any:
        first = self.learning_rate

        class TimedAdam(package.optim.Adam):  # type: ignore[misc]
            """PyPOTS's Adam, asked at every step whether there is time left."""

            def step(self, closure: Any = None) -> None:
                clock.check()
                for group in self.torch_optimizer.param_groups:
                    group["lr"] = clock.rate(first)
                super().step(closure)
                clock.updates += 1

        return TimedAdam(lr=first, weight_decay=self.weight_decay)

    def fill(self, visible_WTV: Windows) -> Filled:
        """Fill in batches; the median of the samples where the system draws them."""
        assert self.model is not None, "fit or restore comes first"
        size = self.model.batch_size = self._at_once(len(visible_WTV))
        with _global_seed(self.seed, self.device), _quiet():
            self.model.model.eval()
            parts = [
                self._predict(visible_WTV[begin : begin + size])
                for begin in range(0, len(visible_WTV), size)
            ]
        if self.num_samples is None:
            return Filled(keep_observed(visible_WTV, np.concatenate(parts)))
        samples_SWTV = keep_observed(visible_WTV, np.concatenate(parts, axis=1))
        return Filled(keep_observed(visible_WTV, np.median(samples_SWTV, axis=0)), samples_SWTV)

    def _at_once(self, num_windows: int) -> int:
        if self.num_samples is None:
            return FILL_BATCH
        # CSDI's sampler takes parts by their cells.
        return max(1, num_windows) if self.settings.method == "csdi" else SAMPLE_BATCH

    def _predict(self, visible_BTV: Windows) -> Windows:
        if self.num_samples is None:
            filled: Windows = self.model.predict({"X": visible_BTV})["imputation"]
            return filled
        if self.settings.method == "gpvae":
            return self._gpvae_samples(visible_BTV)
        assert self.settings.method == "csdi", "the other one that draws"
        if self._sampler is None:
            self._sampler = CSDISampler(self.model.model, self.seed, self.device)
        return self._sampler.draw(visible_BTV, self.num_samples)

    @torch.no_grad()
    def _gpvae_samples(self, visible_BTV: Windows) -> Windows:
        """Decode draws of the latent path: PyPOTS decodes its mean, the same for every sample."""
        backbone = self.model.model.backbone
        values = torch.from_numpy(np.nan_to_num(visible_BTV).astype(np.float32)).to(self.device)
        latent = backbone.encode(values)
        assert self.num_samples is not None, "checked by the caller"
        keys = cell_keys(visible_BTV, self.num_samples, tuple(latent.loc.shape[1:]))
        noise = normal(self.seed, 0, keys.to(self.device))
        noise = noise.view(-1, self.num_samples, *noise.shape[1:], 1)
        drawn = [
            backbone.decode(latent.loc + (latent.scale_tril @ noise[:, sample]).squeeze(-1)).mean
            for sample in range(self.num_samples)
        ]
        return torch.stack(drawn).cpu().numpy()

    def state(self) -> Mapping[str, Tensor]:
        """The weights of the best epoch."""
        state: Mapping[str, Tensor] = self.model.model.state_dict()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Build the model again and give it the weights, all of them."""
        with _global_seed(self.seed, self.device), _quiet():
            self._build()
        self.model.model.load_state_dict(state, strict=True)


def hide_mixed(training_WTV: Windows, generator: np.random.Generator) -> Windows:
    """Hide cells of the training windows in every way the test does, a sixth of them in each.

    PyPOTS's benchmarks hide cells of all three sets. Without, recurrent systems would learn from
    whole windows alone, and meet their first gap in the test.
    """
    hidden = np.zeros(training_WTV.shape, dtype=bool)
    ways = list(product((missingness.uniform, missingness.geometric), missingness.RATES))
    for number, (way, rate) in enumerate(ways):
        part = hidden[number :: len(ways)]
        num_windows, num_steps, num_variates = part.shape
        hidden[number :: len(ways)] = way((num_windows, num_steps, num_variates), rate, generator)
    return conceal(training_WTV, hidden)


def _count(name: str, value: Any, least: int) -> int:
    """A setting that counts; True is 1."""
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of {least} or more, got {value!r}")
    return int(value)


class _Clock(TrainingClock):
    """Ends a training of PyPOTS that has had its time."""

    rang = False

    def check(self) -> None:
        """Before every update."""
        if self.is_out_of_time:
            self.rang = True
            # The one exception after which PyPOTS keeps its best epoch and ends in order.
            raise KeyboardInterrupt


def _pass_on_interrupt(said: list[str], clock: _Clock) -> None:
    """Raise the interrupt that PyPOTS caught and logged, if it was not the clock's."""
    if not clock.rang and any("interrupted" in message for message in said):
        raise KeyboardInterrupt


@contextlib.contextmanager
def _global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global states PyPOTS draws from, and give them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Catch what PyPOTS logs; yields its complaints about a training that stopped."""
    import_pypots()  # its log gets its handlers now, not in the middle
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if record.levelno >= logging.ERROR or "interrupted" in message:
                complaints.append(message)

    logger = logging.getLogger(_LOGGER)
    handlers, level = logger.handlers[:], logger.level
    logger.handlers = [Listener()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield complaints
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
