"""A master and a replica of which a test writes the files, watched as in a universe."""

import json

from lockstep.protocol.codes import ResponseCode
from lockstep.testing.simulation import SimFiles
from support.histories import LOG
from sweep.copies_watch import IDENTITY, CopiesWatch
from sweep.events.replicas import MasterOpened
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.history import Event

BROKER = LOG.broker
RECORD = (12).to_bytes(4, "big") + b"12345678"


class Pair:
    """A master on machine B and a replica on machine R, of which a test writes the files."""

    def __init__(self, *, sync: bool = False) -> None:
        self.disks = {name: SimFiles(name) for name in "BR"}
        self.events: list[Event] = []
        self.watch = CopiesWatch({BROKER: ["B", "R"]}, self.disks.__getitem__, 1 << 10, self.events.append, sync=sync)
        for disk in self.disks.values():
            disk.makedirs("/store/commitlog")
            disk.makedirs("/store/lockstep")
        self.identity("B", role="master", member="b", members={"r": "R:1"})
        self.identity("R", role="replica", member="r")

    def identity(self, machine: str, **content: object) -> None:
        disk = self.disks[machine]
        disk.names.pop(IDENTITY, None)
        disk.open(IDENTITY, create=True).pwritev([json.dumps(content).encode()], 0)

    def write(self, machine: str, at: int, data: bytes, *, synced: bool = False) -> None:
        disk = self.disks[machine]
        file = disk.open("/store/commitlog/00000000000000000000", create=True)
        file.pwritev([data], at)
        if synced:
            file.sync()
            disk.sync_directory("/store/commitlog")

    def acknowledge(self, position: int, *, durable: bool | None = None, request: int = 1) -> list[Event]:
        place = (LOG, None, 21, request, 0.0)
        self.watch.noted(FrameWritten(1.0, "P", 21, *place, (b"",), None, None, (0, 0, 0), durable))
        self.watch.noted(FrameResponded(1.0, "B", 1, *place, int(ResponseCode.SUCCESS), 0, position))
        found, self.events[:] = list(self.events), []
        return found

    def opens(self, machine: str) -> MasterOpened:
        self.watch.opened(BROKER, 2, (9.0, machine, 2))
        event = self.events.pop()
        assert isinstance(event, MasterOpened)
        return event

    def promote(self) -> MasterOpened:
        self.watch.promoting(BROKER, "R", force=False, at=(8.0, "A", 31))
        return self.opens("R")
