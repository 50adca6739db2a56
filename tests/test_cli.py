from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mdtim.cli
from mdtim.cli import app
from mdtim.imputation import Imputation
from mdtim.imputer import MDTIMImputer

QUICK = ["--max-steps", "2", "--window", "16", "--preset", "small"]


@pytest.fixture(autouse=True)
def _tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import tiny_config

    monkeypatch.setattr("mdtim.imputer.preset", lambda name: tiny_config())


@pytest.fixture
def source(tmp_path: Path, gappy: np.ndarray) -> Path:
    frame = pd.DataFrame(gappy, columns=["a", "b", "c"])
    frame.insert(0, "when", pd.date_range("2024-01-01", periods=len(gappy), freq="h").astype(str))
    frame.insert(2, "label", ["x", "y"] * 120)
    frame.to_csv(tmp_path / "in.csv", index=False)
    return tmp_path / "in.csv"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_impute_writes_a_filled_table_and_leaves_the_input(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    output = tmp_path / "out.csv"
    report = tmp_path / "report.html"
    text = run(
        "impute", source, "-o", output, "--quantiles", "0.05,0.95", "--report", report, *QUICK
    )
    assert "filled" in text
    assert source.read_bytes() == before
    table, filled = pd.read_csv(source), pd.read_csv(output)
    assert list(filled.columns[:5]) == list(table.columns)
    assert {"a_q0.05", "c_q0.95"} <= set(filled.columns)
    assert not filled.isna().any().any()
    known = table["b"].notna()
    assert (filled.loc[known, "b"] == table.loc[known, "b"]).all()
    assert 'id="chart-0"' in report.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv", "report.html"]


def test_report_writes_the_page_and_prints_what_it_says(source: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert f"report: {page}" in run("report", source, "-o", page, *QUICK).replace("\n", "")
    run("fit", source, "-o", tmp_path / "model", *QUICK)
    said = run("report", source, "-o", page, "--model", tmp_path / "model", "--json")
    facts = json.loads(said)
    missing = int(pd.read_csv(source)[["a", "b", "c"]].isna().sum().sum())
    assert (facts["table"]["missing"], facts["table"]["filled"]) == (missing, missing)
    assert facts["report"] == str(page)
    assert page.read_text().endswith("</html>")
    assert "input itself" in run("report", source, "-o", source, *QUICK, code=2)
    assert "input itself" in run("evaluate", source, "--report", source, *QUICK, code=2)


def test_the_source_may_be_gone_after_the_fit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.read_csv(source).to_parquet(tmp_path / "in.parquet")
    impute = MDTIMImputer.impute

    def removing(imputer: MDTIMImputer, frame: pd.DataFrame) -> Imputation:
        (tmp_path / "in.parquet").unlink()
        return impute(imputer, frame)

    monkeypatch.setattr(MDTIMImputer, "impute", removing)
    run("impute", tmp_path / "in.parquet", "-o", tmp_path / "out.parquet", *QUICK)
    assert not pd.read_parquet(tmp_path / "out.parquet").isna().any().any()


def test_a_model_is_fitted_once_and_used_again(source: Path, tmp_path: Path) -> None:
    run("fit", source, "-o", tmp_path / "model", *QUICK)
    for name in ("one.csv", "two.parquet"):
        run("impute", source, "-o", tmp_path / name, "--model", tmp_path / "model", "--quiet")
    one = pd.read_csv(tmp_path / "one.csv")
    two = pd.read_parquet(tmp_path / "two.parquet")
    np.testing.assert_array_equal(one[["a", "b", "c"]], two[["a", "b", "c"]])
    facts = json.loads(run("info", tmp_path / "model", "--json"))
    assert facts["window"] == 16
    assert facts["variates"] == ["a", "b", "c"]
    assert "window: 16" in run("info", tmp_path / "model")


@pytest.mark.parametrize("command", ["impute", "report", "evaluate"])
def test_a_model_is_not_trained_in_passing(command: str, source: Path, tmp_path: Path) -> None:
    run("fit", source, "-o", tmp_path / "model", *QUICK)
    suffix = "csv" if command == "impute" else "html"
    target = [] if command == "evaluate" else ["-o", tmp_path / f"out.{suffix}"]
    arguments = [command, source, *target, "--model", tmp_path / "model"]
    said = run(*arguments, "--fit", "--max-steps", "3", code=2)
    assert "--fit, --max-steps cannot be followed" in " ".join(said.split())
    if command == "evaluate":
        run(*arguments, "--seed", "3", "--quiet")
    else:
        assert "--seed cannot be followed" in " ".join(run(*arguments, "--seed", 3, code=2).split())


def test_a_model_takes_its_columns_in_any_order(source: Path, tmp_path: Path) -> None:
    model = ["--model", tmp_path / "model", "--quiet"]
    run("fit", source, "-o", tmp_path / "model", *QUICK)
    run("impute", source, "-o", tmp_path / "out.csv", *model)
    frame = pd.read_csv(source)
    turned = frame[frame.columns[::-1]]
    turned.to_csv(tmp_path / "turned.csv", index=False)
    run("impute", tmp_path / "turned.csv", "-o", tmp_path / "out2.csv", *model)
    other = pd.read_csv(tmp_path / "out2.csv")
    assert list(other.columns) == list(turned.columns)
    pd.testing.assert_frame_equal(other[frame.columns], pd.read_csv(tmp_path / "out.csv"))
    frame.rename(columns={"c": "d"}).to_csv(tmp_path / "other.csv", index=False)
    said = run("evaluate", tmp_path / "other.csv", *model, code=2)
    assert "lacks c and has d besides" in " ".join(said.split())


def test_two_outputs_of_one_name_are_refused(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    assert "written to already" in run("impute", source, "-o", output, "--report", output, code=2)


def test_steps_that_a_table_skips_are_not_counted_as_its_gaps(source: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(source).drop(range(60, 80))
    frame.to_csv(source, index=False)
    said = run("impute", source, "-o", tmp_path / "out.csv", "--json", *QUICK)
    facts = json.loads(said.splitlines()[-1])
    assert facts["missing"] == facts["filled"] == int(frame[["a", "b", "c"]].isna().sum().sum())


def test_a_note_is_said_once(source: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(source).rename(columns={"when": "time"})
    frame.loc[5, "time"] = "31.12.2023 24:00"
    frame.to_csv(source, index=False)
    said = " ".join(run("impute", source, "-o", tmp_path / "out.csv", *QUICK).split())
    assert said.count("'time' does not read as times, such as '31.12.2023 24:00'") == 1


def test_evaluate_prints_scores_beside_simple_methods(source: Path, tmp_path: Path) -> None:
    text = run("evaluate", source, "--report", tmp_path / "r.html", *QUICK)
    assert "linear" in text
    scores = json.loads(run("evaluate", source, "--json", *QUICK).splitlines()[-1])
    assert {row["method"] for row in scores["rows"]} == {"mdtim", "mean", "locf", "linear"}
    assert run("evaluate", source, "--quiet", *QUICK).count("linear") <= 1  # a note at most


def test_info_says_what_is_missing(source: Path) -> None:
    facts = json.loads(run("info", source, "--json"))
    table = pd.read_csv(source)
    assert facts["missing"] == int(table.isna().sum().sum())
    assert facts["columns"][1]["longest_gap"] >= 15
    assert "longest gap" in run("info", source)


def test_a_folder_that_is_not_there_is_told_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdtim.imputer.MDTIMImputer.fit", lambda *_, **__: pytest.fail("worked"))
    nowhere, here = tmp_path / "none" / "x", tmp_path / "out.csv"
    for command in (
        ("impute", source, "-o", f"{nowhere}.csv"),
        ("impute", source, "-o", here, "--report", f"{nowhere}.html"),
        ("report", source, "-o", f"{nowhere}.html"),
        ("evaluate", source, "--report", f"{nowhere}.html"),
    ):
        assert "there is no folder" in run(*command, code=2)
    assert not here.exists()


def test_info_counts_steps_that_no_row_has(source: Path, tmp_path: Path) -> None:
    whole = json.loads(run("info", source, "--json"))
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / "short.csv").write_text("".join(lines[:100] + lines[107:]))
    short = json.loads(run("info", tmp_path / "short.csv", "--json"))
    assert (whole["steps"], whole["skipped_steps"]) == (len(lines) - 1, 0)
    assert (short["steps"], short["skipped_steps"]) == (len(lines) - 1, 7)
    assert short["missing"] > whole["missing"]


def test_json_is_one_object_on_stdout(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["impute", str(source), "-o", str(tmp_path / "o.csv"), "--json", *QUICK]
    )
    facts = json.loads(result.stdout)
    assert facts["filled"] == facts["missing"]
    assert facts["fit"]["steps"] == 2


def test_demo_scores_fills_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mdtim.demo

    whole = mdtim.demo.nyc_weather()
    part = pd.concat([group.iloc[:200] for _, group in whole.groupby("origin")]).reset_index(
        drop=True
    )
    monkeypatch.setattr(mdtim.demo, "nyc_weather", lambda: part)
    text = run("demo", "-o", tmp_path / "demo", "--max-steps", "2")
    assert "linear" in text
    filled = pd.read_csv(tmp_path / "demo" / "filled.csv")
    assert list(filled.columns) == list(part.columns)
    assert len(filled) == len(part)
    assert not filled.isna().any().any()
    for column in mdtim.demo.WEATHER_COLUMNS:
        known = part[column].notna().to_numpy()
        assert (filled[column][known].to_numpy() == part[column][known].to_numpy()).all()
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("name\nx\ny\n", "numeric"),
        ("t,a\n2024-01-01,inf\n2024-01-02,1\n", "inf"),
        ("t,a\n2024-01-01,1\n2024-01-01,2\n", "2024-01-01"),
        ("a\n1\n2\nerr\n4\n", "err"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_text(content)
    text = run("impute", path, "-o", tmp_path / "out.csv", *QUICK, code=2)
    assert message.lower() in text.lower()
    assert "Traceback" not in text
    assert not (tmp_path / "out.csv").exists()


def test_what_cannot_be_written_is_refused_before_the_fit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdtim.imputer.MDTIMImputer.fit", None)
    assert "expected one of .csv" in run("impute", source, "-o", tmp_path / "out.xlsx", code=2)
    assert "is not an mdtim model" in run("fit", source, "-o", tmp_path, code=2)


def test_wrong_options_are_named(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.csv"
    assert "--quantiles" in run("impute", source, "-o", output, "--quantiles", "5", code=2)
    assert "--quantiles" in run("impute", source, "-o", output, "--quantiles", "a", code=2)
    assert "--window" in run("impute", source, "-o", output, "--window", "big", code=2)
    assert "input itself" in run("impute", source, "-o", source, *QUICK, code=2)
    assert "not an mdtim model" in run("impute", source, "-o", output, "--model", tmp_path, code=2)
    assert "nope" in run("impute", source, "-o", output, "--columns", "nope", *QUICK, code=2)


def test_numbers_that_stand_for_missing_are_named_and_filled(source: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(source)
    frame.loc[[3, 40], "b"] = -999.0
    frame.to_csv(source, index=False)
    assert "--missing-values -999" in run("info", source).replace("\n", " ")
    output = tmp_path / "out.csv"
    said = run("impute", source, "-o", output, "--missing-values", "-999,-9999", *QUICK)
    assert "-999" not in said
    assert pd.read_csv(output)["b"].min() > -100
    assert "--missing-values" in run("info", source, "--missing-values", "none", code=2)


def test_warnings_become_notes(source: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(source).assign(dead=np.nan)
    frame["dead"] = frame["dead"].astype(float)
    frame.to_parquet(tmp_path / "dead.parquet")
    text = run("impute", tmp_path / "dead.parquet", "-o", tmp_path / "o.csv", *QUICK)
    assert "note:" in text
    assert "dead" in text


def test_nothing_and_a_pretrained_preset_contradict_each_other(
    source: Path, tmp_path: Path
) -> None:
    options = ["--from", "nothing", "--preset", "base", "-o", str(tmp_path / "model")]
    result = CliRunner().invoke(app, ["fit", str(source), *options])
    assert result.exit_code == 2
    assert "base starts from pretrained weights" in " ".join(result.output.split())


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom mdtim.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert not {'torch', 'pandas', 'bokeh', 'jinja2'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_module_runs_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mdtim", "--help"])
    with pytest.raises(SystemExit) as stop:
        mdtim.cli.main()
    assert stop.value.code == 0
