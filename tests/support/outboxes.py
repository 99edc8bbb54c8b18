"""An outbox in an SQLite file, whose relays can be killed at each statement."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lockstep.client import Message
from lockstep.client.outbox import Outbox, Relay
from support.fake_broker import FakeBroker, FakeCluster, Sent, refuse, take


class KilledError(BaseException):
    """The process of a relay has ended."""


class Fuse:
    """Kills a relay when it reaches the point with this number, and at each later one. The points are before and after each statement, and
    before and after each commit."""

    def __init__(self, point: int | None = None) -> None:
        self._left = point

    @property
    def blown(self) -> bool:
        return self._left == 0

    def reach(self) -> None:
        if self._left:
            self._left -= 1
        if self._left == 0:
            raise KilledError


class Connection(sqlite3.Connection):
    fuse = Fuse()

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.fuse.reach()
        result = super().execute(*arguments)
        try:
            self.fuse.reach()
        except KilledError:
            result.close()  # the error may hold it, and with it a lock that no dead process has
            raise
        return result


class Shop:
    """A program that adds messages, and its relays."""

    def __init__(self, place: Path, cluster: FakeCluster) -> None:
        self.outbox = Outbox()
        self.cluster = cluster
        self.place = str(place)
        self.added: list[tuple[str | None, bytes]] = []
        """Key and body of each message, in the order of the commits."""
        with closing(sqlite3.connect(self.place)) as db, db:
            for statement in self.outbox.schema("sqlite"):
                db.execute(statement)

    @contextmanager
    def connect(self, fuse: Fuse | None = None) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.place, timeout=0, factory=Connection)
        try:
            db.fuse = fuse = fuse or Fuse()
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            fuse.reach()
            db.commit()
            fuse.reach()
        finally:
            db.close()

    def add(self, *pairs: tuple[str | None, bytes], topic: str = "t") -> None:
        with self.connect() as db:
            for key, body in pairs:
                self.outbox.add(db, Message(topic, body, sharding_key=key))
        self.added += pairs

    def relay(self, fuse: Fuse | None = None, **settings: Any) -> Relay:
        return Relay(self.outbox, lambda: self.connect(fuse), nameserver=self.cluster.nameserver, **settings)

    @property
    def left(self) -> int:
        """Return the number of messages that are neither stored nor refused."""
        with self.connect() as db:
            count: int = db.execute("SELECT COUNT(*) FROM lockstep_outbox WHERE refused IS NULL").fetchone()[0]
        return count

    async def empty(self, *, within_s: float = 300) -> None:
        """Wait until everything is stored or refused."""
        for _ in range(int(within_s * 10)):
            if not self.left:
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.left} messages are left")

    def problems(self, *, refused: Sequence[bytes] = ()) -> list[str]:
        """Return the violations of: each message is stored once, and those of a key in the order in which they were added."""
        queues = [bodies for broker in self.cluster.brokers.values() for bodies in broker.bodies.values()]
        stored = sorted(body for bodies in queues for body in bodies)
        found = [f"{len(stored)} stored"] if stored != sorted(body for _, body in self.added if body not in refused) else []
        for key in {key for key, _ in self.added if key is not None}:
            own = [body for each, body in self.added if each == key and body not in refused]
            places = [bodies for bodies in queues if set(bodies) & set(own)]
            if len(places) == 1 and [body for body in places[0] if body in own] != own:
                found.append(f"order of {key}: {places[0]}")
        return found


def refuse_bodies(error: Any, *bodies: bytes) -> Any:
    """Return a step that refuses the frames with one of these bodies."""

    def step(broker: FakeBroker, sent: Sent) -> None:
        (refuse(error) if set(bodies) & set(sent.bodies) else take)(broker, sent)

    return step
