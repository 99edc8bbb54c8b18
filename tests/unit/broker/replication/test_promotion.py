"""Which replicas an operator may promote, with and without `--force`."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker import running_replica
from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.running_replica import RunningReplica
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.security.client_security import NO_SECURITY

MASTER, OWN, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
ANSWERS = "two masters of one log"


def answer(role: Role, term: int, end: int = 0) -> ReplicaStatus:
    return ReplicaStatus("broker-a", "C", "store", role, "f" * 16, term, end, 0, 0)


def replica_with(facts: dict[str, Any]) -> RunningReplica:
    """Return a replica of term 7 whose log ends at 100, which is in the set unless `facts` say something else."""
    replica = RunningReplica.__new__(RunningReplica)
    replica._config, replica._peers = BrokerConfig(name="broker-a", replica_of=MASTER), NO_SECURITY
    replica._copy_identity = CopyIdentity("a" * 16, Role.REPLICA, **{"in_set": True, **facts})
    replica.standing = replica._following = replica._damage = replica._office = None
    replica._is_blank, replica.addresses, replica._host = False, {INTERNAL_LISTENER: OWN}, SimpleNamespace()  # type: ignore[assignment]
    state = SimpleNamespace(coordination=SimpleNamespace(state=SimpleNamespace(term=7)), replicas={"a" * 16: OWN, "b" * 16: OTHER})
    replica._store, replica._state = SimpleNamespace(store_id="store", log_bounds=(0, 100)), state  # type: ignore[assignment]
    return replica


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

    monkeypatch.setattr(running_replica, "ask_status", ask)
    for force, expected in ((False, refused), (True, forced)):
        replica = replica_with(facts)
        assert replica._state is not None
        if not expected:
            await replica._check_promotion(replica._state, force)
        else:
            with pytest.raises(ServiceNotAvailableError, match=expected):
                await replica._check_promotion(replica._state, force)
