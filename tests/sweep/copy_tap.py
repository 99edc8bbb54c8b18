"""The wiretap's part about concurrent groups, delayed sends and dead letters: requests after which a broker stores something by itself."""

from collections.abc import Callable

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.properties import DELAY, split_properties
from sweep.compressed import plain
from sweep.events import (
    DeadLetterAnswered,
    DeadLetterSent,
    DelayedAnswered,
    DelayedWritten,
    ProgressAnswered,
    SendBackAnswered,
    SentBack,
)
from sweep.history import Event, History, QueueKey
from sweep.wire_lines import Asked, Line, Peer

DELAYED = -1
"""Stands for SEND_MESSAGE where the message has a delay level."""

Ask = Callable[[Line, Command, float], Asked]


class CopyTap:
    """`requested` and `answered` by request code, as the wiretap calls them."""

    def __init__(self, history: History, ask: Ask) -> None:
        self._history = history
        self._ask = ask
        self.requested: dict[int, Callable[[Line, Command, float], None]] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.DEAD_LETTER: self._dead_letter,
        }
        self.answered: dict[int, Callable[[Line, Asked, Command, float, list[Event]], str]] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_answered,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back_answered,
            RequestCode.DEAD_LETTER: self._dead_letter_answered,
            DELAYED: self._delayed_answered,
        }

    # ------------------------------------------------------------------------------------------------------------- requests

    def delayed(self, line: Line, command: Command, now: float) -> bool:
        """A SEND_MESSAGE whose message waits; False: it does not."""
        fields = command.fields
        level = split_properties(fields.get("properties", "")).get(DELAY)
        if level is None:
            return False
        asked = self._ask(line, command, now)
        asked.code = DELAYED
        key = QueueKey("", line.broker, fields["topic"], fields["queueId"])
        asked.keys.append((key, None))
        body = plain(bytes(command.body), fields.get("sysFlag", 0))
        self._history.append(DelayedWritten(now, *_place(line.client), key, body, int(level), asked.request))
        return True

    def _query(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        if fields.get("where") is not None:
            asked = self._ask(line, command, now)
            asked.keys.append((QueueKey(fields["consumerGroup"], line.broker, fields["topic"], fields["queueId"]), None))

    def _send_back(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        asked = self._ask(line, command, now)
        group, position, level = fields["group"], fields["offset"], fields.get("delayLevel", 0)
        asked.keys.append((QueueKey(group, line.broker, "", 0), None))
        limit, where = fields.get("maxReconsumeTimes"), _place(line.client)
        self._history.append(SentBack(now, *where, group, line.broker, position, level, limit, asked.request))

    def _dead_letter(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        asked = self._ask(line, command, now)
        key = QueueKey(fields["consumerGroup"], line.broker, fields["topic"], fields["queueId"])
        epoch, offset, advance = fields["epoch"], fields["offset"], fields.get("advance", True)
        asked.keys.append((key, epoch))
        asked.facts = (offset, int(advance))
        attempts = fields.get("attempts", 0)
        self._history.append(DeadLetterSent(now, *_place(line.client), key, epoch, offset, attempts, advance, asked.request))

    # -------------------------------------------------------------------------------------------------------------- answers

    def _delayed_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, _),) = asked.keys
        self._history.append(DelayedAnswered(now, *_place(line.server), key, command.code, asked.request))
        return "a delayed send" if command.code == ResponseCode.SUCCESS else ""

    def _query_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, _),) = asked.keys
        generation = command.fields.get("generation")
        if command.code == ResponseCode.SUCCESS and generation is not None:
            here, client, offset = _place(line.server), line.client.number, command.fields["offset"]
            self._history.append(ProgressAnswered(now, *here, key, generation, offset, line.session, client, asked.t))
        return "QUERY"

    def _send_back_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, _),) = asked.keys
        here, client = _place(line.server), line.client.number
        self._history.append(SendBackAnswered(now, *here, key.group, line.broker, command.code, asked.request, client))
        return "SEND_MSG_BACK" if command.code == ResponseCode.SUCCESS else ""

    def _dead_letter_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, epoch),) = asked.keys
        offset, advance = asked.facts
        assert epoch is not None
        here, client = _place(line.server), line.client.number
        self._history.append(DeadLetterAnswered(now, *here, key, epoch, offset, bool(advance), command.code, asked.request, client))
        return "DEAD_LETTER" if command.code == ResponseCode.SUCCESS else ""


def _place(peer: Peer) -> tuple[str, int]:
    return peer.machine.name, peer.number
