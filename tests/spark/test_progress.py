"""The lines that tell how far a load is."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.protocol.errors import TransportError
from lockstep.spark import load_progress
from lockstep.spark.load_progress import LOOK_MS, Progress

NOBODY = "127.0.0.1:1"


class InThisThread:
    """A host whose one daemon runs where it is started, and whose clock the test advances."""

    def __init__(self) -> None:
        self.threads = self.clock = self
        self.now_ms = 0

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        function()

    def monotonic_ms(self) -> int:
        return self.now_ms


def watched(monkeypatch: pytest.MonkeyPatch, host: InThisThread, lines: int) -> list[str]:
    """What the thread says until it has said so many lines."""
    manifest = SimpleNamespace(start_offsets={"t": {"a:0": 100}}, rows=1_000, topic="t")
    progress = Progress(NOBODY, manifest, host)  # type: ignore[arg-type]
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line.strip())
        if len(said) == lines:
            progress.stop()

    monkeypatch.setattr(load_progress, "say", say)
    progress.start()
    return said


def test_an_outage_at_the_first_look_makes_a_line_late_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_progress, "LOOK_MS", 1)
    monkeypatch.setattr(load_progress, "TELL_MS", 0)
    said = watched(monkeypatch, InThisThread(), 3)
    assert [line.partition(": ")[0] for line in said] == ["no count"] * 3
    assert "no nameserver can be reached" in said[0]


def test_a_line_a_second_tells_what_is_accepted_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    host = InThisThread()
    answers: list[Any] = [0, 200, TransportError("restarting"), 800]

    class Scripted:
        """Pauses by the host's clock."""

        def __init__(self, *_: object) -> None: ...

        def pause(self, ms: int) -> None:
            host.now_ms += ms

        def ask(self, _: object) -> int:
            answer = answers.pop(0)
            if isinstance(answer, TransportError):
                raise answer
            return int(answer)

        def close(self) -> None:
            host.now_ms = -1

    monkeypatch.setattr(load_progress, "Kept", Scripted)
    said = watched(monkeypatch, host, 3)
    assert [" ".join(line.split()) for line in said] == [
        "200 of 1,000 accepted 100/s",
        "no count: restarting",
        "800 of 1,000 accepted 300/s",
    ]
    assert LOOK_MS < 1_000
    assert host.now_ms == -1, "the connection is closed"
