"""Clients that are connected to a machine with half messages, and the questions to them."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from lockstep.broker.classic.connections import ClassicConnection, ClientConnections
from lockstep.broker.processors.rooms.check_back import CheckBack
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.command import MSGPACK
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from support.timer_machine import TimerMachine

CHECK_MS = 6_000
SENDER = "10.0.0.7@1#a"


class Asked:
    """An endpoint that keeps the questions."""

    codec = MSGPACK
    closed = False
    unsent_bytes = 0

    def __init__(self, number: int) -> None:
        self.id = number
        self.got: list[tuple[Mapping[str, Any], bytes]] = []

    def oneway(self, code: int, fields: Mapping[str, Any], body: bytes) -> None:
        assert code == 39
        self.got.append((fields, body))

    @property
    def offsets(self) -> list[int]:
        return [fields["tranStateTableOffset"] for fields, _ in self.got]


class NoRights(RequestUser):
    name = "guest"

    def may(self, *_: object) -> bool:
        return False


class Bench:
    """A broker with clients that are connected, and the questions to them."""

    def __init__(self, machine: TimerMachine) -> None:
        self.machine = machine
        self.returning: set[str] = set()
        state = SimpleNamespace(sessions=SimpleNamespace(may_return=lambda client_id, _: client_id in self.returning))
        self.connections = ClientConnections(cast(Any, SimpleNamespace(state=state)))
        self.terms = (CHECK_MS, 24.0)
        self.attach()

    def attach(self) -> None:
        """Ask about the half messages of the broker that runs now, as its start does."""
        facts = self.machine.host, self.machine.store, self.machine.state.transactions
        self.checks = CheckBack(*facts, self.connections, lambda: self.terms, self.machine.topics.deleted_since)

    def connect(self, client_id: str, *, native: bool = True, checks: bool = True, group: str = "shop", **given: Any) -> Asked:
        endpoint = Asked(len(self.connections._clients) + 1)
        facts = frozenset({group} if checks and native else ()), bool(given.get("is_sender"))
        client = ClassicConnection(cast(Any, endpoint), client_id, native, "PYTHON", 1, 0, (group,))
        client = replace(client, checks=facts[0], is_sender=facts[1], rights=given.get("rights", ANYBODY))
        self.connections._clients[endpoint.id] = client
        self.connections._by_id.setdefault(client_id, {})[endpoint.id] = None
        return endpoint

    def leave(self, endpoint: Asked) -> None:
        self.connections._remove(endpoint.id)

    async def half(self, body: bytes = b"m", client_id: str = SENDER, **how: Any) -> HalfMessage:
        return await self.machine.half(body, client_id=client_id, **how)

    async def after(self, ms: int) -> None:
        self.machine.clock.now_ms += ms
        await self.checks.look()
