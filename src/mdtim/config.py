"""What a model is and how it is trained, as plain frozen data.

Every part of mdtim receives *its own* config. A whole model is a :class:`ModelConfig`; the
presets are functions of nothing but their name, and a variant is made with
:func:`dataclasses.replace` or, for one field anywhere in the tree, :meth:`ModelConfig.change`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from mdtim.windows import WindowIndex

Prior = Literal["none", "line", "relations", "dynamics"]
OptimizerName = Literal["adamw", "muon"]
Estimate = Literal["mean", "median", "mode"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """How values become ordinal tokens."""

    num_bins: int = 40
    """Input tokens 1..num_bins lie on [-1, 1]; token 0 is `[MASK]`."""
    output_range: float = 1.5
    """The output grid has round(output_range * num_bins) points on ±output_range."""
    interpolated: bool = True
    """Feed the expected embedding of a drawn token (exact below the grid) instead of one draw."""
    min_range: float = 0.05
    """Smallest range of a window and variate, in units of the variate's training std."""
    scarcity: float = 0.0
    """Where n cells of a window and variate are visible, half of its range is at least this over
    n², in the same units: few cells do not tell how far away the others lie."""
    extended: bool = True
    """Widen the range where what is visible, continued straight at its ends, would leave the output
    grid: a hidden end of a slope lies far outside of the rest."""

    def __post_init__(self) -> None:
        _require(self.num_bins >= 2, f"num_bins must be at least 2, got {self.num_bins}")
        _require(
            self.output_range >= 1, f"output_range must be at least 1, got {self.output_range}"
        )
        _require(self.min_range > 0, f"min_range must be positive, got {self.min_range}")
        _require(self.scarcity >= 0, f"scarcity must not be negative, got {self.scarcity}")

    @property
    def num_outputs(self) -> int:
        """Points of the output grid (K_out = 1.5 K in the paper)."""
        return round(self.output_range * self.num_bins)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Shape of the factorized temporal-variate transformer."""

    width: int = 64
    num_heads: int = 4
    num_layers: int = 5
    """Each layer is one temporal and one variate block."""
    dropout: float = 0.3
    mlp_ratio: int = 4
    embedding_width: int = 64
    """Width of the token tables, projected to `width` by one shared layer."""
    condition_width: int = 16
    """Width of the embedding of the diffusion time that modulates every block."""
    continuous: bool = False
    """MDTIM (Cont), the ablation: continuous inputs, one output per cell, squared error."""
    shared_embedding: bool = False
    """One token table for all variates instead of one each; then V is free."""
    variate_rope: bool = True
    """Rotary positions among the variates; off makes the network permutation-equivariant."""
    level_conditioning: bool = True
    """Tell each variate where its window lies: centre, log-range, nothing observed."""
    prior: Prior = "relations"
    """Start from closed-form guesses: they are features of every cell, and their mix is the mode
    of the untrained output distribution. Learning then begins where these end. `line` is linear
    interpolation, `relations` also regresses each variate on the others, `dynamics` also follows
    the table from step to step."""

    def __post_init__(self) -> None:
        _require(
            self.width % (2 * self.num_heads) == 0,
            f"width must be an even multiple of num_heads, got {self.width} and {self.num_heads}",
        )
        _require(0 <= self.dropout < 1, f"dropout must be in [0, 1), got {self.dropout}")
        _require(self.num_layers >= 1, f"num_layers must be at least 1, got {self.num_layers}")
        _require(
            self.prior in get_args(Prior),
            f"prior must be none, line, relations or dynamics: {self.prior}",
        )
        _require(
            not self.continuous or self.prior == "none",
            'the continuous ablation has no output distribution: set prior="none"',
        )

    @property
    def relates(self) -> bool:
        """Whether the network starts from what its table says about its variates."""
        return self.prior in ("relations", "dynamics")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffusionConfig:
    """Forward process and objective."""

    label_width: int = 2
    """Soft labels reach this many bins to each side; 0 is one-hot."""
    label_variance: float = 2.0
    """sigma² of the soft labels exp(-(i-y)²/sigma²)."""
    spectral_weight: float = 1.0
    """Weight of the L1 distance between the Fourier transforms of estimate and truth."""
    matched_time: bool = True
    """Condition on the actual masked share of the window, in training and afterwards."""
    mixed_masks: bool = True
    """Hide runs (geometric, and the table's own gaps where given) beside single cells."""
    run_range: tuple[float, float] = (2.0, 12.0)
    """Mean run lengths of the geometric masks."""

    def __post_init__(self) -> None:
        _require(self.label_width >= 0, f"label_width must not be negative: {self.label_width}")
        _require(self.label_variance > 0, f"label_variance must be positive: {self.label_variance}")
        low, high = self.run_range
        _require(1 <= low <= high, f"run_range must be 1 <= low <= high, got {self.run_range}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Optimizer, schedule and stopping."""

    batch_size: int = 256
    max_steps: int = 10_000
    """0 leaves the weights as they are: for a network that comes trained."""
    max_passes: int | None = None
    """End after this many passes over the training windows, if that comes first: a small table is
    soon known by heart."""
    max_views: int | None = None
    """The same by how often the average row was seen: one pass over overlapping windows shows it
    many times."""
    optimizer: OptimizerName = "adamw"
    """`muon` moves the matrices of the blocks by orthogonalized momentum, the rest by AdamW."""
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    warmup_steps: int = 2_500
    cosine: bool = True
    """Decay the learning rate to zero along a cosine after the warm-up; else keep it."""
    clip_norm: float = 1.0
    ema_decay: float = 0.995
    validate_every: int = 250
    patience: int = 12
    """Stop after this many validations in a row without a better MAE."""

    def __post_init__(self) -> None:
        _require(self.batch_size >= 1, f"batch_size must be at least 1, got {self.batch_size}")
        _require(
            self.optimizer in get_args(OptimizerName),
            f"optimizer must be adamw or muon: {self.optimizer}",
        )
        _require(self.max_steps >= 0, f"max_steps must not be negative, got {self.max_steps}")
        _require(self.validate_every >= 1, f"validate_every must be >= 1: {self.validate_every}")
        _require(0 <= self.ema_decay < 1, f"ema_decay must be in [0, 1), got {self.ema_decay}")
        for name in ("max_passes", "max_views"):
            limit = getattr(self, name)
            _require(
                limit is None or limit >= 1,
                f"{name} must be at least 1, or None for no limit: {limit}",
            )

    def limited_to(self, windows: WindowIndex) -> TrainingConfig:
        """The same with as many steps as passes over these windows, and views, allow."""
        limits = [self.max_steps]
        if self.max_passes is not None:
            limits.append(math.ceil(self.max_passes * len(windows) / self.batch_size))
        if self.max_views is not None:
            shown = windows.num_shown / max(len(windows), 1) * self.batch_size
            limits.append(math.ceil(self.max_views * windows.num_rows / max(shown, 1)))
        return dataclasses.replace(self, max_steps=min(limits))


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceConfig:
    """How a trained network fills gaps."""

    num_draws: int = 1
    """M stochastic tokenizations whose distributions are averaged (interpolated tokens: 1)."""
    reveal_steps: int = 16
    """Steps of the reverse process for joint samples."""
    estimate: Estimate = "mean"
    """What of a cell's distribution is filled in: its expectation; its median, which has the
    smaller absolute error and the larger squared one; or its likeliest bin."""

    def __post_init__(self) -> None:
        _require(self.num_draws >= 1, f"num_draws must be at least 1, got {self.num_draws}")
        _require(self.reveal_steps >= 1, f"reveal_steps must be >= 1, got {self.reveal_steps}")
        _require(
            self.estimate in get_args(Estimate),
            f"estimate must be mean, median or mode: {self.estimate}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Everything that defines a model but its data."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    @property
    def draws_tokens(self) -> bool:
        """Whether the input is one stochastic draw; continuous inputs never are."""
        return not self.tokenizer.interpolated and not self.network.continuous

    def change(self, **changes: Any) -> ModelConfig:
        """Return a copy with fields replaced, wherever in the tree they live.

        Examples
        --------
        >>> preset("large").change(interpolated=False, num_draws=10).inference.num_draws
        10
        """
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        changed: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            owners = [part for part, config in parts.items() if hasattr(config, name)]
            if not owners:
                known = sorted(f.name for config in parts.values() for f in fields(config))
                raise ValueError(f"no option {name!r}; there are: {', '.join(known)}")
            (owner,) = owners
            changed.setdefault(owner, {})[name] = value
        for owner, values in changed.items():
            parts[owner] = dataclasses.replace(parts[owner], **values)
        return ModelConfig(**parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> ModelConfig:
        """Rebuild from :meth:`to_dict`; unknown or missing fields are errors."""
        kinds: dict[str, type] = {
            "tokenizer": TokenizerConfig,
            "network": NetworkConfig,
            "diffusion": DiffusionConfig,
            "training": TrainingConfig,
            "inference": InferenceConfig,
        }
        parts = {}
        for name, kind in kinds.items():
            part = dict(tree[name])
            expected = {f.name for f in fields(kind)}
            if set(part) != expected:
                raise ValueError(
                    f"config part {name!r} has fields {sorted(part)}, expected {sorted(expected)}; "
                    "install the mdtim that wrote it, or fit the model again"
                )
            # JSON has no tuples.
            parts[name] = kind(
                **{key: tuple(v) if isinstance(v, list) else v for key, v in part.items()}
            )
        return cls(**parts)


PresetName = Literal[
    "paper-small", "paper-large", "small", "large", "base", "zero-mini", "zero-base"
]
PRESETS: tuple[str, ...] = get_args(PresetName)

_LARGE = {"width": 256, "num_heads": 16, "dropout": 0.2}
_SMALL = {"width": 64, "num_heads": 4, "dropout": 0.3}
# Deep rather than wide: what ties the variates together has to be found out layer by layer.
_ZERO = {
    "zero-mini": {"width": 96, "num_heads": 6, "num_layers": 5, "mlp_ratio": 3},
    "zero-base": {"width": 192, "num_heads": 12, "num_layers": 6, "mlp_ratio": 4},
}

# At the same time on a GPU, orthogonal steps from small batches beat AdamW's from large ones.
_LONG: dict[str, Any] = {
    "optimizer": "muon",
    "batch_size": 64,
    "max_steps": 5_000,
    "max_passes": 40,
    "max_views": 768,
    "warmup_steps": 100,
    "ema_decay": 0.998,
    "validate_every": 250,
}


def _of_any_table(size: str) -> ModelConfig:
    """A network that knows nothing of its table: what is shared, variates can be exchanged."""
    return ModelConfig().change(
        **_ZERO[size],
        dropout=0.0,
        shared_embedding=True,
        variate_rope=False,
        prior="dynamics",
        scarcity=1.0,
    )


def preset(name: str) -> ModelConfig:
    """Return the named configuration.

    `paper-small` and `paper-large` follow the paper: drawn tokens, ten draws, uniform masks,
    no level conditioning, constant learning rate after the warm-up. `small` and `large` have the
    same sizes and every change that docs/method.md describes, each an option of its own.
    `zero-mini` and `zero-base` know no table: one embedding for all variates and no order among
    them, so that weights trained on made-up tables read any other; their steps adapt those.
    `base` is the most accurate: it starts from the weights of `zero-base` and learns the table.

    Examples
    --------
    >>> preset("paper-large").network.width, preset("paper-large").inference.num_draws
    (256, 10)
    >>> preset("small").tokenizer.interpolated
    True
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    if name in _ZERO:
        return _of_any_table(name).change(
            max_steps=400, learning_rate=5e-4, warmup_steps=20, ema_decay=0.98, validate_every=50
        )
    if name == "base":
        return _of_any_table("zero-base").change(
            dropout=0.2, **_LONG, learning_rate=3e-3, estimate="median"
        )
    size = _LARGE if name in ("paper-large", "large") else _SMALL
    if name.startswith("paper"):
        paper = ModelConfig().change(
            interpolated=False,
            # The paper names no smallest range; this only keeps flat windows finite.
            min_range=1e-3,
            extended=False,
            level_conditioning=False,
            prior="none",
            matched_time=False,
            mixed_masks=False,
            cosine=False,
            num_draws=10,
        )
        return paper.change(**size)
    if name == "large":
        return ModelConfig().change(**size, **_LONG, learning_rate=2e-3)
    # For a CPU: many small steps learn faster than few large ones, and a short run needs a high
    # learning rate more than dropout.
    return ModelConfig().change(
        **{**size, "dropout": 0.0},
        batch_size=32,
        max_steps=2_000,
        learning_rate=3e-3,
        warmup_steps=20,
        ema_decay=0.99,
        validate_every=100,
    )
