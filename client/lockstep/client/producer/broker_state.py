"""One broker as the queues of one topic see it. Pure."""

from lockstep.client.producer.backoff import ResponseTimes


class BrokerState:
    """Whether the broker is connected, how often it was, and how fast it responds."""

    __slots__ = ("connects", "name", "response_times", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.connects = 0
        self.response_times = ResponseTimes()
