"""The wiretap's part about what people and classic clients ask: RESET_OFFSETS, layouts, locks without a session."""

from collections.abc import Callable

from lockstep.protocol.codec.plain import unpack_plain
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from sweep.events import ClassicLocked, ClassicUnlocked, ClassicUnlockSent, LayoutSent, ProgressReset, ResetSent
from sweep.history import Event, History, QueueKey
from sweep.wire_lines import Asked, Line, Peer

CLASSIC_LOCK = -41
"""Stands for LOCK_BATCH_MQ of a client without a session."""

Ask = Callable[[Line, Command, float], Asked]


class HandTap:
    """`requested` and `answered` by request code, as the wiretap calls them."""

    def __init__(self, history: History, ask: Ask) -> None:
        self._history = history
        self._ask = ask
        self._clients: dict[int, str] = {}
        """Request → the classic client that it names."""
        self.requested: dict[int, Callable[[Line, Command, float], None]] = {
            RequestCode.RESET_OFFSETS: self._reset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._layout,
            RequestCode.UNLOCK_BATCH_MQ: self._classic_unlock,
        }
        self.answered: dict[int, Callable[[Line, Asked, Command, float, list[Event]], str]] = {
            RequestCode.RESET_OFFSETS: self._reset_answered,
            CLASSIC_LOCK: self._classic_lock_answered,
            RequestCode.UNLOCK_BATCH_MQ: self._classic_unlock_answered,
        }

    # --------------------------------------------------------------------------------------------------------------- people

    def _reset(self, line: Line, command: Command, now: float) -> None:
        body = unpack_plain(command.body)
        asked = self._ask(line, command, now)
        for item in body["queues"]:
            key = QueueKey(body["group"], line.broker, body["topic"], item["queueId"])
            asked.keys.append((key, None))
            self._history.append(ResetSent(now, *_place(line.client), key, item["offset"], asked.request))
        asked.facts = tuple(item["offset"] for item in body["queues"])

    def _reset_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        if command.code == ResponseCode.SUCCESS:
            before = [item["offset"] for item in unpack_plain(command.body)["queues"]]
            for (key, _), offset, was in zip(asked.keys, asked.facts, before, strict=True):
                self._history.append(ProgressReset(now, *_place(line.server), key, offset, was, asked.request))
        return "a reset"

    def _layout(self, line: Line, command: Command, now: float) -> None:
        if command.body:
            body = unpack_plain(command.body)
            counter, gone = body["version"]["counter"], not body["entries"]
            self._history.append(LayoutSent(now, *_place(line.client), line.broker, body["topic"], counter, gone))

    # -------------------------------------------------------------------------------------------------------------- classic

    def classic_lock(self, line: Line, command: Command, now: float) -> None:
        """LOCK_BATCH_MQ whose body is a classic client's."""
        asked = self._named(line, command, now)
        asked.code = CLASSIC_LOCK

    def _named(self, line: Line, command: Command, now: float) -> Asked:
        body = unpack_plain(command.body)
        asked = self._ask(line, command, now)
        self._clients[asked.request] = body["clientId"]
        for ref in body["mqSet"]:
            asked.keys.append((QueueKey(body["consumerGroup"], line.broker, ref["topic"], ref["queueId"]), None))
        return asked

    def _classic_lock_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        client_id = self._clients.pop(asked.request)
        if command.code == ResponseCode.SUCCESS:
            given = {(ref["topic"], ref["queueId"]) for ref in unpack_plain(command.body)["lockOKMQSet"]}
            for key, _ in asked.keys:
                granted = (key.topic, key.queue) in given
                self._history.append(ClassicLocked(now, *_place(line.server), key, client_id, line.client.number, granted, asked.t))
        return ""

    def _classic_unlock(self, line: Line, command: Command, now: float) -> None:
        asked = self._named(line, command, now)
        for key, _ in asked.keys:
            self._history.append(ClassicUnlockSent(now, *_place(line.client), key, self._clients[asked.request]))

    def _classic_unlock_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        client_id = self._clients.pop(asked.request)
        if command.code == ResponseCode.SUCCESS:
            for key, _ in asked.keys:
                self._history.append(ClassicUnlocked(now, *_place(line.server), key, client_id, asked.t))
        return ""


def _place(peer: Peer) -> tuple[str, int]:
    return peer.machine.name, peer.number
