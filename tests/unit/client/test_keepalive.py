"""A client that has nothing to say keeps its sessions at the brokers."""

import pytest

from lockstep.client import Message, Producer
from lockstep.client.instance import Instance
from lockstep.testing import TestCluster, simulate


@pytest.mark.parametrize("session_timeout_ms", [1_000, 20_000])
def test_an_idle_client_keeps_its_connections_however_short_sessions_are(session_timeout_ms: int) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, session_timeout_ms=session_timeout_ms, disconnect_grace_ms=1_000) as cluster:
            await cluster.create_topic("t")
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("t", b"1"))
                await cluster.advance(minutes=1)
                instance = Instance.current(cluster.nameserver)
                connections = [link.connection for link in instance.links()]
                await instance.close()
                assert connections == [1, 1]

    simulate(main)
