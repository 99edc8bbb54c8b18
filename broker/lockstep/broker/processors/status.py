"""GET_BROKER_RUNTIME_INFO: the broker's status."""

from collections.abc import Callable

from lockstep.protocol.bodies import BrokerStatus
from lockstep.protocol.codes import RequestCode
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, on_cluster
from lockstep.runtime.requests.request import HandlerResult, Request


class StatusProcessor:
    """Handles requests for the broker's status. `status` returns the present one."""

    def __init__(self, status: Callable[[], BrokerStatus]) -> None:
        self._status = status

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=[on_cluster(GET)], at_once=True)
    def broker_status(self, request: Request) -> HandlerResult:
        return request.reply(body=self._status())
