"""A request is repeated while its error may pass and its deadline is not reached."""

import asyncio

import pytest

from lockstep.client.patience import PAUSE_MS, PAUSE_MS_MAX, patiently
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import RETRY_AFTER_FIELD, Command
from lockstep.protocol.errors import (
    LocalProtocolError,
    LockstepError,
    RequestTimeoutError,
    SystemBusyError,
    TopicNotExistError,
    TransportError,
)
from lockstep.protocol.responses import PULLED
from lockstep.runtime.host import Host
from support.cycles import collector_off

pytestmark = pytest.mark.simulated

GOOD = Command(ResponseCode.SUCCESS)
BUSY = Command(ResponseCode.SYSTEM_BUSY, remark="later")
LATER = Command(ResponseCode.SYSTEM_BUSY, remark="later", fields={RETRY_AFTER_FIELD: 30})
ODD = Command(ResponseCode.SYSTEM_BUSY, remark="later", fields={RETRY_AFTER_FIELD: "30"})
MISSING = Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
MOVED = Command(ResponseCode.PULL_OFFSET_MOVED)
LOST = TransportError("lost")
LATE = RequestTimeoutError("late")


class Attempts:
    def __init__(self, *results: Command | Exception) -> None:
        self.at_ms: list[int] = []
        self.began_ms = Host.current().clock.monotonic_ms()
        self._results = results

    async def attempt(self) -> Command:
        result = self._results[min(len(self.at_ms), len(self._results) - 1)]
        self.at_ms.append(Host.current().clock.monotonic_ms() - self.began_ms)
        if isinstance(result, Exception):
            raise type(result)(*result.args)
        return result

    async def run(self, timeout_ms: int) -> Command:
        return await patiently(Host.current().clock, self.began_ms + timeout_ms, self.attempt, PULLED)


@pytest.mark.parametrize(
    ("results", "at_ms", "ended"),
    [
        ([GOOD], [0], GOOD),
        ([MOVED], [0], MOVED),
        ([LOST, GOOD], [0, 100], GOOD),
        ([LATE, BUSY, GOOD], [0, 100, 300], GOOD),
        ([BUSY, LATER, BUSY, GOOD], [0, 100, 130, 530], GOOD),
        ([ODD, GOOD], [0, 100], GOOD),
        ([MISSING], [0], TopicNotExistError),
        ([LOST, MISSING], [0, 100], TopicNotExistError),
        ([LocalProtocolError("too long")], [0], LocalProtocolError),
        ([BUSY] * 7 + [GOOD], [0, 100, 300, 700, 1_500, 2_500, 3_500, 4_500], GOOD),
    ],
)
async def test_error_that_may_pass_is_repeated_after_a_pause(
    results: list[Command | Exception], at_ms: list[int], ended: Command | type[LockstepError]
) -> None:
    attempts = Attempts(*results)
    if isinstance(ended, Command):
        assert await attempts.run(60_000) is ended
    else:
        with pytest.raises(ended):
            await attempts.run(60_000)
    assert attempts.at_ms == at_ms
    assert (PAUSE_MS, PAUSE_MS_MAX) == (100, 1_000)


@pytest.mark.parametrize(
    ("result", "timeout_ms", "at_ms"),
    [
        (LOST, 99, [0]),
        (LOST, 100, [0]),
        (LOST, 101, [0, 100]),
        (LOST, 301, [0, 100, 300]),
        (LATER, 30, [0]),
        (LATER, 31, [0, 30]),
    ],
)
async def test_last_error_is_raised_when_no_attempt_can_begin_before_the_deadline(
    result: Command | Exception, timeout_ms: int, at_ms: list[int]
) -> None:
    attempts = Attempts(result)
    with pytest.raises(TransportError if isinstance(result, Exception) else SystemBusyError):
        await attempts.run(timeout_ms)
    assert attempts.at_ms == at_ms


async def test_errors_are_freed_without_the_collector() -> None:
    async def run() -> None:
        for result in (LOST, BUSY, MISSING):
            with pytest.raises(LockstepError):
                await Attempts(result).run(1_000)

    await run()
    with collector_off():
        await run()
        await asyncio.sleep(0)
