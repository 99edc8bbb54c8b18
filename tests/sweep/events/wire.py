"""What the events of the connections to brokers have in common. wire_recorder.py writes them.

A `…Sent` or `…Written` event happens when the client writes the request, a `…Responded` event when the broker writes the response, and a
`…Received` event when the response has reached the client. A request with several queues has one event for each of them.
"""

from dataclasses import dataclass

from sweep.history import Event, QueueKey


@dataclass(frozen=True, slots=True)
class AtBroker(Event):
    """An event of a client's session at a broker."""

    broker: str
    session: str | None


@dataclass(frozen=True, slots=True)
class OfRequest(Event):
    """A request about one queue, or the response to it."""

    queue: QueueKey
    session: str | None
    client: int
    """Process of the client."""
    request: int
    """Unique in the run. All queues of one request have the same."""
    request_t: float
    """When the request was written."""
