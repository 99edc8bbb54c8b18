"""What the work of a command has printed, and why it has failed."""

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple


class Ended(NamedTuple):
    out: str
    error: str
    told: str
    """What was printed on stderr."""

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def bodies(self) -> list[str]:
        return [each["body"] for each in self.json["messages"]]


Run = Callable[[Coroutine[Any, Any, None]], Awaitable[Ended]]
