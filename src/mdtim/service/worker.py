"""A process that reads and fills tables, one at a time, for the service.

It takes a :class:`Task` per line of its standard input and answers on its standard output; when
the input ends, so does the process. Its memory is limited, and if it dies only its task is lost.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mdtim.service.protocol import Done, Failed, Progress, Ready, Task

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import BaseModel

    from mdtim.tables.text_tables import TextStyle

Say = Callable[["BaseModel"], None]
NotesSoFar = Callable[[], list[str]]
FITTED, ADAPTED, FILLED = 0.3, 0.85, 0.95
"""How much of a job is done after a look at the table, after adapting to it, and after the fill."""


def main(arguments: list[str]) -> None:
    """Serve tasks; arguments: "fill" or "read", bytes of memory and of a file, threads."""
    kind, (memory, file_size, threads) = arguments[0], map(int, arguments[1:])
    # What libraries print, those in C too, must not get between the messages.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    watch_parent()
    if kind == "fill":
        import torch

        import mdtim.imputer  # loaded before the first task comes

        torch.set_num_threads(threads)
        has_gpu = torch.cuda.is_available()
    else:
        import mdtim.service.preview  # noqa: F401

        has_gpu = False
    # A GPU's driver maps more addresses than any machine has memory.
    limit_process(None if has_gpu else memory, file_size)
    tasks = os.fdopen(os.dup(0), "r", encoding="utf-8")  # whatever the locale's encoding
    _serve(tasks, answers)


def watch_parent(seconds: float = 2.0) -> None:
    """End this process soon after the service, also in the middle of a task."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve(tasks: TextIO, answers: TextIO) -> None:
    def say(message: BaseModel) -> None:
        answers.write(message.model_dump_json() + "\n")
        answers.flush()

    say(Ready())
    for line in tasks:
        say(perform(Task.model_validate_json(line), say))


def limit_process(memory: int | None, file_size: int) -> None:
    """Limit what the process may have from now on, where the system can do that.

    Parameters
    ----------
    memory : bytes on top of what it has now; None for as much as there is
    file_size : bytes of any file it writes
    """
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        if memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def perform(task: Task, say: Say) -> Done | Failed:
    """Do a task; whatever goes wrong becomes an answer."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            facts = _TASKS[task.kind](task, say, lambda: _notes(caught))
        return Done(facts=facts, notes=_notes(caught))
    except ValueError as error:
        return Failed(reason="input", sentence=_without_paths(str(error), task))
    except MemoryError:
        return Failed(reason="memory", sentence=_memory_sentence(task))
    except Exception as error:
        if _is_out_of_memory(error):
            return Failed(reason="memory", sentence=_memory_sentence(task))
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            size = f"{task.limits.result_bytes:,} bytes"
            return Failed(reason="input", sentence=f"a file of the result would exceed {size}")
        traceback.print_exc()
        return Failed(
            reason="error",
            sentence=f"a fault inside mdtim ({type(error).__name__}); the service's log says more",
        )


def _check(task: Task, say: Say, notes: NotesSoFar) -> dict[str, Any]:
    from mdtim.service.uploads import read_table

    frame, _ = _read(task)
    options = {} if task.model is None else _remembered(task.model)
    read_table(frame, options | task.choices.table_options(), task.limits)
    return {"rows": len(frame), "columns": frame.shape[1]}


def _remembered(model: Path) -> dict[str, Any]:
    """What a model knows of the table it was fitted to, as arguments of `TableOptions`."""
    from mdtim.tables.table import TableOptions

    document = json.loads((model / "config.json").read_text(encoding="utf-8"))
    names = {field.name for field in fields(TableOptions)}
    known = {name: value for name, value in document["params"].items() if name in names}
    if known.get("time") is None:
        known["time"] = document.get("clock_column")
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }


def _preview(task: Task, say: Say, notes: NotesSoFar) -> dict[str, Any]:
    from mdtim.service.preview import preview

    frame, _ = _read(task)
    return preview(frame, task.choices, task.limits).model_dump()


def _fill(task: Task, say: Say, notes: NotesSoFar) -> dict[str, Any]:
    from mdtim.imputer import MDTIMImputer
    from mdtim.service.results import write_result
    from mdtim.service.wording import for_program
    from mdtim.tables.files import PARQUET, parquet_source

    def stage(begin: float, end: float, text: str) -> Callable[[float, str], None]:
        say(Progress(share=begin, since=begin, text=text))
        return lambda share, words: say(
            Progress(share=begin + (end - begin) * share, since=begin, text=words)
        )

    stage(0.0, 0.0, "reading the table")
    frame, style = _read(task)
    options, fitted = task.choices.table_options(), 0.0
    if task.model is None:
        fitted = ADAPTED if task.choices.adapt else FITTED
        listen = stage(0.0, fitted, "looking at how the columns move together")
        imputer = MDTIMImputer(**task.imputer, **options, progress=listen).fit(frame)
    else:
        imputer = MDTIMImputer.load(task.model)
        imputer.set_params(**options)  # goes before what the model remembers of its own table
    imputer.set_params(progress=stage(fitted, FILLED, "filling the gaps"))
    result = imputer.impute(frame)
    stage(FILLED, FILLED, "writing the result")
    filled = result.with_quantiles(task.choices.quantiles)
    folder = task.source.parent
    source = None
    if task.source.suffix in PARQUET:
        source = parquet_source(task.source, adds_rows=task.choices.freq is not None)
    told = [for_program(note) for note in notes()]
    for form in task.formats:
        write_result(filled, folder / f"result.{form}", style, source, told)
    if task.with_pictures:
        from mdtim.service.chart import chart

        result.report(folder / "report.html", name=task.name, notes=told)
        (folder / "chart.json").write_text(json.dumps(chart(result), allow_nan=False))
    # A model's steps and scores belong to the table that it was fitted to.
    fit = imputer.report_ if task.model is None else None
    return {
        "rows": len(filled),
        "missing": result.num_missing,
        "filled": result.num_filled,
        "encoding": "utf-8" if style is None else style.encoding,
        "steps": 0 if fit is None else fit.steps,
        "validation_mae": None if fit is None else fit.validation_mae,
        "linear_mae": None if fit is None else fit.linear_mae,
    }


_TASKS = {"check": _check, "preview": _preview, "fill": _fill}


def _read(task: Task) -> tuple[pd.DataFrame, TextStyle | None]:
    from mdtim.service.uploads import read_upload

    return read_upload(task.source, task.limits, task.name)


def _without_paths(sentence: str, task: Task) -> str:
    """Leave out where the service keeps its files."""
    for path in (task.source, task.model):
        if path is not None:
            sentence = sentence.replace(f"{path.parent}{os.sep}", "")
    return sentence


def _notes(caught: list[warnings.WarningMessage]) -> list[str]:
    """Collect what is meant for the owner of the table; the rest goes to the log."""
    from_us = [w for w in caught if w.category.__module__.startswith("mdtim.")]
    for warning in caught:
        if warning not in from_us:
            print(f"{warning.category.__name__}: {warning.message}", file=sys.stderr)
    return list(dict.fromkeys(str(warning.message) for warning in from_us))


def _is_out_of_memory(error: Exception) -> bool:
    return "alloc" in str(error).lower() and "memory" in str(error).lower()


def _memory_sentence(task: Task) -> str:
    return (
        f"the table needs more than the {task.limits.memory_bytes / 2**30:.1f} GiB of memory a job "
        "may have; fill fewer columns or rows"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
