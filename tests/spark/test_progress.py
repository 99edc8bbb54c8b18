"""The lines that report the progress of a load."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.protocol.errors import TransportError
from lockstep.spark.load import load_progress
from lockstep.spark.load.load_progress import LoadProgress

UNUSED_ADDRESS = "127.0.0.1:1"


class InThisThread:
    """A host whose one daemon runs in this thread, and whose clock the test advances."""

    def __init__(self) -> None:
        self.threads = self.clock = self
        self.now_ms = 0

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        function()

    def monotonic_ms(self) -> int:
        return self.now_ms


def watched(monkeypatch: pytest.MonkeyPatch, host: InThisThread, lines: int) -> list[str]:
    """Run the progress thread until it has printed `lines` lines. Return them."""
    manifest = SimpleNamespace(start_offsets={"t": {"a:0": 100}}, rows=1_000, topic="t")
    progress = LoadProgress(UNUSED_ADDRESS, manifest, host)  # type: ignore[arg-type]
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line.strip())
        if len(said) == lines:
            progress.stop()

    monkeypatch.setattr(load_progress, "print_status", say)
    progress.start()
    return said


def test_outage_at_the_first_count_is_reported_and_counting_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_progress, "STOP_CHECK_MS", 1)
    monkeypatch.setattr(load_progress, "PRINT_EVERY_MS", 0)
    said = watched(monkeypatch, InThisThread(), 3)
    assert [line.partition(": ")[0] for line in said] == ["no count"] * 3
    assert "no nameserver can be reached" in said[0]


def scripted(monkeypatch: pytest.MonkeyPatch, host: InThisThread, responses: list[Any]) -> None:
    """Replace the connection by one that returns `responses`, one per count, and pauses by the host's clock."""

    class Scripted:
        def __init__(self, *_: object) -> None: ...

        def pause(self, ms: int) -> None:
            host.now_ms += ms

        def run(self, _: object) -> int:
            response = responses.pop(0)
            if callable(response):
                response = response()
            if isinstance(response, TransportError):
                raise response
            return int(response)

        def close(self) -> None:
            host.now_ms = -1

    monkeypatch.setattr(load_progress, "CachedCluster", Scripted)


def words(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def test_progress_line_reports_accepted_rows_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    host = InThisThread()
    scripted(monkeypatch, host, [0, 0, 200, TransportError("restarting"), 800])
    assert words(watched(monkeypatch, host, 3)) == [
        "200 of 1,000 accepted 100/s",
        "no count: restarting",
        "800 of 1,000 accepted 300/s",
    ]
    assert host.now_ms == -1, "the connection is closed"


def test_earlier_rows_of_a_resumed_run_do_not_count_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    host = InThisThread()
    scripted(monkeypatch, host, [500, 700])
    assert words(watched(monkeypatch, host, 1)) == ["700 of 1,000 accepted 200/s"]


@pytest.mark.parametrize("response", [900, TransportError("gone")])
def test_no_progress_is_printed_after_the_load_has_ended(monkeypatch: pytest.MonkeyPatch, response: Any) -> None:
    """A line after the result would be the last one on spark-submit's stdout."""
    host = InThisThread()
    manifest = SimpleNamespace(start_offsets={}, rows=1_000, topic="t")
    progress = LoadProgress(UNUSED_ADDRESS, manifest, host)  # type: ignore[arg-type]

    def ends_meanwhile() -> Any:
        progress.stop()
        return response

    scripted(monkeypatch, host, [0, ends_meanwhile])
    said: list[str] = []
    monkeypatch.setattr(load_progress, "print_status", said.append)
    progress.start()
    assert said == []
