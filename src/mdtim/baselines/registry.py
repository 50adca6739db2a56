"""Build a compared system by its name."""

from __future__ import annotations

import torch

from mdtim.baselines.protocol import WindowImputer
from mdtim.baselines.pypots import MODELS, PyPOTSImputer
from mdtim.baselines.settings import Settings

REFERENCES = ("mean", "median", "locf", "linear", "seasonal", "spline")


def build(
    settings: Settings, num_steps: int, num_variates: int, seed: int, device: torch.device
) -> WindowImputer:
    """An untrained system for windows of `num_steps` × `num_variates`.

    Each family's packages are imported only when one of it is asked for.
    """
    if settings.method in REFERENCES:
        from mdtim.baselines.references import reference

        return reference(settings.method, settings.values, num_steps)
    if settings.method in ("knn", "iterative"):
        from mdtim.baselines.regression import StepRegression

        return StepRegression(settings.method, settings.values, seed)
    if settings.method == "fgti":
        from mdtim.baselines.fgti.imputer import FGTIImputer

        return FGTIImputer(settings, num_steps, num_variates, seed, device)
    return PyPOTSImputer(settings, num_steps, num_variates, seed, device)


def packages_of(method: str) -> tuple[str, ...]:
    """Packages whose versions a system's results depend on, beside PyTorch and NumPy."""
    if method in ("knn", "iterative"):
        return ("scikit-learn",)
    if method == "spline":
        return ("scipy",)
    return ("pypots",) if method in MODELS else ()
