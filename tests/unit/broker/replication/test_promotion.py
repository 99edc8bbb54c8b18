"""Which replicas an operator may promote, with and without `--force`."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from lockstep.broker.replication import promotion
from lockstep.broker.replication.copy_identity import Role
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY

MASTER, OWN, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
ANSWERS = "two masters of one log"


def answer(role: Role, term: int, end: int = 0) -> ReplicaStatus:
    return ReplicaStatus("broker-a", "C", "store", role, "f" * 16, term, end, 0, 0)


def own_status(facts: dict[str, Any]) -> ReplicaStatus:
    """Return the status of a replica of term 7 whose log ends at 100, and which knows another one."""
    own = replace(answer(Role.REPLICA, 7, 100), member="a" * 16, master=MASTER, known={"b" * 16: OTHER})
    return replace(own, complete=facts.get("complete", False), may_have_forgotten=facts.get("forgot", False))


@pytest.mark.parametrize(
    ("name", "facts", "answers", "refused", "forced"),
    [
        ("it has everything, as far as it knows", {}, {}, "", ""),
        ("its master answers", {"complete": True}, {MASTER: answer(Role.MASTER, 7)}, ANSWERS, ANSWERS),
        ("its old master answers, and it has been promoted since", {}, {MASTER: answer(Role.MASTER, 6)}, "", ""),
        ("its old master is a replica by now", {}, {MASTER: answer(Role.REPLICA, 7)}, "", ""),
        ("its machine has crashed", {"forgot": True}, {}, "may have lost messages", ""),
        ("it was left out of the set", {"in_set": False}, {}, "was not in the set", ""),
        ("its master has stopped in order", {"complete": True, "in_set": False}, {}, "", ""),
        ("another one has more", {}, {OTHER: answer(Role.REPLICA, 7, 101)}, "has more", ""),
        ("another one has a later term", {}, {OTHER: answer(Role.REPLICA, 8, 1)}, "has more", ""),
        ("another one has as much", {}, {OTHER: answer(Role.REPLICA, 7, 100)}, "", ""),
    ],
)
async def test_promotion_that_may_lose_something_is_refused(
    name: str, facts: dict[str, Any], answers: dict[str, ReplicaStatus], refused: str, forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(_host: object, address: str, _security: object) -> ReplicaStatus | None:
        await asyncio.sleep(0)
        return answers.get(address)

    monkeypatch.setattr(promotion, "ask_status", ask)
    for force, expected in ((False, refused), (True, forced)):
        check = promotion.check_promotion(
            Host.current(), own_status(facts), OWN, lambda: facts.get("in_set", True), NO_SECURITY, force=force
        )
        with pytest.raises(ServiceNotAvailableError, match=expected) if expected else nullcontext():
            await check
