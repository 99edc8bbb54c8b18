"""Runs the work of commands in the loop of a test."""

from collections.abc import Coroutine
from typing import Any

import pytest

from lockstep.protocol.errors import LockstepError
from support.ended_command import Ended, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the work of a command, and returns what it has printed and why it has failed."""

    async def ended(work: Coroutine[Any, Any, None]) -> Ended:
        error = ""
        capsys.readouterr()
        try:
            await work
        except LockstepError as failure:
            error = str(failure)
        printed = capsys.readouterr()
        return Ended(printed.out, error, printed.err)

    return ended
