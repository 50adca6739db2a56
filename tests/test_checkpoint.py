from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from mdtim.checkpoint import load_folder, load_weights, save_folder

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(tmp_path / "model", {"kind": "imputer"}, WEIGHTS)
    return tmp_path / "model"


def test_what_was_saved_is_loaded(folder: Path) -> None:
    document, tensors = load_folder(folder)
    assert document["kind"] == "imputer"
    assert all(torch.equal(tensors[name], WEIGHTS[name]) for name in WEIGHTS)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_saving_again_replaces_the_folder(folder: Path) -> None:
    save_folder(folder, {"kind": "other"}, {})
    document, tensors = load_folder(folder)
    assert document["kind"] == "other"
    assert not tensors


def test_a_folder_that_is_not_ours_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="not an mdtim model"):
        save_folder(tmp_path / "precious", {}, {})
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_model_beside_other_files_is_not_replaced(folder: Path) -> None:
    (folder / "report.html").write_text("kept")
    with pytest.raises(ValueError, match=r"holds report.html beside a model"):
        save_folder(folder, {"kind": "other"}, {})
    assert (folder / "report.html").read_text() == "kept"
    assert load_folder(folder)[0]["kind"] == "imputer"


def test_a_model_of_an_older_version_is_ours_and_may_be_replaced(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(re.sub('"format_version": .', '"format_version": 1', config.read_text()))
    save_folder(folder, {"kind": "imputer"}, {})
    assert load_folder(folder)[0]["kind"] == "imputer"


def test_a_failed_save_leaves_the_old_model(folder: Path) -> None:
    with pytest.raises(TypeError):
        save_folder(folder, {"kind": object()}, WEIGHTS)
    assert load_folder(folder)[0]["kind"] == "imputer"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_truncated_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged or truncated"):
        load_folder(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        load_folder(folder)


def test_a_foreign_damaged_older_or_newer_config_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text())
    for version in (1, 99):
        path.write_text(json.dumps({**document, "format_version": version}))
        with pytest.raises(ValueError, match=f"format version {version}, this mdtim reads version"):
            load_folder(folder)
    path.write_text(json.dumps({"format": "other"}))
    with pytest.raises(ValueError, match="of another kind"):
        load_folder(folder)
    path.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        load_folder(folder)
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_folder(tmp_path)


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"missing \['c'\]"):
        load_weights({**WEIGHTS, "c": torch.ones(1)}, WEIGHTS, folder)
    with pytest.raises(ValueError, match=r"unexpected \['b'\]"):
        load_weights({"a": WEIGHTS["a"]}, WEIGHTS, folder)
    with pytest.raises(ValueError, match="shape"):
        load_weights({**WEIGHTS, "b": torch.ones(5)}, WEIGHTS, folder)


def test_no_pickle_is_on_the_loading_path() -> None:
    import mdtim

    for path in Path(mdtim.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text, path
        assert "torch.load" not in text, path


def test_a_home_folder_is_looked_at_before_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    with pytest.raises(ValueError, match="is not an mdtim model"):
        save_folder(Path("~/photos"), {}, {})
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "cat"
    save_folder(Path("~/model"), {"a": 1}, {"w": torch.ones(2)})
    assert load_folder(Path("~/model"))[0]["a"] == 1
    assert not (tmp_path / "~").exists()


def test_weights_may_be_read_by_whoever_may_read_the_rest(tmp_path: Path) -> None:
    save_folder(tmp_path / "model", {}, {"w": torch.ones(2)})
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert len(modes) == 1
