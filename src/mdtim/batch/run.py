"""The whole job: look at the parts, get a model, plan, fill what is not filled yet."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdtim.batch.engine import Engine, Inline
from mdtim.batch.plan import Layout, PiecePlan, lay_out, make_plan
from mdtim.batch.sample import sample_panel
from mdtim.batch.scans import ScanCache, Watch
from mdtim.batch.source import Piece, Place, Source
from mdtim.batch.survey import NothingReadable, Survey, survey
from mdtim.batch.target import MODEL_FILES, Target
from mdtim.batch.work import Filler, FillTask, Reading
from mdtim.series_scales import SeriesScales
from mdtim.tables.table import TableOptions

if TYPE_CHECKING:
    from mdtim.imputer import MDTIMImputer

PIECE_ROWS = 1_000_000
SAMPLE_ROWS = 200_000
MAX_NOTES = 100
"""More would be told by nobody; the records of the parts hold all of them."""


@dataclass(frozen=True)
class BatchOptions:
    """What is filled, and how; everything may be left out."""

    table: TableOptions = field(default_factory=TableOptions)
    levels: tuple[float, ...] = ()
    """Quantiles to add as columns."""
    piece_rows: int = PIECE_ROWS
    """Rows of a Parquet part that are held at once."""
    sample_rows: int = SAMPLE_ROWS
    """Rows the model is fitted to, where none is given."""
    device: str = "auto"


@dataclass
class BatchReport:
    """How a job went."""

    parts: int = 0
    filled_parts: int = 0
    """Filled by this run; the others were done before, or failed."""
    kept_parts: int = 0
    rows: int = 0
    """Of the parts filled by this run."""
    filled: int = 0
    """Cells."""
    seconds: float = 0.0
    peak_memory_gb: float = 0.0
    """The most that any process held."""
    failures: dict[str, str] = field(default_factory=dict)
    """Sentence for each part that could not be read or filled."""
    notes: list[str] = field(default_factory=list)


def run_batch(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: BatchOptions | None = None,
    *,
    model: str | Path | None = None,
    estimator: MDTIMImputer | None = None,
    engine: Engine | None = None,
    watch: Watch = lambda stage, done, total, rows: None,
) -> BatchReport:
    """Fill a data set part by part.

    Parameters
    ----------
    source, target : addresses of folders
    options : BatchOptions
    model : folder of a fitted model; without, the target's own, or one fitted to a sample
    estimator : imputer to fit to the sample; a default one without
    engine : where the work runs; this process without
    watch : told about the progress

    Raises
    ------
    ValueError
        If nothing can be done. Single parts that cannot be are in the report.
    """
    options, engine, report = options or BatchOptions(), engine or Inline(), BatchReport()
    found = Source.find(os.fspath(source))
    goal = Target(Place(os.fspath(target)))
    goal.check(found)
    report.parts = len(found.parts)
    cache = ScanCache(goal, engine, report.failures, watch)
    reading = Reading(found, replace(options.table, freq=None), options.piece_rows)
    try:
        known = survey(reading, cache.look)
    except NothingReadable:
        first = next(iter(report.failures.values()))
        raise ValueError(f"no part of {found.place} can be read; the first: {first}") from None
    if known.timed and known.spacing.reading == "rows":
        report.notes.append(
            "the times are not equally spaced, or no part holds two rows of a series: rows are "
            "taken as equal steps; resample the data set if they are not"
        )
    layout = lay_out(known.runs, known.pieces, known.spacing, timed=known.timed)
    made = goal.model() if model is None else _model_files(Path(model))
    if made is not None:
        _check_model(known, made)
    goal.claim({"source": str(found.place)})
    if stale := goal.left_behind(found):
        more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
        report.notes.append(
            f"{goal.place} still holds {', '.join(stale[:3])}{more} of an earlier run, which the "
            "source has no more; remove what is not wanted"
        )
    cache.keep()
    if made is None:
        watch("fitting a model", 0, 0, 0)
        made = _fit(known, layout, options, estimator)
        goal.keep_model(made)
    document = json.loads(made["config.json"])
    plan = make_plan(layout, int(document["window"]), _series_scales(document, made))
    tasks = _tasks(known, plan, made, options)
    waiting = []
    for task in tasks:
        record = goal.record(task.part.name)
        if record is not None and record["key"] == task.key:
            report.kept_parts += 1
        else:
            waiting.append(task)
    work = Filler(known.reading, goal, made, options.levels, options.device)
    began = time.monotonic()
    watch("filling", 0, len(waiting), 0)
    told: dict[str, None] = {}  # a set that keeps its order
    for done, outcome in enumerate(engine.run(work, waiting), start=1):
        if outcome.error is not None:
            report.failures[outcome.task.part.name] = outcome.error
        else:
            record = outcome.result
            report.filled_parts += 1
            report.rows += record["rows"]
            report.filled += record["filled"]
            report.peak_memory_gb = max(report.peak_memory_gb, record["peak_memory_gb"])
            told |= dict.fromkeys(record["notes"])
        watch("filling", done, len(waiting), report.rows)
    report.notes += list(told)[:MAX_NOTES]
    if len(told) > MAX_NOTES:
        report.notes.append(
            f"and {len(told) - MAX_NOTES:,} more notes on single parts: the records of the parts "
            f"in {goal.place} hold all of them"
        )
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _model_files(folder: Path) -> dict[str, bytes]:
    from mdtim.checkpoint import read_document

    read_document(folder)
    return {name: (folder / name).read_bytes() for name in MODEL_FILES}


def _fit(
    known: Survey, layout: Layout, options: BatchOptions, estimator: MDTIMImputer | None
) -> dict[str, bytes]:
    """Fit a model to a sample, and return the files of its folder."""
    from mdtim.imputer import MDTIMImputer

    imputer = estimator or MDTIMImputer(device=options.device)
    table = known.reading.options
    imputer.set_params(
        time=table.time,
        id=table.id,
        columns=table.columns,
        inf_as_missing=table.inf_as_missing,
        missing_values=table.missing_values,
    )
    panel = sample_panel(
        layout, known.pieces, known.reading.panel, options.sample_rows, imputer.seed
    )
    # Remembers the columns, as fitting to a table would.
    imputer.read_table(known.reading.read(known.pieces[0]).frame, reset=True)
    imputer.fit_panel(panel)
    with tempfile.TemporaryDirectory() as folder:
        imputer.save(Path(folder) / "model")
        return {name: (Path(folder) / "model" / name).read_bytes() for name in MODEL_FILES}


def _series_scales(document: dict[str, Any], model: dict[str, bytes]) -> SeriesScales | None:
    from safetensors.torch import load

    return SeriesScales.of_document(document, load(model["model.safetensors"]))


def _check_model(known: Survey, model: dict[str, bytes]) -> None:
    document = json.loads(model["config.json"])
    variates = document["variates"]
    if list(known.variates) != variates:
        raise ValueError(
            f"the model fills the columns {variates}, but the numeric columns here are "
            f"{list(known.variates)}; name the columns to fill, or fit a model to these"
        )
    if document.get("series") is not None and known.reading.options.id is None:
        raise ValueError(
            "the model was fitted to series that differ much in size, and here none is named; give "
            "the column that names them (id), or fit a model to this data set"
        )


def _tasks(
    known: Survey, plan: dict[int, PiecePlan], model: dict[str, bytes], options: BatchOptions
) -> list[FillTask]:
    checksums = {scan.part.name: scan.checksum for scan in known.scans}
    common = hashlib.sha256()
    for name in MODEL_FILES:
        common.update(hashlib.sha256(model[name]).digest())
    common.update(repr((known.reading.digest(), options.levels)).encode())
    tasks = []
    for scan in known.scans:
        first = known.first[scan.part.name]
        numbers = range(first, first + len(scan.pieces))
        key = common.copy()
        key.update(scan.checksum.encode())
        around: dict[int, Piece] = {number: known.pieces[number] for number in numbers}
        for number in numbers:
            key.update(plan[number].cuts.digest())
            for neighbour in plan[number].neighbours:
                near = known.pieces[neighbour.piece]
                around[neighbour.piece] = near
                key.update(f"{checksums[near.part.name]} {near.begin}".encode())
        pieces = tuple((number, plan[number]) for number in numbers)
        tasks.append(FillTask(scan.part, key.hexdigest(), scan.checksum, pieces, around))
    return tasks
