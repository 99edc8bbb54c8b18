"""The result of a request. RocketMQ: the message that DefaultMQProducer.request returns."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """What a consumer has replied to a request."""

    body: bytes
    properties: Mapping[str, str]
    """The properties that the replier has set; of a replier of RocketMQ also TAGS and KEYS."""
