"""Run a client program and read what it prints."""

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.children import ChildError, die_with_parent, end, tail

WORK_S = 180.0
"""Time limit of one program."""


class ClientProgram:
    """A running client program. It prints JSON objects with an `event`, one per line, and is killed after WORK_S."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._late = False
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
                env=os.environ,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._timer = threading.Timer(WORK_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next event of this name. Raise ChildError if the program ends before."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("event") == event:
                return found
        code = self._child.wait()
        why = f"took more than {WORK_S:.0f} s" if self._late else f"ended with exit code {code} before it printed {event}"
        raise ChildError(f"{self.name} {why}. The end of its errors:\n{tail(self._log)}")

    def finish(self) -> None:
        """Wait for the end. Raise ChildError unless the program succeeded."""
        if code := self._child.wait():
            raise ChildError(f"{self.name} ended with exit code {code}. The end of its errors:\n{tail(self._log)}")

    def end(self) -> None:
        """Kill the program if it still runs."""
        self._timer.cancel()
        end(self._child)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def __enter__(self) -> "ClientProgram":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _expire(self) -> None:
        self._late = True
        self._child.kill()
