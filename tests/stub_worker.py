"""A worker that does what the table says: "sleep 5", "die", "quit", "babble" or "ok".

It starts in no time and speaks the same lines as the real one.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


say(say="ready")
for line in sys.stdin:
    task = json.loads(line)
    source = Path(task["source"])
    word, *rest = source.read_text().split()
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
        for form in task["formats"]:
            source.with_name(f"result.{form}").write_text("filled")
        if task["with_pictures"]:
            source.with_name("report.html").write_text("<p>report</p>")
            source.with_name("chart.json").write_text("{}")
    say(say="done", facts={"rows": 1}, notes=[])
