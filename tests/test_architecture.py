from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command

import mdtim
from mdtim.cli import app

ROOT = Path(mdtim.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))

# Packages whose modules are all of one tier.
PACKAGES = (
    *("tables", "gpu", "closed_form", "learning"),
    *("report", "bench", "benchmark", "pretraining", "service", "batch"),
)

# A module imports only from lower tiers, or from its own tier.
TIERS = [
    {
        *("atomic", "panel", "config", "windows", "missingness", "metrics"),
        *("scaling", "autowindow", "series_scales"),
    },
    {"tables", "weather", "baselines.simple", "baselines.kalman"},
    {
        *("gpu", "closed_form"),
        *("kernels", "mlp", "embedding", "readout", "runtime", "threads"),
        *("tokenizer", "masks", "wanted", "layers", "network", "diffusion"),
        *("distribution", "calibration", "stacking", "corrections"),
    },
    {"series", "checkpoint", "blending", "inference", "sampling", "learning"},
    {
        *("doubts", "progress", "model", "imputation", "parameters", "imputer"),
        "pretrained",
    },
    {
        *("report", "sources", "datasets", "messages", "options", "evaluation", "demo"),
        *("batch", "bench", "pretraining"),
    },
    {
        *("baselines.protocol", "baselines.settings", "baselines.references"),
        *("baselines.noise", "baselines.diffusion", "baselines.encoder", "baselines.csdi"),
        *("baselines.cuda_layers", "baselines.fused_noise", "baselines.training_clock"),
        *("baselines.regression", "baselines.pypots", "baselines.registry", "pypots"),
        *("baselines.fgti", "baselines.fgti.filters", "baselines.fgti.filling"),
        *("baselines.fgti.network", "baselines.fgti.imputer"),
    },
    {"benchmark", "service"},
    {"cli", "__main__"},
]
# Looked up by name at run time, so that a light module need not load a heavy one.
LAZY = {
    *(("imputation", "report"), ("imputation", "evaluation"), ("imputer", "report")),
    *(("tables", "checkpoint"), ("cli", "benchmark")),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in PACKAGES:
        return parts[0]
    return ".".join(part for part in parts if part != "__init__") or "__init__"


def tier_of(name: str) -> int | None:
    return next((level for level, names in enumerate(TIERS) if name in names), None)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mdtim"):
            rest = node.module.removeprefix("mdtim").lstrip(".")
            if rest:
                found.add(rest.split(".")[0] if rest.split(".")[0] in PACKAGES else rest)
            else:
                found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_to_lower_tiers(path: Path) -> None:
    name = name_of(path)
    if name in ("__init__", "baselines"):
        return
    level = tier_of(name)
    assert level is not None, f"give {name} a tier"
    for other in imports_of(path):
        if (name, other) in LAZY or other == name:
            continue
        assert (tier_of(other) or 0) <= level, f"{name} must not import {other}"


def test_the_page_tells_the_same_tiers() -> None:
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for level, names in enumerate(TIERS):
        (line,) = (one for one in page.splitlines() if one.startswith(f"| {level} "))
        told = set(re.findall(r"`([^`]+)`", line.split("|")[2]))
        if "baselines.*" in told:
            told, names = told - {"baselines.*", "simple", "kalman"}, {"pypots"}
        assert told == names, f"tier {level}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_stay_short_enough_for_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 450


def test_the_public_names_are_these() -> None:
    assert set(mdtim.__all__) == set(dir(mdtim))
    for name in mdtim.__all__:
        assert getattr(mdtim, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        mdtim.nonsense  # noqa: B018


def test_the_commands_are_these() -> None:
    assert set(get_command(app).commands) == {
        *("fit", "impute", "report", "evaluate", "info", "demo", "pretrain", "serve", "batch"),
        *("bench", "benchmark"),
    }  # type: ignore[attr-defined]


def test_model_and_training_need_nothing_but_torch_numpy_and_safetensors() -> None:
    allowed = {"torch", "numpy", "safetensors", "triton", "mdtim"}
    heavy = {"pandas", "pyarrow", "sklearn", "typer", "rich", "polars", "narwhals"}
    lean = (
        TIERS[2]
        | TIERS[3]
        | {"sources", "datasets", "baselines.kalman", "benchmark", "bench"}
        | {"panel", "config", "windows", "missingness", "metrics", "scaling"}
    )
    about_tables = {"cli.py", "table.py", "scale.py", "report.py"}
    for path in MODULES:
        if name_of(path) not in lean or path.name in about_tables:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {name.split(".")[0] for name in names} & heavy, (path, allowed)
