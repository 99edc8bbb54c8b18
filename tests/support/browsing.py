"""A browser's tabs without a browser: each asks for the parts of its page as the dashboard's script does."""

import asyncio
import time
from dataclasses import dataclass, field

from support.http import raw_response


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    took_ms: float
    size: int
    """Bytes of the body."""


@dataclass
class Tab:
    """An open page. `parts`: the name of each part, and after how many seconds it is asked for again."""

    address: str
    path: str
    parts: dict[str, float]
    answers: list[Answered] = field(default_factory=list)
    """All answers, that of the whole page first."""
    _tags: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Load the page, then ask for its parts, one at a time, until the task is cancelled."""
        await self._ask(None)
        due_s = {part: time.monotonic() + every_s for part, every_s in self.parts.items()}
        while True:
            part = min(due_s, key=lambda each: due_s[each])
            await asyncio.sleep(max(0.0, due_s[part] - time.monotonic()))
            await self._ask(part)
            due_s[part] = time.monotonic() + self.parts[part]

    async def _ask(self, part: str | None) -> None:
        wanted = "" if part is None else f"X-Part: {part}\r\n"
        if part in self._tags:
            wanted += f"If-None-Match: {self._tags[part]}\r\n"
        began_s = time.monotonic()
        request = f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\n{wanted}Connection: close\r\n\r\n"
        status, headers, body = await raw_response(self.address, request.encode())
        self.answers.append(Answered(status, 1_000 * (time.monotonic() - began_s), len(body)))
        if part is not None:
            self._tags[part] = headers["etag"]
