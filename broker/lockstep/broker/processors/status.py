"""GET_BROKER_RUNTIME_INFO: the broker's status."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.protocol.bodies import BrokerStatus
from lockstep.protocol.codes import RequestCode
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, on_cluster
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.authenticated_user import RequestUser


class StatusProcessor:
    """Handles requests for the broker's status. `status` returns the present one."""

    def __init__(self, status: Callable[[], BrokerStatus]) -> None:
        self._status = status

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=[on_cluster(GET)], at_once=True)
    def broker_status(self, request: Request) -> HandlerResult:
        return request.reply(body=status_for(request.user, self._status()))


def status_for(user: RequestUser, status: BrokerStatus) -> BrokerStatus:
    """Return the status without the names of topics that a user does not see."""
    seen = {topic: count for topic, count in status.deferred_timers.items() if not topic or user.sees_topic(topic)}
    return replace(status, deferred_timers=seen)
