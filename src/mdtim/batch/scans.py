"""What a look at each part told, kept with the target so that a rerun need not look again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from mdtim.batch.engine import Engine
from mdtim.batch.runs import Runs
from mdtim.batch.source import Part, Piece
from mdtim.batch.target import OURS, Target
from mdtim.batch.work import PartScan, Reading, Scanner
from mdtim.tables.grid import Spacing, Workdays

SCAN_VERSION = 2
"""Raised whenever what is kept of a look changes."""

Watch = Callable[[str, int, int, int], None]
"""Called with the stage, the parts done, the parts in all, and the rows done."""


class ScanCache:
    """Looks through parts, unless the target knows what they hold."""

    def __init__(
        self, target: Target, engine: Engine, failures: dict[str, str], watch: Watch
    ) -> None:
        self.target, self.engine, self.failures, self.watch = target, engine, failures, watch
        self.fresh: list[tuple[str, PartScan]] = []

    def look(self, reading: Reading, parts: Sequence[Part]) -> Iterator[PartScan]:
        """Yield scans of all parts that can be read; note the others."""
        digest = reading.digest()
        unknown = []
        for part in parts:
            scan = self._recall(part, digest)
            if scan is None:
                unknown.append(part)
            else:
                yield scan
        for done, outcome in enumerate(self.engine.run(Scanner(reading), unknown)):
            if outcome.error is not None:
                self.failures[outcome.task.name] = outcome.error
            else:
                self.fresh.append((digest, outcome.result))
                yield outcome.result
            self.watch("looking through the parts", done + 1, len(unknown), 0)

    def keep(self) -> None:
        """Write down what was found; the target must be claimed by then."""
        for digest, scan in self.fresh:
            name = f"{OURS}/scans/{scan.part.name}.{digest[:16]}"
            document = {
                "scan_version": SCAN_VERSION,
                "part": asdict(scan.part),
                "checksum": scan.checksum,
                "rows": scan.rows,
                "pieces": [(piece.begin, piece.rows) for piece in scan.pieces],
                "schema": base64.b64encode(scan.schema.serialize().to_pybytes()).decode(),
                "variates": scan.variates,
                "timed": scan.timed,
                "spacings": [spacing and asdict(spacing) for spacing in scan.spacings],
                "weekdays": scan.workdays and scan.workdays._asdict(),
                "decimal": scan.decimal,
                "date_orders": scan.date_orders,
            }
            self.target.write(f"{name}.npz", scan.runs.to_bytes())
            self.target.write(f"{name}.json", json.dumps(document).encode())

    def _recall(self, part: Part, digest: str) -> PartScan | None:
        """What an earlier run saw, if the part is still the same by size and date."""
        name = f"{OURS}/scans/{part.name}.{digest[:16]}"
        if not self.target.place.exists(f"{name}.json"):
            return None
        document: dict[str, Any] = json.loads(self.target.place.read(f"{name}.json"))
        if document.get("scan_version") != SCAN_VERSION:
            return None
        if document["part"] != asdict(part) or not part.modified:
            return None
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
        return PartScan(
            part,
            document["checksum"],
            document["rows"],
            tuple(Piece(part, begin, rows) for begin, rows in document["pieces"]),
            schema,
            tuple(document["variates"]),
            document["timed"],
            tuple(found and Spacing(**found) for found in document["spacings"]),
            document["weekdays"] and Workdays(**document["weekdays"]),
            Runs.from_bytes(self.target.place.read(f"{name}.npz")),
            document["decimal"],
            tuple(document["date_orders"]),
        )
