"""What a measured number belongs to: device, versions and commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import torch


def device_name(device: torch.device) -> str:
    """Name of the GPU, or the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def versions(*packages: str) -> str:
    """Versions of all that matters for a number, further packages at the end."""
    from mdtim import __version__

    common = (
        f"mdtim {__version__}; torch {torch.__version__}; numpy {np.__version__}; "
        f"python {platform.python_version()}"
    )
    return "; ".join([common, *(f"{name} {_version(name)}" for name in packages)])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def commit() -> str:
    """Commit of the source tree, with a mark if it was changed since; empty outside a tree.

    Where the tree travels without its history, or with an older one, `MDTIM_COMMIT` says it.
    """
    if said := os.environ.get("MDTIM_COMMIT"):
        return said
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
