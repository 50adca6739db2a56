from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import tiny_config
from mdtim import MDTIMImputer

pytestmark = pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")


def fit(gappy: np.ndarray, progress: bool | str) -> None:
    MDTIMImputer(window=24, preset=tiny_config(), progress=progress).fit(gappy)


def test_a_bar_and_the_score_are_shown_on_stderr_where_wanted(
    gappy: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(gappy, True)
    shown = capsys.readouterr()
    assert "held-out MAE" in shown.err
    assert "linear interpolation" in shown.err
    assert not shown.out


@pytest.mark.parametrize("progress", [False, "auto"])
def test_nothing_is_shown_where_it_is_not_wanted_or_there_is_no_terminal(
    gappy: np.ndarray, capsys: pytest.CaptureFixture[str], progress: bool | str
) -> None:
    fit(gappy, progress)
    shown = capsys.readouterr()
    assert not shown.err
    assert not shown.out


def test_a_function_is_told_the_share_done_and_is_not_kept_with_the_model(
    gappy: np.ndarray, tmp_path: Path
) -> None:
    said: list[tuple[float, str]] = []
    imputer = MDTIMImputer(
        window=24, preset=tiny_config(), progress=lambda share, text: said.append((share, text))
    ).fit(gappy)
    shares = [share for share, _ in said]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert "step 6" in said[-1][1]
    said.clear()
    imputer.transform(gappy)
    assert said[-1][0] == 1
    assert said[-1][1].startswith("filling, ")
    imputer.save(tmp_path / "model")
    assert MDTIMImputer.load(tmp_path / "model").progress == "auto"
