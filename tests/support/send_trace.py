"""A hook that records the sends that it sees."""

from typing import Any

from lockstep.client import Sending


class Trace:
    """A hook that records its calls under a name."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self.seen = seen

    def before_send(self, sending: Sending) -> None:
        sending.memory[self] = f"{self.name}-span"
        sending.properties[f"trace-{self.name}"] = sending.memory[self]
        self.seen.append((self.name, "before", sending.method, [message.body for message in sending.messages]))

    def after_send(self, sending: Sending) -> None:
        assert sending.memory[self] == f"{self.name}-span"
        self.seen.append((self.name, "after", [result.queue_offset for result in sending.results], type(sending.error).__name__))
