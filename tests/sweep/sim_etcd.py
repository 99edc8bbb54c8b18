"""An etcd of several members on simulated machines, which speaks the two paths of the JSON gateway that registers use.

It has one linearizable map, which outlives its processes, and which each member that is reached serves. Its faults are answers that do not
say what happened, and changes that come late.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, cast

import h11

from lockstep.testing.simulated import SimMember
from lockstep.testing.simulation import SimLoop

PORT = 2379
LATE_S = 10.0
TIMED_OUT = "etcdserver: request timed out"


class EtcdFault(Enum):
    """What one request meets. Each is answered by 503."""

    NOT_DONE = "not carried out"
    DONE = "carried out"
    LATE = "carried out up to LATE_S later"


@dataclass(frozen=True, slots=True)
class EtcdWrite:
    """One change of a key."""

    t: float
    key: str
    revision: int
    before: int
    """The revision of the value that it replaced, 0 for none."""
    value: bytes


class SimEtcd:
    """The map, and the members that serve it. Start, kill and stop those as any other program."""

    def __init__(self, loop: SimLoop, addresses: Sequence[str]) -> None:
        self.writes: list[EtcdWrite] = []
        """All changes since the beginning, in order."""
        self.fault: Callable[[str], EtcdFault | None] | None = None
        """Called for each request with its path, if there is one."""
        self.on_write: Callable[[EtcdWrite], None] = lambda write: None
        """Called after each change."""
        self.reached: Callable[[str], None] = lambda name: None
        """Called with what has become of a change whose answer does not say it."""
        self.members = {address: SimMember(loop, f"etcd {address}", loop.machine(address), self._serve) for address in addresses}
        self._loop = loop
        self._random = Random(f"{loop.seed}/etcd")
        self._revision = 1
        self._rows: dict[str, EtcdWrite] = {}

    @property
    def url(self) -> str:
        """Return the URL of a register in it."""
        return f"etcd://{','.join(f'{address}:{PORT}' for address in self.members)}"

    def set_back(self, revision: int) -> None:
        """Restore the map as it was at a revision, as from a backup."""
        self._rows = {write.key: write for write in self.writes if write.revision <= revision}
        self._revision = revision

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), self._loop.current.machine.name, PORT)
        await server.serve_forever()
        return 0

    # -------------------------------------------------------------------------------------------------------------- requests

    def answer(self, path: str, body: bytes) -> tuple[int, Mapping[str, Any]]:
        """Return status and content of the answer to a request."""
        asked = json.loads(body)
        carry_out = {"/v3/kv/range": self._range, "/v3/kv/txn": self._txn}.get(path)
        if carry_out is None:
            return 404, {"message": "Not Found"}
        fault = None if self.fault is None else self.fault(path)
        if fault is None:
            return 200, {"header": {"revision": str(self._revision)}, **carry_out(asked)}
        if fault is EtcdFault.DONE:
            self._carry_out_untold(path, asked, "at once")
        elif fault is EtcdFault.LATE:
            self._loop.at(self._loop.now + self._random.uniform(0, LATE_S), self._carry_out_untold, path, asked, "late")
        elif path.endswith("txn"):
            self.reached("swap without an answer: not carried out")
        return 503, {"error": TIMED_OUT, "code": 14, "message": TIMED_OUT}

    def _carry_out_untold(self, path: str, asked: Mapping[str, Any], when: str) -> None:
        if path.endswith("txn"):
            self.reached(f"swap without an answer: {'carried out' if self._txn(asked) else 'refused'} {when}")

    def _range(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        row = self._rows.get(_text(asked["key"]))
        if row is None:
            return {}
        return {"kvs": [{"key": asked["key"], "mod_revision": str(row.revision), "value": b64encode(row.value).decode()}], "count": "1"}

    def _txn(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        compare, put = asked["compare"][0], asked["success"][0]["request_put"]
        assert (compare["target"], compare["result"], compare["key"]) == ("MOD", "EQUAL", put["key"]), asked
        key = _text(put["key"])
        found = self._rows.get(key)
        before = 0 if found is None else found.revision
        if before != int(compare["mod_revision"]):
            return {}
        self._revision += 1
        write = EtcdWrite(self._loop.now, key, self._revision, before, b64decode(put["value"]))
        self._rows[key] = write
        self.writes.append(write)
        self.on_write(write)
        return {"succeeded": True}


def _text(data: str) -> str:
    return b64decode(data).decode()


class _Connection(asyncio.Protocol):
    """Serves the requests of one connection, one after the other."""

    def __init__(self, etcd: SimEtcd) -> None:
        self._etcd = etcd
        self._http = h11.Connection(h11.SERVER)
        self._path = ""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._path, self._body = event.target.decode(), b""
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._respond(*self._etcd.answer(self._path, self._body))
                self._http.start_next_cycle()
            else:
                return

    def _respond(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        events = h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
