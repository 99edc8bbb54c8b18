"""Parked keys of one grant: which messages of the main flow are left out, and the replays (ordering.md 15). Pure: no loop, no clock, no
connection, no log.

A replay reads the messages of one key from the offset at which the key was parked, passes them to the key's lane, and commits its own
progress. It ends at an offset from which on the key is in the main flow again. The broker accepts that offset only if no pull of the main
flow has passed it while the key was left out; the client names only one up to which it has replayed, and which its own pulls of the main
flow have not passed either. While the broker's response is awaited no message of the main flow is passed on: whether it has to be left out
depends on the response.

    WAITING ──held, connected, not paused──▶ PULLING ──messages──▶ CALLING ◀──▶ COMMITTING
       ▲                                      │  ▲                    │ all are accepted
       │                                      │  └────────────────────┘
       │                                      └─ nothing is left below the next pull of the main flow ─▶ ENDING ─▶ ended
       └── after each page and each refused end; after each pause (PAUSING) on to PULLING or ENDING

A drop goes from WAITING to ENDING at once: the broker copies its messages. The effect of errors:

    of a pull              a pause, then again
    of a commit            it is sent later, with more: the page is with the listener
    of an end              a pause, then the end is requested again until there is a response
    STALE_EPOCH            the grant ends
    PARK_REFUSED           the replay ends: another owner has parked the key again

Inputs are methods. What the shell is to do is appended to `effects`, which it takes after each input.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.client.consumer.calls.parking.effects import (
    Effect,
    EndStaleGrant,
    LetPull,
    Level,
    Log,
    PassOn,
    Pause,
    PullPage,
    RequestLocks,
    Resumed,
    RunSoon,
    SendParkEnd,
    StopPull,
    TakeBack,
    WakeRunner,
)
from lockstep.client.consumer.calls.parking.replay import Replay, ReplayStage
from lockstep.client.consumer.calls.process_queue import ProcessQueue
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.done_ranges import Ranges
from lockstep.protocol.errors import BrokerError, ParkRefusedError, StaleEpochError, TransportError
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.messages.message import MessageExt

REFUSED_ENDS_MAX = 3
"""After so many refused ends of a replay, the main flow is not pulled until one is accepted: it can't move on any more."""
PAUSE_MS = 1_000
"""Pause after an error, and between the requests to end a drop."""

ReplayPage = tuple[Sequence[MessageExt], int]
"""The key's messages that a pull has found, and the offset up to which there are no others."""


class Conditions(NamedTuple):
    """What decides whether a replay may go on now."""

    held: bool
    """The queue is held, and neither drained nor released."""
    paused: bool
    """The consumer is paused. A drop does not wait for a resume."""
    connected: bool
    """The broker is connected."""


class ParkMachine:
    """The parked keys of one grant of one queue. `messages`: those of the main flow."""

    __slots__ = ("_ending", "_messages", "_starts_wait", "effects", "hidden", "replays", "unsure")

    def __init__(self, messages: ProcessQueue) -> None:
        self.effects: list[Effect] = []
        """What the shell is to do, in order. It takes them after each input."""
        self.hidden: dict[str, int | None] = {}
        """Key → the offset below which its messages in the main flow are left out; None: all are."""
        self.replays: dict[str | int | None, Replay] = {}
        """By key; of the type of KeyLane.key, which is compared with it."""
        self.unsure: dict[int, str | None] = {}
        """The offset of a message whose PARK has no response yet → its key. It is not known whether the key is parked."""
        self._messages = messages
        self._ending = 0
        """The number of requests to end a replay that have no response."""
        self._starts_wait = False
        """Whether a replay waits for the response to a PARK."""

    # --------------------------------------------------------------------------------------------------------- the main flow

    @property
    def may_take(self) -> bool:
        """Return whether it is known which messages of the main flow are left out."""
        return not self._ending

    def split(self, messages: list[MessageExt]) -> tuple[list[MessageExt], list[MessageExt]]:
        """Return the messages of the main flow that are passed on, and those that are left out."""
        hidden = self.hidden
        if not hidden:
            return messages, []
        kept: list[MessageExt] = []
        left_out: list[MessageExt] = []
        for message in messages:
            key = message.sharding_key
            upto = hidden.get(key, 0) if key is not None else 0
            (kept if upto is not None and message.queue_offset >= upto else left_out).append(message)
        return kept, left_out

    def done_ranges(self, offset: int) -> Ranges:
        """Return the done ranges above `offset`; none while a PARK has no response. Pulls may have left the key out between two finished
        messages, and a broker that has lost the request would not know why."""
        return () if self.unsure else self._messages.done_ranges(offset)

    def park_begins(self, message: MessageExt) -> None:
        """Note that a PARK is sent for this message."""
        self.unsure[message.queue_offset] = message.sharding_key

    def park_ended(self, message: MessageExt) -> None:
        """Note that the PARK has a response, or is given up."""
        del self.unsure[message.queue_offset]
        if self._starts_wait:
            self._starts_wait = False
            self.effects.append(RequestLocks())

    def parked(self, key: str) -> None:
        """Leave the key out of the main flow from now on, and end its replay: it was parked."""
        self.hidden[key] = None
        replay = self.replays.get(key)
        if replay is not None:
            self._remove(replay)

    # -------------------------------------------------------------------------------------------------------------- replays

    def startable(self, keys: Sequence[ReplayKey]) -> list[ReplayKey]:
        """Return those of the keys that may be replayed or dropped now. A key waits whose PARK has no response yet: the repeated request
        could change what its replay has begun with."""
        unsure = set(self.unsure.values())
        found = [each for each in keys if each.key not in unsure]
        self._starts_wait = self._starts_wait or len(found) < len(keys)
        return found

    def start(self, key: ReplayKey) -> None:
        """Replay or drop this key as well, if that is not under way."""
        replay = self.replays.get(key.key)
        if replay is not None:
            if key.drop and not replay.drop:
                replay.drop = True
                self.effects.append(TakeBack(replay))
            return
        replay = self.replays[key.key] = Replay(key.key, key.next, key.drop, next=key.next, committed=key.next)
        self.hidden[key.key] = None
        self._log("info", "replay.started", replay, offset=key.next, drop=key.drop)
        self._wake(replay)

    def accepted(self, replay: Replay, batch: Sequence[MessageExt]) -> None:
        """Count messages of a replay as accepted. They are those of the lane, in order."""
        replay.next = batch[-1].queue_offset + 1
        self.left_out(replay, len(batch))

    def left_out(self, replay: Replay, count: int) -> None:
        """Wait for so many messages of a replay no more."""
        replay.unfinished -= count
        self._wake(replay)

    def wake(self) -> None:
        """Let the replays check again whether they may go on."""
        for replay in self.replays.values():
            self._wake(replay)

    def commit_soon(self, now: Conditions) -> None:
        """Send what the replays have accepted now: the queue may be released by the next request, and the next owner begins there."""
        if now.connected:
            self.effects += [
                SendParkEnd(replay, replay.next, awaited=False)
                for replay in self.replays.values()
                if not replay.drop and replay.committed < replay.next
            ]

    def goes_on(self, replay: Replay) -> bool:
        """Return whether a replay was not removed: what is reported of another one has no effect."""
        return self.replays.get(replay.key) is replay

    def stop(self) -> None:
        """End the replays, because the grant has ended. The next owner goes on with them."""
        self.replays.clear()

    # ------------------------------------------------------------------------------------------------- from turns and responses

    def run(self, replay: Replay, now: Conditions) -> None:
        """Go on with a replay: in the turn that was requested, or after its pause."""
        replay.due = False
        if not self.goes_on(replay):
            return
        if replay.stage is ReplayStage.ENDING:
            self._request_end(replay)
        elif replay.stage is not ReplayStage.CALLING:
            self._step(replay, now)
        elif replay.committed < replay.next and now.connected:
            replay.stage = ReplayStage.COMMITTING
            self._send(replay)
        elif not replay.unfinished:
            self._pass_page(replay, replay.page_end)
            self._step(replay, now)

    def page_read(self, replay: Replay, page: ReplayPage | None, now: Conditions) -> None:
        """Handle the response to a pull of the key; None: it was refused, or can't be read."""
        if not self.goes_on(replay):
            return
        if page is None or page[1] < replay.position:
            self._pause(replay)
            return
        if replay.drop:  # since the pull: the broker copies its messages
            self._step(replay, now)
            return
        found, end = page
        if found:
            replay.stage, replay.page_end, replay.unfinished = ReplayStage.CALLING, end, len(found)
            self.effects.append(PassOn(replay.key, found))
            return
        self._pass_page(replay, end)
        if replay.position >= max(replay.least, self._messages.next_offset):
            self._begin_end(replay)
        else:
            self._step(replay, now)

    def answered(self, replay: Replay, reply: ParkEndReply, now: Conditions) -> None:
        """Handle the response to an awaited PARK_END."""
        if not self.goes_on(replay):
            return
        replay.committed = replay.asked
        if replay.stage is ReplayStage.COMMITTING:
            self._go_on_with_page(replay, now)
        elif reply.upto is not None:
            self._end(replay, reply.upto)
        else:
            if reply.until is not None:
                self._note_refusal(replay, reply.until)
            self._end_has_response(replay)
            if replay.drop:
                self._pause(replay)
            else:
                self._step(replay, now)

    def failed(self, replay: Replay, error: TransportError | BrokerError, now: Conditions) -> None:
        """Handle that a request of a replay has no response, or is refused."""
        if not self.goes_on(replay):
            return
        if isinstance(error, StaleEpochError):
            self._end_has_response(replay)
            replay.stage = ReplayStage.WAITING
            self.effects.append(EndStaleGrant())
        elif isinstance(error, ParkRefusedError):
            self._refuse(replay, error)
        elif replay.stage is ReplayStage.COMMITTING:
            self._log("debug", "replay.commit_failed", replay, error=str(error))
            self._go_on_with_page(replay, now)
        elif replay.stage is ReplayStage.ENDING:
            self._log("debug", "replay.end_failed", replay, error=str(error))
            self.effects.append(Pause(replay, PAUSE_MS))
        else:
            self._log("debug", "replay.interrupted", replay, error=str(error))
            self._pause(replay)

    def _wake(self, replay: Replay) -> None:
        """Let a replay run in the next turn if it waits for what may have happened."""
        if replay.stage in (ReplayStage.WAITING, ReplayStage.CALLING) and not replay.due and self.goes_on(replay):
            replay.due = True
            self.effects.append(RunSoon(replay))

    def _step(self, replay: Replay, now: Conditions) -> None:
        """Read the next page of the key's messages, or end a drop, if that may be done now."""
        if not now.held or not now.connected or (now.paused and not replay.drop):
            replay.stage = ReplayStage.WAITING
        elif replay.drop:
            self._begin_end(replay)
        else:
            replay.stage = ReplayStage.PULLING
            self.effects.append(PullPage(replay, replay.position))

    def _pause(self, replay: Replay) -> None:
        replay.stage = ReplayStage.PAUSING
        self.effects.append(Pause(replay, PAUSE_MS))

    def _go_on_with_page(self, replay: Replay, now: Conditions) -> None:
        """Wait for the messages of the page that are not accepted, or go on after it."""
        replay.stage = ReplayStage.CALLING
        if not replay.unfinished:
            self._pass_page(replay, replay.page_end)
            self._step(replay, now)

    def _pass_page(self, replay: Replay, end: int) -> None:
        replay.position = replay.next = max(replay.position, end)

    # ------------------------------------------------------------------------------------------------------------- PARK_END

    def _send(self, replay: Replay, pulled: int | None = None) -> None:
        replay.asked = replay.next
        self.effects.append(SendParkEnd(replay, replay.next, pulled))

    def _begin_end(self, replay: Replay) -> None:
        """Ask the broker to end the replay where it is."""
        self._ending += 1
        replay.stage = ReplayStage.ENDING
        self._request_end(replay)

    def _request_end(self, replay: Replay) -> None:
        """Request the end. That is repeated until there is a response: the broker may have ended the replay although its response was lost.

        Each request names the next pull as of then. A broker that was started again does not know what earlier pulls have left out.
        """
        self._send(replay, self._messages.next_offset)

    def _end_has_response(self, replay: Replay) -> None:
        if replay.stage is ReplayStage.ENDING:
            self._ending -= 1
            self.effects.append(WakeRunner())

    def _end(self, replay: Replay, upto: int) -> None:
        """Handle that the key is in the main flow again."""
        self._show_from(replay.key, upto)
        self._remove(replay)
        self._log("info", "key.resumed", replay, offset=upto)
        self.effects += [Resumed(replay.key, upto), RequestLocks()]

    def _show_from(self, key: str, upto: int) -> None:
        """Pass the key's messages in the main flow on from an offset on. Forget earlier ends that the progress has passed."""
        self.hidden[key] = upto
        passed = self._messages.commit_offset
        self.hidden = {key: end for key, end in self.hidden.items() if end is None or end > passed}

    def _note_refusal(self, replay: Replay, until: int) -> None:
        replay.least = until
        replay.refused += 1
        if replay.refused == REFUSED_ENDS_MAX:
            self.effects.append(StopPull())

    def _refuse(self, replay: Replay, refused: ParkRefusedError) -> None:
        """Handle that the key is not replayed, such as one that another owner has parked again."""
        self._log("warning", "replay.refused", replay, error=str(refused))
        self.effects.append(TakeBack(replay))
        self.hidden[replay.key] = None
        self._remove(replay)
        self.effects.append(RequestLocks())

    def _remove(self, replay: Replay) -> None:
        """Forget a replay. Pull the main flow again, if the replay has stopped that."""
        self._end_has_response(replay)
        del self.replays[replay.key]
        if replay.refused >= REFUSED_ENDS_MAX:
            self.effects.append(LetPull())

    def _log(self, level: Level, event: str, replay: Replay, **facts: object) -> None:
        self.effects.append(Log(level, event, replay.key, facts))
