"""Requests to nameservers, and to addresses that are not nameservers."""

import asyncio

import pytest

from lockstep.client.nameservers import Nameservers
from lockstep.protocol.bodies import ClusterInfo
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RequestCodeNotSupportedError
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from support.peers import serving


def reject_request(command: Command, endpoint: Endpoint) -> None:
    endpoint.send(command.reply(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported here"))


async def test_error_suggests_that_the_nameserver_address_is_a_brokers() -> None:
    async with serving(reject_request) as broker:
        address = broker.addresses["internal"]
        nameservers = Nameservers(Host.real(), (address,), timeout_ms=5_000)
        with pytest.raises(
            RequestCodeNotSupportedError, match=rf"{address} does not know GET_ROUTEINFO_BY_TOPIC: is it a nameserver's address"
        ):
            await nameservers.route("orders")
        await nameservers.close()


async def test_requests_at_the_same_time_share_one_connection() -> None:
    async with serving(lambda command, endpoint: endpoint.send(command.reply(body=encode_body(ClusterInfo(()))))) as server:
        nameservers = Nameservers(Host.real(), (server.addresses["internal"],), timeout_ms=5_000)
        first = asyncio.ensure_future(nameservers.cluster())
        others = [asyncio.ensure_future(nameservers.cluster()) for _ in range(9)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        assert len(server.endpoints) == 1
        await nameservers.close()
