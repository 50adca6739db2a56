from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import tiny_config
from mdtim import MDTIMImputer


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix:UserWarning")
@parametrize_with_checks(
    [MDTIMImputer(window="auto", preset=tiny_config(max_steps=1), device="cpu", progress=False)]
)
def test_it_is_an_estimator(estimator: MDTIMImputer, check: object) -> None:
    check(estimator)  # type: ignore[operator]
