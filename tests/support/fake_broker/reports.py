"""The fake broker's responses to commands: group statuses, queue bounds and messages by position, as the test sets them; settings."""

import functools
from dataclasses import dataclass, field
from typing import Any

from lockstep.broker.config import BrokerConfig
from lockstep.broker.running_settings import RunningSettings
from lockstep.protocol.bodies import GroupStatus, GroupStatusReply, GroupSummary, OffsetRange, ParkControlReply, TopicOffsets
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import QueryNotFoundError, SubscriptionGroupNotExistError, TopicNotExistError
from lockstep.protocol.headers.clients import DeleteGroupHeader
from lockstep.runtime.connections.endpoint import Endpoint
from support.fake_broker.wire import Wire


@dataclass
class Reports(Wire):
    """Responds to the requests of commands."""

    groups: dict[str, GroupStatus] = field(default_factory=dict)
    offsets: dict[str, list[OffsetRange]] = field(default_factory=dict)
    by_position: dict[int, bytes] = field(default_factory=dict)
    """Physical offset → record."""

    @functools.cached_property
    def settings(self) -> RunningSettings:
        """The broker's settings, the real ones. A change has no effect."""
        return RunningSettings(BrokerConfig(name=self.name), {}, lambda _: None)

    def response(self, command: Command, endpoint: Endpoint, body: Any) -> None:
        match command.code:
            case RequestCode.GROUP_STATUS:
                reply = command.reply(body=encode_body(self._status(body.consumer_group)))
            case RequestCode.PARK_CONTROL:
                reply = command.reply(body=encode_body(ParkControlReply(())))
            case RequestCode.DELETE_SUBSCRIPTIONGROUP:
                self._delete(body)
                reply = command.reply()
            case RequestCode.GET_BROKER_CONFIG:
                reply = command.reply(body=encode_body(self.settings.report()))
            case RequestCode.UPDATE_BROKER_CONFIG:
                reply = command.reply(body=encode_body(self.settings.change(body.values, endpoint.peer)))
            case RequestCode.TOPIC_OFFSETS if body.topic in self.offsets:
                reply = command.reply(body=encode_body(TopicOffsets(tuple(self.offsets[body.topic]))))
            case RequestCode.TOPIC_OFFSETS:
                raise TopicNotExistError(f"no topic {body.topic}")
            case RequestCode.VIEW_MESSAGE_BY_ID if body.offset in self.by_position:
                reply = command.reply(body=self.by_position[body.offset])
            case RequestCode.VIEW_MESSAGE_BY_ID:
                raise QueryNotFoundError(f"no message at {body.offset}")
            case _:
                super().response(command, endpoint, body)
                return
        endpoint.send(reply)

    def _status(self, group: str | None) -> GroupStatusReply:
        if group is None:
            return GroupStatusReply(tuple(self.groups), summaries=tuple(map(_summary, self.groups.values())))
        if group not in self.groups:
            raise SubscriptionGroupNotExistError(f"group {group} is unknown")
        return GroupStatusReply((), self.groups[group])

    def _delete(self, header: DeleteGroupHeader) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert header.clean_offset
        self.groups.pop(header.group, None)


def _summary(status: GroupStatus) -> GroupSummary:
    contract = status.contract
    ordered = None if contract is None else contract.ordered
    broadcasting = None if contract is None else contract.broadcasting
    return GroupSummary(status.group, ordered, broadcasting, len(status.members), 0, status.settings is not None)
