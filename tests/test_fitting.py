"""What a fit holds out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import tiny_config, waves
from mdtim import MDTIMImputer
from mdtim.learning import fitting
from mdtim.windows import WindowIndex


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
@pytest.mark.parametrize(
    ("num_blocks", "asked", "held"), [(40, 0.1, 8), (40, 0.5, 20), (20, 0.1, 2)]
)
def test_eight_windows_are_held_out_where_these_are_no_more_than_a_quarter(
    num_blocks: int, asked: float, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    hold_out = fitting.hold_out

    def watched(*args: Any) -> tuple[WindowIndex, WindowIndex]:
        training, validation = hold_out(*args)
        seen.append(len(validation))
        return training, validation

    monkeypatch.setattr(fitting, "hold_out", watched)
    values = waves(12 * num_blocks, 2)
    values[np.random.default_rng(0).random(values.shape) < 0.1] = np.nan
    model = MDTIMImputer(
        window=12, preset=tiny_config(), validation_share=asked, device="cpu", progress=False
    )
    model.fit(values)
    assert seen == [held]
