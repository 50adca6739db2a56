"""What every compared system is here: windows with NaN at hidden cells in, filled windows out.

A hidden value never reaches a system: whoever scores puts NaN in its place first. W windows,
T steps, V variates, S samples. Values are standardized, float32 or float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray

if TYPE_CHECKING:
    from torch import Tensor

Windows = NDArray[np.floating[Any]]
"""(W, T, V) values, NaN where missing or hidden."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Windows for early stopping: the truth, and which of its cells to hide."""

    values_WTV: Windows
    hidden_WTV: BoolArray

    @property
    def visible_WTV(self) -> Windows:
        """The windows as a system sees them: NaN at the hidden cells."""
        return conceal(self.values_WTV, self.hidden_WTV)


@dataclass(frozen=True, eq=False)
class Filled:
    """Windows without gaps, and samples of them where the system has a distribution."""

    values_WTV: Windows
    samples_SWTV: Windows | None = None


class OutOfTime(ValueError):
    """A training had not got anywhere when its time was up."""


class UnreadableModel(ValueError):
    """A trained system was kept, and cannot be read."""


class WindowImputer(Protocol):
    """A system that learns from windows and fills windows.

    Each is filled by itself, but by two of PyPOTS's (see docs/systems.md).
    """

    @property
    def num_parameters(self) -> int:
        """How many numbers were trained; 0 for rules."""

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        """Learn; the validation windows may choose between what was learned."""

    def fill(self, visible_WTV: Windows) -> Filled:
        """Fill every NaN; cells with a value come back as they were."""


@runtime_checkable
class Trained(Protocol):
    """What a system whose training is worth keeping on disk has beside the above."""

    def state(self) -> Mapping[str, Tensor]:
        """Tensors that :meth:`restore` needs."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take the place of :meth:`fit`, from what :meth:`state` gave."""


def conceal(values_WTV: Windows, hidden_WTV: BoolArray) -> Windows:
    """Put NaN in the place of hidden values."""
    return np.where(hidden_WTV, np.asarray(np.nan, values_WTV.dtype), values_WTV)


def keep_observed(visible_WTV: Windows, estimate: Windows) -> Windows:
    """Estimates where there is a gap, the known values elsewhere.

    Parameters
    ----------
    estimate : (W, T, V), or (S, W, T, V) for samples

    Examples
    --------
    >>> keep_observed(np.array([[[1.0], [np.nan]]]), np.array([[[5.0], [6.0]]])).ravel().tolist()
    [1.0, 6.0]
    """
    filled = np.where(np.isnan(visible_WTV), estimate, visible_WTV)
    bad = int((~np.isfinite(filled)).sum())
    if bad:
        raise ValueError(f"{bad} of {filled.size} filled cells are not finite numbers")
    return filled
