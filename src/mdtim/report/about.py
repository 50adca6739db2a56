"""What a report is about: the table's name, what filled it, what its owner should know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdtim import __version__

if TYPE_CHECKING:
    from mdtim.imputation import Imputation


@dataclass(frozen=True)
class AboutFacts:
    """The table and its model; no clock is among them, so that a fill has one report."""

    name: str | None
    """Of the table, such as that of its file."""
    notes: tuple[str, ...]
    version: str
    """Of mdtim."""
    window: int | None
    """Steps; None, as all below, where it is not known what filled the table."""
    trained: str | None
    """How the network came to know the table, in a few words."""
    weights: int | None
    validation_mae: float | None
    """On cells that the fit held out, in units of each column's std."""
    linear_mae: float | None
    """Of linear interpolation on the same cells."""

    @classmethod
    def of(
        cls, imputation: Imputation, name: str | None, notes: Sequence[str] | None
    ) -> AboutFacts:
        """Collect the facts; without notes those on how the table was read are taken."""
        said = tuple(dict.fromkeys(imputation.table.notes if notes is None else notes))
        origin = imputation.origin
        if origin is None:
            return cls(name, said, __version__, None, None, None, None, None)
        fit = origin.fit
        return cls(
            name,
            said,
            __version__,
            origin.window,
            f"trained for {fit.steps:,} steps ({fit.reason})" if fit.steps else fit.reason,
            fit.parameters or None,
            fit.validation_mae,
            fit.linear_mae,
        )
