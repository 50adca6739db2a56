"""Small windows, and every compared system at a size that trains in a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conftest import waves
from mdtim import missingness
from mdtim.baselines.protocol import HeldOut, WindowImputer
from mdtim.baselines.registry import build
from mdtim.baselines.settings import Limits, Settings

NUM_STEPS, NUM_VARIATES = 12, 3
LIMITS = Limits(batch_size=8, max_epochs=2, max_steps=1_000, max_minutes=2, patience=2)

ATTENTION: dict[str, Any] = {"n_layers": 1, "d_model": 16, "d_ffn": 16, "n_heads": 2}
HEADS: dict[str, Any] = {"d_k": 8, "d_v": 8}
TINY: dict[str, dict[str, Any]] = {
    "brits": {"rnn_hidden_size": 16},
    "mrnn": {"rnn_hidden_size": 16},
    "grud": {"rnn_hidden_size": 16},
    "transformer": {**ATTENTION, **HEADS},
    "informer": {**ATTENTION, "factor": 3},
    "patchtst": {
        **{**ATTENTION, **HEADS, "patch_size": 4, "patch_stride": 2},
        **{"dropout": 0.0, "attn_dropout": 0.0},
    },
    "saits": {**ATTENTION, **HEADS},
    "imputeformer": {
        **{"n_layers": 1, "d_input_embed": 8, "d_learnable_embed": 8, "d_proj": 4},
        **{"d_ffn": 16, "n_temporal_heads": 2},
    },
    "timesnet": {"n_layers": 1, "top_k": 1, "d_model": 8, "d_ffn": 8, "n_kernels": 2},
    "scinet": {
        **{"n_stacks": 1, "n_levels": 1, "n_groups": 1, "n_decoder_layers": 1},
        **{"d_hidden": 8, "dropout": 0.0},
    },
    "dlinear": {"moving_avg_window_size": 3, "d_model": 16},
    "film": {"window_size": [2], "multiscale": [1], "modes1": 4, "dropout": 0.0, "d_model": 8},
    "frets": {"embed_size": 8, "hidden_size": 8, "channel_independence": True},
    "gpvae": {
        **{"latent_size": "variates", "encoder_sizes": [16], "decoder_sizes": [16]},
        **{"window_size": 3, "num_samples": 4},
    },
    "usgan": {"rnn_hidden_size": 16},
    "csdi": {
        **{"n_layers": 1, "n_heads": 2, "n_channels": 8, "d_time_embedding": 8},
        **{"d_feature_embedding": 4, "d_diffusion_embedding": 8, "n_diffusion_steps": 6},
        **{"num_samples": 4, "hide_training": False, "validate_every": 3},
    },
}
FGTI = {
    **{"num_channels": 8, "num_layers": 1, "num_heads": 2, "time_width": 8, "variate_width": 4},
    **{"num_diffusion_steps": 6, "beta_first": 1e-4, "beta_last": 0.5, "guide_layers": 1},
    **{"cutoff": 0.25, "num_dominant": 2, "lr": 0.01, "lr_drops": [0.75, 0.9]},
    **{"num_samples": 5},
}


def windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test windows, (W, T, V) float32, of the same waves."""
    values = waves(300, NUM_VARIATES).astype(np.float32)
    every = np.lib.stride_tricks.sliding_window_view(values, NUM_STEPS, axis=0)
    cut = every.transpose(0, 2, 1)
    return cut[:192].copy(), cut[210:226].copy(), cut[240:].copy()


def hide(values: np.ndarray, seed: int) -> np.ndarray:
    num_windows, num_steps, num_variates = values.shape
    shape = num_windows, num_steps, num_variates
    return missingness.uniform(shape, 0.3, np.random.default_rng(seed))


def tiny_system(
    method: str, seed: int = 0, limits: Limits = LIMITS, **changes: Any
) -> WindowImputer:
    """Any of PyPOTS's systems, or FGTI."""
    trained = {"lr": 0.01, "hide_training": True}
    values = FGTI if method == "fgti" else {**trained, **TINY[method], **changes}
    settings = Settings(method, dict(values), limits, "a test")
    return build(settings, NUM_STEPS, NUM_VARIATES, seed, torch.device("cpu"))


def held_out() -> HeldOut:
    values = windows()[1]
    return HeldOut(values, hide(values, 1))
