"""Files of a model and of a run in progress: JSON and safetensors, never pickle.

A folder is written into a temporary neighbour first, which then takes its place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mdtim.atomic import atomic_path

FILES = ("config.json", "model.safetensors")
FORMAT = "mdtim"
FORMAT_VERSION = 4
"""Raised whenever folders of before could no longer be read, or would be misread."""


def save_folder(folder: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors`; an old model stays until the new is whole."""
    folder = folder.expanduser()  # before it is looked at: what is replaced must be what was seen
    check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        text = json.dumps(
            {"format": FORMAT, "format_version": FORMAT_VERSION, **document}, indent=2
        )
        (temporary / "config.json").write_text(text + "\n", encoding="utf-8")
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary / "model.safetensors")
        # Who may read one file may read the other.
        shutil.copymode(temporary / "config.json", temporary / "model.safetensors")


def check_free(folder: Path) -> None:
    """Refuse to write where something else lies than a model, of any version, or nothing."""
    folder = folder.expanduser()
    if folder.exists() and not _is_ours(folder):
        raise ValueError(f"{folder} exists and is not an mdtim model; choose another place")
    if folder.exists() and (others := sorted({p.name for p in folder.iterdir()} - set(FILES))):
        raise ValueError(
            f"{folder} holds {', '.join(others[:3])} beside a model, which would be lost; move "
            "that elsewhere, or choose another place"
        )


def _is_ours(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def read_document(folder: Path) -> dict[str, Any]:
    """Read and check `config.json` of a folder, without touching the weights."""
    path = folder.expanduser() / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not an mdtim model: it has no config.json")
    _check_readable(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{folder} is not an mdtim model: config.json is of another kind")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{folder} has format version {version}, this mdtim reads version {FORMAT_VERSION}; "
            "install the mdtim that wrote it, or fit the model again"
        )
    return document


def load_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a folder written by :func:`save_folder`."""
    document = read_document(folder)
    path = folder.expanduser() / "model.safetensors"
    if not path.is_file():
        raise ValueError(f"{folder} is incomplete: model.safetensors is missing")
    _check_readable(path)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or truncated: {error}") from error
    return document, tensors


def _check_readable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} may not be read by this user; ask its owner for the permission")


def load_weights(
    module_state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Check that `tensors` are exactly what the module expects: no more, no less, same shapes."""
    missing, extra = (
        sorted(set(module_state) - set(tensors)),
        sorted(set(tensors) - set(module_state)),
    )
    if missing or extra:
        raise ValueError(
            f"the weights in {folder} do not fit its config: missing {missing}, unexpected {extra}"
        )
    for name, tensor in module_state.items():
        if tensors[name].shape != tensor.shape:
            raise ValueError(
                f"the weights in {folder} do not fit its config: {name} has shape "
                f"{tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
            )
    return dict(tensors)
