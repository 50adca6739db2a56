"""The networks that come with the package, trained on made-up tables only.

Each is a folder of `weights/`: config.json (the model card, as data) and half-precision weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mdtim.checkpoint import load_folder, load_weights, read_document, save_folder
from mdtim.config import ModelConfig, preset
from mdtim.network import FactorizedDiT

FOLDER = Path(__file__).parent / "weights"
KIND = "pretrained"
# The relations are the table's, not the network's.
_OF_THE_TABLE = {"level_VV", "change_VV", "whiten_SS"}


# Preset → the weights it starts from.
_WEIGHTS = {"zero-mini": "zero-mini", "zero-base": "zero-base", "base": "zero-base"}


def is_pretrained(name: object) -> bool:
    """Whether a preset of this name starts from weights of the package."""
    return name in _WEIGHTS


def fills_at_once(name: object) -> bool:
    """Whether a preset of this name can fill without a step of training."""
    return name in _WEIGHTS.values()


def card(name: str) -> dict[str, Any]:
    """How a network of the package was trained, and what it scored."""
    return dict(read_document(FOLDER / name)["card"])


def pretrained_config(name: str) -> ModelConfig:
    """How a network of the package is built, with the preset's way to train and use it."""
    config, wanted = _built(read_document(FOLDER / _WEIGHTS[name])), preset(name)
    config = replace(config, training=wanted.training, inference=wanted.inference)
    return config.change(dropout=wanted.network.dropout)


def _built(document: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_dict(document["model"])


def load_pretrained(
    name: str, num_variates: int, device: torch.device, dropout: float = 0.0
) -> FactorizedDiT:
    """A network of the package, for a table of `num_variates` columns.

    Parameters
    ----------
    name : of a preset that starts from such a network
    dropout : for training it further
    """
    folder = FOLDER / _WEIGHTS[name]
    document, tensors = load_folder(folder)
    config = _built(document).change(dropout=dropout)
    network = FactorizedDiT.to_be_loaded(config.network, config.tokenizer, num_variates, {})
    state = network.state_dict()
    wanted = {key: value for key, value in state.items() if key not in _OF_THE_TABLE}
    weights = load_weights(wanted, tensors, folder)
    network.load_state_dict(state | {key: value.float() for key, value in weights.items()})
    return network.to(device).eval()


def save_pretrained(
    network: FactorizedDiT, config: ModelConfig, folder: Path, card: dict[str, Any]
) -> None:
    """Write a network in half precision, with the card that says where it comes from."""
    tensors = {
        key: value.half() for key, value in network.state_dict().items() if key not in _OF_THE_TABLE
    }
    save_folder(folder, {"kind": KIND, "model": config.to_dict(), "card": card}, tensors)
