"""A worker that does what the table says: "sleep 5", "die", "quit", "babble", "ramble" or "ok".

It starts in no time and speaks the same lines as the real one. With "real-reader" before the other
arguments, tables are checked and described by the real one.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

TABLE = {
    **{"steps": 2, "skipped_steps": 0, "series": 1, "step_seconds": None},
    **{"missing": 1, "share": 0.5, "columns": []},
    "map": {"columns": ["a"], "shares": [[0.5]], "ticks": [], "several_series": False},
}
PREVIEW = {
    **{"rows": 2, "names": ["a"], "numeric": ["a"], "time": None, "id": None, "problem": None},
    **{"table": TABLE, "notes": []},
}


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def work() -> None:
    if sys.argv[1:3] == ["real-reader", "read"]:
        from mdtim.service.worker import main

        main(sys.argv[2:])
        sys.exit()
    say(say="ready")
    for line in sys.stdin:
        task = json.loads(line)
        source = Path(task["source"])
        word, *rest = source.read_text(errors="replace").split() or ["ok"]
        if task["kind"] == "fill":
            say(say="progress", share=0.5, text="half way")
            if word == "sleep":
                time.sleep(float(rest[0]))
            elif word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif word == "quit":
                sys.exit(3)
            elif word == "babble":
                print("no message of ours", flush=True)
            elif word == "ramble":
                say(say="done", facts={}, notes=["x" * 2**25])
            for form in task["formats"]:
                source.with_name(f"result.{form}").write_text("filled")
            if task["with_pictures"]:
                source.with_name("report.html").write_text("<p>report</p>")
                source.with_name("chart.json").write_text("{}")
        facts = PREVIEW if task["kind"] == "preview" else {"rows": 1}
        say(say="done", facts=facts, notes=[])


if __name__ == "__main__":
    work()
