"""The broker sessions of one instance, one per broker."""

from collections.abc import Callable

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.grants.broker_session import BrokerSession
from lockstep.client.consumer.grants.lease_timers import ProofOfLife
from lockstep.client.consumer.interfaces import AbstractMembership
from lockstep.runtime.host import Host


class BrokerSessions:
    """The broker sessions of one instance, shared by its consumers, and the groups they serve."""

    def __init__(self, host: Host, instance_closed: Callable[[], bool]) -> None:
        """`instance_closed` returns whether the instance, and with it the connections, is closed."""
        self._host = host
        self._instance_closed = instance_closed
        self._sessions: dict[str, BrokerSession] = {}
        self._groups: dict[str, AbstractMembership] = {}

    def enter(self, group: str, membership: AbstractMembership) -> None:
        self._groups[group] = membership
        for session in self._sessions.values():
            session.stop_retiring()

    def leave(self, group: str) -> None:
        """Remove the group's queues. After the last group the sessions end; one that still holds queues releases them at the broker
        first."""
        self._groups.pop(group, None)
        for name, session in list(self._sessions.items()):
            held = session.remove_group(group)
            if self._groups:
                continue
            if held:
                session.retire(self._instance_closed)
            elif not session.retiring:
                session.close()
                del self._sessions[name]

    def proof_of(self, broker_name: str) -> ProofOfLife | None:
        session = self._sessions.get(broker_name)
        return None if session is None else session.proof

    def of(self, link: BrokerLink) -> BrokerSession:
        session = self._sessions.get(link.name)
        if session is None or session.closed:
            session = self._sessions[link.name] = BrokerSession(link, self._host, self._groups)
        return session
