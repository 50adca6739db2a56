from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mdtim.bench.section import read_rows
from mdtim.benchmark import summary
from mdtim.benchmark.experiments import Cell, cells_of, with_methods
from mdtim.benchmark.reading import (
    mean_over_seeds,
    over_seeds,
    paper_figures,
    paper_forecasts,
)
from mdtim.benchmark.rows import Row, append, fingerprint
from mdtim.benchmark.tables import render


def write(path: Path, cells: list[Cell], score: float, **changes: object) -> None:
    for cell in cells:
        values: dict[str, object] = {
            **asdict(cell),
            **dict.fromkeys(("mae", "mse", "crps", "crps_window"), score),
            **dict.fromkeys(("params", "train_seconds", "impute_seconds", "peak_memory_gb"), 1),
            **{"coverage90": 0.9, "device": "d", "versions": "v", "commit": "c", "config": "x"},
            **changes,
        }
        append(path, Row(**values))  # type: ignore[arg-type]


def lines_of(text: str, begins: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith(begins)]
    return [[part.strip() for part in row.strip("|").split("|")] for row in rows]


def test_the_papers_figures_are_complete() -> None:
    mae = paper_figures("mae")
    # One name a system, so that all of its figures are found by it.
    assert len({name.lower() for name in mae}) == len(mae) == 18
    assert mae["MDTIM"]["etth", 48, "uniform", 0.3] == 0.127
    assert mae["SAITS"]["etth", 192, "geometric", 0.7] == 0.195
    assert mae["MDTIM"]["physionet2012", 48, "uniform", 0.3] == 0.236
    assert len(paper_figures("crps")["MDTIM"]) == 18
    assert paper_figures("mae_ablation")["K = 20"]["etth", 48, "uniform", 0.3] == 0.138
    assert paper_forecasts()["MDTIM"] == {4: 0.138, 6: 0.153, 8: 0.17, 12: 0.2}


def test_rows_of_a_preset_that_has_changed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    etth, sine = cells_of("main", "etth"), cells_of("main", "sine")
    write(path, etth, 0.15)
    for cell in sine:
        write(path, [cell], 0.15, config=fingerprint(cell))
    assert "to be run again: mdtim base on etth (main)." in render(path)
    assert "Trained on ETTh before the preset changed" in "\n".join(
        summary.summary_table(read_rows(path))
    )
    for cell in etth:
        write(path, [cell], 0.14, config=fingerprint(cell))
    assert "to be run again" not in render(path)
    assert "Trained on ETTh" not in "\n".join(summary.summary_table(read_rows(path)))
    gone = [replace(etth[0], method="saits", preset="magic")]
    write(path, gone, 0.2)
    assert "saits magic on etth (main)" in render(path)


def test_the_tables_tell_how_long_a_system_learned_and_what_ended_it(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    cells = with_methods(cells_of("main", "etth"), ["saits"], "default+max_minutes=5")
    write(path, cells, 0.2, train_seconds=301, device="CPU, 1 threads")
    assert lines_of(render(path), "| saits")[0][-1] == "5.0 min, CPU, stopped"
    cells = with_methods(cells_of("main", "etth"), ["saits"])
    write(path, cells, 0.1, train_seconds=301, device="NVIDIA H200")
    assert lines_of(render(path), "| saits")[0][-1] == "5.0 min, H200"


def test_a_pretrained_network_is_shown_without_interpolation_to_compare_with(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.csv"
    write(path, cells_of("zeroshot", "etth"), 0.15)
    assert "| etth | uniform | 30% | 0.1500 | – | – | 0.1400 |" in render(path)


def test_the_lower_of_ours_and_the_papers_is_bold_and_other_methods_stay_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.csv"
    write(path, cells_of("main", "etth"), 0.15)
    others = [Cell(**{**asdict(cell), "method": "linear"}) for cell in cells_of("main", "etth")]
    write(path, others, 9.0)
    text = render(path)
    found = lines_of(text, "| etth | 48 | uniform | 30%")[0]
    assert found[4:7] == ["0.1500", "**0.127**", f"{0.15 / 0.127:.3f}"]
    found = lines_of(text, "| etth | 48 | uniform | 70%")[0]
    assert found[4:6] == ["**0.1500**", "0.211"]
    assert "below the paper in 4 of 6 cells" in text
    assert "9.0" not in text[: text.index("## All systems")]
    assert "## Ablation" not in text


def test_seeds_are_averaged_within_the_latest_configuration(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    cells = cells_of("main", "etth")[:3]
    write(path, cells, 0.5)
    write(path, cells[:1], 0.1, config="y")
    write(path, cells[1:2], 0.3, config="y")
    (value,) = mean_over_seeds(read_rows(path), "mae").values()
    assert value == pytest.approx(0.2)
    write(path, cells[:1], 0.3, config="y")  # the same mask once more
    (values,) = over_seeds(read_rows(path), "mae").values()
    assert values == pytest.approx([0.3, 0.3])


def test_a_system_run_with_other_settings_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write(path, cells_of("main", "etth"), 0.1)
    for preset, score in (("default", 0.4), ("authors", 0.3), ("default+max_minutes=17", 0.2)):
        write(path, with_methods(cells_of("main", "etth"), ["saits"], preset), score)
    text = render(path)
    systems = text[text.index("## All systems") : text.index("## Distributions")]
    assert [row[:2] for row in lines_of(systems, "| saits")] == [
        ["saits, max_minutes=17", "0.2000 (0.14)"],
        ["saits, authors", "0.3000 (0.14)"],
        ["saits", "0.4000 (0.14)"],
    ]


def test_a_cell_with_fewer_masks_says_how_many(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    cells = with_methods(cells_of("main", "etth"), ["imputeformer"])
    write(path, cells_of("main", "etth"), 0.15)
    write(path, [c for c in cells if c.mask_seed == 0 or c.rate == 0.3], 0.2)
    line = lines_of(render(path), "| imputeformer")[0]
    assert line[1:3] == ["0.2000 (0.146)", "0.2000¹ (0.178)"]


def test_a_smallest_range_stands_between_the_recipe_and_the_papers_figure(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write(path, cells_of("faithful", "sine"), 0.0005)
    assert "## Range" not in render(path)
    write(path, cells_of("range"), 0.0019)
    text = render(path)
    found = [row[1] for row in lines_of(text[text.index("## Range") :], "|")[2:5]]
    assert found == ["0.0005", "0.0019", "0.0020"]


def test_an_ablation_says_what_each_change_costs(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for cell in cells_of("ablation"):
        worse = "min_range" in cell.preset
        write(path, [cell], 0.22 if worse else 0.11 if cell.method == "mdtim-argmax" else 0.2)
    text = render(path)
    (everything,) = lines_of(text, "| everything")
    assert everything[1] == "0.2000"
    assert everything[-1] == ""
    assert lines_of(text, "| no smallest range")[0][-1] == "+10.0%"
    assert lines_of(text, "| argmax |")[0][-1] == "-45.0%"
    assert lines_of(text, "| *the paper's K = 60*")[0][1] == "0.129"


def test_the_limit_and_the_forecasts_stand_beside_the_best_possible(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for cell in cells_of("limit"):
        write(path, [cell], 0.2 if cell.method == "optimum" else 0.21)
    for cell in cells_of("downstream"):
        write(path, [cell], 0.1 if cell.method == "clean" else 0.13, crps=None)
    text = render(path)
    assert lines_of(text, "| geometric | 30%")[0][2:5] == ["0.2100", "0.2000", "1.050"]
    assert "The largest ratio is 1.050." in text
    found, *others = lines_of(text, "| 12 |")
    assert found[1:3] == ["mdtim", "0.1300"]
    assert found[-2:] == ["0.1000", "0.2"]
    assert {(line[1], line[2], line[-1]) for line in others} == {
        ("csdi", "–", "0.237"),
        ("saits", "–", "0.254"),
    }


def test_a_failed_cell_is_named_and_not_averaged(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    cells = cells_of("long")[:2]
    write(path, cells[:1], 0.1)
    nothing = dict.fromkeys(("mse", "crps", "crps_window", "coverage90"))
    write(path, cells[1:], 0.0, mae=None, error="MemoryError: too wide", **nothing)
    text = render(path)
    assert "- long etth mdtim base: MemoryError: too wide" in text
    assert "0.1000" in text


def test_the_tables_in_the_documents_are_those_of_the_results() -> None:
    root = Path(__file__).parents[1]
    assert (root / "docs" / "results.md").read_text() == render(root / "results" / "paper.csv")


def test_the_averages_in_the_readme_are_those_of_the_results(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page = tmp_path / "README.md"
    page.write_text((root / "README.md").read_text())
    summary.update(page, root / "results" / "paper.csv")
    assert page.read_text() == (root / "README.md").read_text()


def test_made_up_data_is_averaged_apart(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write(path, cells_of("main", "sine"), 0.0001)
    write(path, cells_of("main", "etth"), 0.1)
    text = render(path)
    means = {
        what: float(mean) for what, mean in re.findall(r"- ([\w-]+) data: .*paper (\S+);", text)
    }
    assert means["measured"] > 0.5
    assert means["made-up"] < 0.1


def test_an_average_over_nothing_is_a_dash() -> None:
    lines = summary.summary_table([])
    assert lines[-1] == "| the three measured sets | – | – | – | – | – |"
