from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import tiny_config
from mdtim import MDTIMImputer

SMALL = {"preset": tiny_config(max_steps=1), "device": "cpu", "progress": False}


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix:UserWarning")
@parametrize_with_checks([MDTIMImputer(window="auto", **SMALL)])
def test_it_is_an_estimator(estimator: MDTIMImputer, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_a_polars_frame_becomes_pandas_with_its_types_if_that_is_asked_for() -> None:
    pl = pytest.importorskip("polars")
    hours = pd.date_range("2024", periods=60, freq="h")
    values = [None if 20 <= i < 23 else float(np.sin(i / 4)) for i in range(60)]
    frame = pl.DataFrame({"time": hours, "word": ["u"] * 60, "a": values})
    filled = MDTIMImputer(**SMALL).set_output(transform="pandas").fit_transform(frame)
    assert isinstance(filled, pd.DataFrame)
    assert filled["time"].to_list() == hours.to_list()
    assert filled["word"].to_list() == ["u"] * 60
    assert filled["a"].notna().all()
    assert isinstance(MDTIMImputer(**SMALL).fit_transform(frame), pl.DataFrame)
