"""The folder of a filled data set: parts that are whole, and the manifest that says which.

Beside the parts lies `_mdtim`: `run.json` marks the folder as ours, `model/` is the model that
filled it, `scans/` is what a look at the source told, and `parts/` has one record for each part,
written after the part itself.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs

from mdtim.batch.source import Place, Source

OURS = "_mdtim"
FORMAT_VERSION = 1
MODEL_FILES = ("config.json", "model.safetensors")
"""As `mdtim.checkpoint` calls them, which loads PyTorch."""


@dataclass(frozen=True)
class Target:
    """Where a filled data set is written to."""

    place: Place

    def check(self, source: Source) -> None:
        """Refuse a folder that holds something else, or that is the source itself."""
        own, its = self.place.root, source.place.root
        # Beside a single file there is room; a folder of parts is searched to the bottom.
        inside = own == its or (not source.is_file and f"{own}/".startswith(f"{its}/"))
        if inside and type(self.place.system) is type(source.place.system):
            raise ValueError(f"{self.place} is the source or lies in it; choose another target")
        info = self.place.info()
        if info.type == pa.fs.FileType.File:
            raise ValueError(f"{self.place} is a file; name a folder for the parts")
        if info.type == pa.fs.FileType.Directory and not self.place.exists(f"{OURS}/run.json"):
            selector = pa.fs.FileSelector(self.place.root)
            if self.place.system.get_file_info(selector):
                raise ValueError(
                    f"{self.place} exists and is not the work of mdtim batch; choose "
                    "another target, or empty it"
                )

    def claim(self, document: dict[str, Any]) -> None:
        """Mark the folder as ours, and clear away what a killed run left half done."""
        partial = self.place.path(f"{OURS}/partial")
        try:
            self.place.system.create_dir(partial, recursive=True)
            self.place.system.delete_dir_contents(partial, missing_dir_ok=True)
            self.write(f"{OURS}/run.json", _json({"format_version": FORMAT_VERSION, **document}))
        except OSError as error:
            raise ValueError(
                f"{self.place} cannot be written ({error}); check its rights"
            ) from error

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Offer an open file that takes its name when it is whole, and only then."""
        system = self.place.system
        temporary = self.place.path(f"{OURS}/partial/{secrets.token_hex(8)}")
        try:
            with system.open_output_stream(temporary) as file:
                yield file
        except BaseException:
            if system.get_file_info(temporary).type == pa.fs.FileType.File:
                system.delete_file(temporary)
            raise
        system.create_dir(self.place.path(name).rpartition("/")[0], recursive=True)
        system.move(temporary, self.place.path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, whole."""
        with self.writing(name) as file:
            file.write(content)

    # -- the manifest -----------------------------------------------------------------------

    def note(self, name: str, record: dict[str, Any]) -> None:
        """Record a part that was written."""
        size = self.place.info(name).size
        self.write(_record(name), _json({**record, "size": size}))

    def record(self, name: str) -> dict[str, Any] | None:
        """What was recorded about a part that is still as it was written, else None."""
        if not self.place.exists(_record(name)):
            return None
        found: dict[str, Any] = json.loads(self.place.read(_record(name)))
        info = self.place.info(name)
        is_whole = info.type == pa.fs.FileType.File and info.size == found["size"]
        return found if is_whole else None

    def left_behind(self, source: Source) -> list[str]:
        """Parts of earlier runs that are still here, while the source has them no more."""
        selector = pa.fs.FileSelector(self.place.root, recursive=True, allow_not_found=True)
        begin = len(self.place.root.rstrip("/")) + 1
        files = self.place.system.get_file_info(selector)
        names = {file.path[begin:] for file in files if file.type == pa.fs.FileType.File}
        ours = {name for name in names if not name.startswith(f"{OURS}/")}
        gone = ours - {part.name for part in source.parts}
        return sorted(name for name in gone if _record(name) in names)

    # -- the model --------------------------------------------------------------------------

    def model(self) -> dict[str, bytes] | None:
        """Files of the model that an earlier run fitted here."""
        if not self.place.exists(f"{OURS}/model/{MODEL_FILES[-1]}"):
            return None
        return {name: self.place.read(f"{OURS}/model/{name}") for name in MODEL_FILES}

    def keep_model(self, model: dict[str, bytes]) -> None:
        """Keep the model; its last file makes it whole."""
        for name in MODEL_FILES:
            self.write(f"{OURS}/model/{name}", model[name])


def _record(name: str) -> str:
    return f"{OURS}/parts/{name}.json"


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()
