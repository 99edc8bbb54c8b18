"""Requests to nameservers, and to addresses that are not nameservers."""

import pytest

from lockstep.client.nameservers import Nameservers
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
