"""Parked keys of one grant: which messages of the main flow are left out, and the replays (ordering.md 15).

A replay reads the messages of one key from the offset at which the key was parked, passes them to the key's lane, and commits its own
progress. It ends at an offset from which on the key is in the main flow again. The broker accepts that offset only if no pull of the main
flow has passed it while the key was left out; the client names only one up to which it has replayed, and which its own pulls of the main
flow have not passed either. While the broker's response is awaited no message of the main flow is passed on: whether it has to be left out
depends on the response.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.pull_loop import ERROR_PAUSE_MS, read_page
from lockstep.client.consumer.calls.runner import HeldQueue
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import KeyResumed
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, ParkRefusedError, RemoteProtocolError, StaleEpochError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply
from lockstep.protocol.headers.pull import PullHeader
from lockstep.protocol.message import MessageExt
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

REFUSED_ENDS_MAX = 3
"""After so many refused ends of a replay, the main flow is not pulled until one is accepted: it can't move on any more."""
PAGE_TIMEOUT_MS = 30_000


@dataclass(slots=True, eq=False)
class Replay:
    """A key that is replayed, or whose messages are dead-lettered."""

    key: str
    position: int
    """The offset from which the key's messages are read next. Everything of the key below it is with the listener, or accepted."""
    drop: bool
    least: int = 0
    """The offset that the broker named: the replay does not end below it."""
    refused: int = 0
    """The number of refused ends."""
    unfinished: int = 0
    """Messages that were passed to the lane and are not accepted."""
    next: int = 0
    """The offset up to which all is accepted."""
    committed: int = 0
    """The offset up to which the broker knows it."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def finished(self, batch: Sequence[MessageExt]) -> None:
        """Count messages as accepted. They are those of the lane, in order."""
        self.next = batch[-1].queue_offset + 1
        self.left_out(len(batch))

    def left_out(self, count: int) -> None:
        """Wait for so many messages no more."""
        self.unfinished -= count
        self.wake.set()


class ParkedKeys:
    """The parked keys of one grant of one queue, as its runner needs them.

    `pass_on` gets the messages of a replayed key, in order, and passes them to the listener. It calls `Replay.finished`, or `parked`.
    `take_back` removes those that wait for a call, and returns their number.
    """

    def __init__(
        self,
        ctx: ConsumerContext,
        queue: HeldQueue,
        grant: Grant,
        pass_on: Callable[[str, Sequence[MessageExt]], None],
        take_back: Callable[[str], int],
    ) -> None:
        self.hidden: dict[str, int | None] = {}
        """Key → the offset below which its messages in the main flow are left out; None: all are."""
        self.replays: dict[str | int | None, Replay] = {}
        """By key. The type is that of the keys of lanes."""
        self.unsure: dict[int, str | None] = {}
        """The offset of a message whose PARK has no response yet → its key. It is not known whether the key is parked."""
        self._ctx = ctx
        self._queue = queue
        self._grant = grant
        self._pass_on = pass_on
        self._take_back = take_back
        self._tasks: dict[Replay, asyncio.Task[None]] = {}
        self._ending = 0
        """The number of requests to end a replay that have no response."""
        self._waits = False
        """Whether a replay waits for the response to a PARK."""

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

    def parked(self, key: str) -> None:
        """Leave the key out of the main flow from now on, and end its replay: it was parked."""
        self.hidden[key] = None
        replay = self.replays.pop(key, None)
        if replay is not None and (task := self._tasks.pop(replay, None)) is not None:
            task.cancel()
            self._let_pull(replay)

    def startable(self, keys: Sequence[ReplayKey]) -> list[ReplayKey]:
        """Return those of the keys that may be replayed or dropped now. A key waits whose PARK has no response yet: the repeated request
        could change what its replay has begun with."""
        unsure = set(self.unsure.values())
        found = [each for each in keys if each.key not in unsure]
        self._waits = self._waits or len(found) < len(keys)
        return found

    def start(self, key: ReplayKey) -> None:
        """Replay or drop this key as well, if that is not under way."""
        replay = self.replays.get(key.key)
        if replay is not None:
            if key.drop and not replay.drop:
                replay.drop = True
                replay.left_out(self._take_back(key.key))
            return
        replay = self.replays[key.key] = Replay(key.key, key.next, key.drop, next=key.next, committed=key.next)
        self.hidden[key.key] = None
        name = f"{self._ctx.group} {self._queue.queue} replay"
        self._tasks[replay] = self._ctx.tasks.spawn(self._run(replay), name)

    def park_begins(self, message: MessageExt) -> None:
        """Note that a PARK is sent for this message."""
        self.unsure[message.queue_offset] = message.sharding_key

    def park_ended(self, message: MessageExt) -> None:
        """Note that the PARK has a response, or is given up."""
        del self.unsure[message.queue_offset]
        if self._waits:
            self._waits = False
            self._queue.session.trigger()

    def stop(self) -> None:
        """End the replays, because the grant has ended. The next owner goes on with them."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self.replays.clear()

    def commit_soon(self) -> None:
        """Send what the replays have accepted now: the queue may be released by the next request, and the next owner begins there."""
        link = self._queue.session.link
        for replay in self.replays.values():
            if link.up and not replay.drop and replay.committed < replay.next:
                link.request(RequestCode.PARK_END, self._end_header(replay)).add_done_callback(_ignore)

    def wake(self) -> None:
        """Let the replays check again whether they may go on."""
        for replay in self._tasks:
            replay.wake.set()

    # --------------------------------------------------------------------------------------------------------------- replay

    async def _run(self, replay: Replay) -> None:
        place = {"group": self._ctx.group, "queue": str(self._queue.queue), "key": replay.key}
        log.info("replay.started", **place, offset=replay.position, drop=replay.drop)
        try:
            while self._grant.alive and not await self._step(replay):
                pass
        except ParkRefusedError as refused:  # such as one that another owner has parked again
            log.warning("replay.refused", **place, error=str(refused))
            self._tasks.pop(replay, None)
            self._take_back(replay.key)
            self.parked(replay.key)
            self._let_pull(replay)
            self._queue.session.trigger()

    async def _step(self, replay: Replay) -> bool:
        """Read and pass on one page of the key's messages, or try to end the replay. Return whether it has ended."""
        await self._until_allowed(replay)
        try:
            if replay.drop:
                return await self._end(replay) or await self._pause()
            page = await self._pull(replay)
            if page is None:
                return False
            found, end = page
            if found:
                await self._replay(replay, found)
            replay.position = replay.next = max(replay.position, end)
            if not found and replay.position >= max(replay.least, self._grant.messages.next_offset):
                return await self._end(replay)
        except StaleEpochError:
            self._queue.handle_stale(self._grant, by="PARK_END")
        except TransportError as error:
            log.debug("replay.interrupted", queue=str(self._queue.queue), key=replay.key, error=str(error))
            await self._pause()
        except BrokerError as error:
            if isinstance(error, ParkRefusedError):
                raise
            log.warning("replay.failed", queue=str(self._queue.queue), key=replay.key, error=str(error))
            await self._pause()
        return False

    async def _until_allowed(self, replay: Replay) -> None:
        """Wait until the queue is held, the broker is connected, and the consumer is not paused. A drop does not wait for a resume."""
        while (
            self._queue.ownership.state is not OwnershipState.HELD
            or (self._ctx.paused and not replay.drop)
            or not self._queue.session.link.up
        ):
            replay.wake.clear()
            await replay.wake.wait()

    async def _pause(self) -> bool:
        await asyncio.sleep(ERROR_PAUSE_MS / 1000)
        return False

    async def _pull(self, replay: Replay) -> tuple[list[MessageExt], int] | None:
        """Return the key's next messages and the offset up to which there are no others; None if the pull was refused."""
        config, queue, offset = self._ctx.config, self._queue.queue, replay.position
        header = PullHeader(
            self._ctx.group,
            queue.topic,
            queue.queue_id,
            offset,
            max_msg_nums=config.pull_count,
            max_msg_bytes=config.pull_bytes,
            epoch=self._grant.token,
            key=replay.key,
        )
        response = await self._queue.session.link.request(RequestCode.PULL_MESSAGE, header, timeout_ms=PAGE_TIMEOUT_MS)
        if response.code == ResponseCode.STALE_EPOCH:
            raise StaleEpochError(response.remark or "")
        try:
            page = read_page(self._queue, response, offset)
        except RemoteProtocolError as error:
            log.error("pull.unreadable", queue=str(queue), offset=offset, error=str(error))
            page = None
        if page is None or page[1] < offset:
            await self._pause()
            return None
        return page

    async def _replay(self, replay: Replay, found: list[MessageExt]) -> None:
        """Pass messages to the listener, and wait until all are accepted. Commit meanwhile what is."""
        replay.unfinished = len(found)
        self._pass_on(replay.key, found)
        while replay.unfinished:
            replay.wake.clear()
            await replay.wake.wait()
            if replay.committed < replay.next and self._queue.session.link.up:
                try:
                    await self._commit(replay)
                except (ParkRefusedError, StaleEpochError):
                    raise
                except (TransportError, BrokerError) as error:  # the progress is committed later: the page is with the listener
                    log.debug("replay.commit_failed", queue=str(self._queue.queue), key=replay.key, error=str(error))

    async def _commit(self, replay: Replay, pulled: int | None = None) -> ParkEndReply:
        header = self._end_header(replay, pulled)
        response = await self._queue.session.link.call(RequestCode.PARK_END, header)
        replay.committed = header.next
        return from_plain(ParkEndReply, response.fields)

    def _end_header(self, replay: Replay, pulled: int | None = None) -> ParkEndHeader:
        queue = self._queue.queue
        return ParkEndHeader(self._ctx.group, queue.topic, queue.queue_id, self._grant.token, replay.key, replay.next, pulled)

    async def _end(self, replay: Replay) -> bool:
        """Ask the broker to end the replay where it is. Return whether it has."""
        self._ending += 1
        try:
            reply = await self._commit_for_certain(replay)
            if reply.upto is None:
                if reply.until is not None:
                    self._note_refusal(replay, reply.until)
                return False
            self._show_from(replay.key, reply.upto)
            self.replays.pop(replay.key, None)
            self._tasks.pop(replay, None)
        finally:
            self._ending -= 1
            self._grant.run_wake.set()
        self._let_pull(replay)
        log.info("key.resumed", group=self._ctx.group, queue=str(self._queue.queue), key=replay.key, offset=reply.upto)
        self._ctx.report(KeyResumed(self._queue.queue, replay.key, reply.upto))
        self._queue.session.trigger()  # the response names the keys that had to wait for this one
        return True

    def _note_refusal(self, replay: Replay, until: int) -> None:
        replay.least = until
        replay.refused += 1
        if replay.refused == REFUSED_ENDS_MAX:
            self._grant.pull_stops += 1

    def _show_from(self, key: str, upto: int) -> None:
        """Pass the key's messages in the main flow on from an offset on. Forget earlier ends that the progress has passed."""
        self.hidden[key] = upto
        passed = self._grant.messages.commit_offset
        self.hidden = {key: end for key, end in self.hidden.items() if end is None or end > passed}

    async def _commit_for_certain(self, replay: Replay) -> ParkEndReply:
        """Repeat the request until there is a response: the broker may have ended the replay although its response was lost.

        Each attempt names the next pull as of then. A broker that was started again does not know what earlier pulls have left out.
        """
        while True:
            try:
                return await self._commit(replay, self._grant.messages.next_offset)
            except (ParkRefusedError, StaleEpochError):
                raise
            except (TransportError, BrokerError) as error:
                log.debug("replay.end_failed", queue=str(self._queue.queue), key=replay.key, error=str(error))
                await self._pause()

    def _let_pull(self, replay: Replay) -> None:
        """Pull the main flow again, if this replay has stopped that."""
        if replay.refused >= REFUSED_ENDS_MAX:
            replay.refused = 0
            self._grant.pull_stops -= 1
            self._grant.pull_wake.set()


def _ignore(future: "asyncio.Future[Command]") -> None:
    """Take the error of a request whose result is not needed."""
    if not future.cancelled():
        future.exception()
