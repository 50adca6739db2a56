"""Data sets in parts that cannot be filled, as a whole or in part: one sentence, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from batch_cases import Case, fill, read_parts, same
from mdtim.batch import BatchOptions, run_batch
from mdtim.batch.target import Target
from mdtim.cli import app
from mdtim.tables.table import TableOptions


def refused(source: Path | str, target: Path | str, case: Case, match: str) -> None:
    existed = Path(target).exists()
    with pytest.raises(ValueError, match=match):
        fill(source, target, case)
    assert Path(target).exists() == existed


def test_a_source_without_parts_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    refused(tmp_path / "empty", tmp_path / "target", case, "holds no files")
    refused(tmp_path / "nowhere", tmp_path / "target", case, "no folder or file")
    (tmp_path / "empty" / "a.csv").write_text("x\n1\n")
    (tmp_path / "empty" / "b.parquet").touch()
    refused(tmp_path / "empty", tmp_path / "target", case, "mixes Parquet and text")


def test_parts_of_other_columns_or_types_are_refused(case: Case, source: Path) -> None:
    target = source.parent / "target"
    path = source / "part-2.parquet"
    frame = pd.read_parquet(path)
    frame.rename(columns={"x": "new"}).to_parquet(path, index=False)
    refused(source, target, case, r"part-2.* differ in their columns \(new, x\)")
    frame.assign(x=frame["x"].astype("float32")).to_parquet(path, index=False)
    refused(source, target, case, r"column 'x' is float in part-2.*but double")


def test_parts_that_overlap_in_time_are_refused(case: Case, source: Path) -> None:
    frame = pd.read_parquet(source / "part-0.parquet")
    frame.to_parquet(source / "part-9.parquet", index=False)
    refused(source, source.parent / "target", case, r"series 'a' overlaps .*part-0.*part-9")


def test_a_target_that_is_not_ours_is_left_alone(case: Case, source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    refused(source, tmp_path / "other", case, "not the work of mdtim batch")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    refused(source, tmp_path / "other" / "thesis.txt", case, "is a file")
    refused(source, source, case, "is the source")
    refused(source, source / "inner", case, "lies in it")


def test_a_target_without_permission_is_named(
    case: Case, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("Permission denied")

    monkeypatch.setattr(Target, "write", forbidden)
    with pytest.raises(ValueError, match=r"target cannot be written \(Permission denied\)"):
        fill(source, tmp_path / "target", case)


def test_unknown_addresses_are_named_without_their_passwords(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nonsense://place/x cannot be opened") as caught:
        fill("nonsense://me:secret@place/x", tmp_path / "target", case)
    assert "secret" not in str(caught.value).partition(":")[0]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        pd.read_parquet(path).iloc[:0].to_parquet(path, index=False)


@pytest.mark.parametrize("how", ["truncated", "empty", "no rows"])
def test_an_unreadable_part_is_reported_and_the_rest_goes_on(
    case: Case, source: Path, tmp_path: Path, how: str
) -> None:
    whole = (source / "part-2.parquet").read_bytes()
    damage(source / "part-2.parquet", how)
    arguments = [
        *("batch", str(source), "-o", str(tmp_path / "target"), "--model", str(case.model)),
        *("--id", "sensor", "--quantiles", "0.1,0.9", "--device", "cpu"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "part-2.parquet" in result.stderr
    assert "3 parts filled" in result.stdout
    assert not (tmp_path / "target" / "part-2.parquet").exists()

    (source / "part-2.parquet").write_bytes(whole)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    same(read_parts(tmp_path / "target"), case.expected)


def test_if_no_part_can_be_read_the_first_reason_is_given(case: Case, source: Path) -> None:
    for path in source.iterdir():
        damage(path, "truncated")
    refused(source, source.parent / "target", case, r"no part of .* can be read; the first: part-0")


def test_a_model_of_other_columns_is_refused(case: Case, source: Path, tmp_path: Path) -> None:
    options = BatchOptions(TableOptions(time="time", id="sensor", columns=("x",)))
    with pytest.raises(ValueError, match="the model fills the columns"):
        run_batch(str(source), str(tmp_path / "target"), options, model=case.model)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--engine", "spark"], "must be local or ray"),
        (["--address", "auto"], "add --engine ray"),
        (["--quantiles", "2"], "between 0 and 1"),
    ],
)
def test_mistaken_options_are_one_sentence(
    source: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(app, ["batch", str(source), "-o", str(tmp_path / "t"), *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr
