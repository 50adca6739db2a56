"""What is put right behind a network: moved towards what needs none, then calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mdtim.calibration import Calibration
from mdtim.closed_form.profile import Profile, is_of_profile
from mdtim.closed_form.rowwise import RowModel
from mdtim.stacking import Stack

_PREFIX = "rows."
"""Of the row model's tensors among the weights."""


@dataclass(frozen=True)
class Corrections:
    """What held-out cells said about the trained network's distributions."""

    stack: Stack | None = None
    calibration: Calibration | None = None
    season: int | None = None
    """Steps after which the table repeats itself, for the stack; None if it does not."""
    rows: RowModel | None = None
    """The law of the table's rows, for the stack; None where they have no say."""
    profile: Profile | None = None
    """What is usual at the time of a row, which their law goes without; None if nothing is."""

    def to_dict(self) -> dict[str, Any]:
        """All but the tensors, ready for JSON."""
        return {
            "stack": None if self.stack is None else asdict(self.stack),
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "season": self.season,
        }

    def tensors(self) -> dict[str, Tensor]:
        """For the file of weights."""
        rows = {} if self.rows is None else self.rows.to_tensors()
        usual = {} if self.profile is None else self.profile.arrays()
        return {
            **{_PREFIX + name: tensor for name, tensor in rows.items()},
            **{name: torch.from_numpy(array) for name, array in usual.items()},
        }

    @classmethod
    def from_dict(cls, tree: dict[str, Any], tensors: Mapping[str, Tensor]) -> Corrections:
        """Rebuild from :meth:`to_dict` and what :func:`without_corrections` left out."""
        rows = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in tensors.items()
            if name.startswith(_PREFIX)
        }
        return cls(
            Stack.from_dict(tree["stack"]),
            Calibration.from_dict(tree["calibration"]),
            tree["season"],
            RowModel.from_tensors(rows) if rows else None,
            Profile.from_arrays({n: x.numpy() for n, x in tensors.items() if is_of_profile(n)}),
        )


def without_corrections(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the network alone."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not (name.startswith(_PREFIX) or is_of_profile(name))
    }
