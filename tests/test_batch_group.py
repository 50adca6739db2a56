from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from batch_cases import Case, same
from mdtim.batch import fill_group


def test_groups_are_filled_as_the_whole_table_is(case: Case) -> None:
    fill = partial(fill_group, model=case.model, quantiles=(0.1, 0.9), device="cpu")
    groups = [fill(group) for _, group in case.frame.groupby("sensor")]
    same(pd.concat(groups), case.expected)


def test_a_group_is_not_changed_and_keeps_its_index(case: Case) -> None:
    group = case.frame[case.frame["sensor"] == "b"]
    before = group.copy()
    filled = fill_group(group, model=case.model, device="cpu")
    pd.testing.assert_frame_equal(group, before)
    assert filled.index.equals(group.index)
    assert filled.columns.equals(group.columns)
    assert not filled.isna().any(axis=None)


@pytest.mark.filterwarnings("ignore")
def test_spark_fills_groups(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path))
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    try:
        # Spark has no missing numbers of its own but NULL.
        frame = case.frame.astype({"count": "float64"})
        table = session.createDataFrame(frame)
        fill = partial(fill_group, model=str(case.model), device="cpu")
        filled = table.groupBy("sensor").applyInPandas(fill, schema=table.schema).toPandas()
    finally:
        session.stop()
    filled = filled.sort_values(["sensor", "time"]).reset_index(drop=True)
    for name in ("x", "y", "z"):
        assert (filled[name].to_numpy() == case.expected[name].to_numpy()).all()


@pytest.mark.filterwarnings("ignore")
def test_dask_fills_groups(case: Case) -> None:
    dask = pytest.importorskip("dask.dataframe")
    table = dask.from_pandas(case.frame, npartitions=2)
    filled = table.groupby("sensor")[list(case.frame.columns)].apply(
        fill_group, model=str(case.model), device="cpu", meta=case.frame.iloc[:0]
    )
    result = filled.compute(scheduler="synchronous").reset_index(drop=True)
    result = result.sort_values(["sensor", "time"])
    for name in ("x", "y", "z"):
        assert (result[name].to_numpy() == case.expected[name].to_numpy()).all()
