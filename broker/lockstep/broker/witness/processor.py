"""REGISTER_READ and REGISTER_SWAP (broker/office/witness.py has the other end)."""

from lockstep.broker.office.register import ENTRY_BYTES_MAX
from lockstep.broker.processors.replication import OF_BROKERS
from lockstep.broker.store.errors import StoreDiskError
from lockstep.broker.witness.values import WitnessValues
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, ServiceNotAvailableError
from lockstep.protocol.headers.register import RegisterReadHeader, RegisterReadReply, RegisterSwapHeader, RegisterSwapReply
from lockstep.protocol.names import check_broker_name, check_cluster_name
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.needs import GET, inside, on_cluster
from lockstep.runtime.requests.request import HandlerResult, Request

log = get_logger("witness")

SWAP_LANE = "register"
LANES = {SWAP_LANE: LaneLimits(concurrency=1, queue_max=64)}
"""One swap at a time."""


class RegisterProcessor:
    """Handles the requests to a witness."""

    def __init__(self, values: WitnessValues) -> None:
        self._values = values

    @handles(RequestCode.REGISTER_READ, RegisterReadHeader, needs=[inside(f"Get cluster, or {OF_BROKERS}")])
    def read(self, request: Request) -> HandlerResult:
        header: RegisterReadHeader = request.header
        if not request.user.may_be_broker(header.broker_name):
            on_cluster(GET).check(request)
        found = self._values.get((header.cluster, header.broker_name))
        return request.reply(RegisterReadReply(found.version), found.value)

    @handles(
        RequestCode.REGISTER_SWAP,
        RegisterSwapHeader,
        bytes,
        needs=[inside(OF_BROKERS)],
        lane=SWAP_LANE,
        body_bytes_max=ENTRY_BYTES_MAX,
    )
    async def swap(self, request: Request) -> HandlerResult:
        header: RegisterSwapHeader = request.header
        if not request.user.may_be_broker(header.broker_name):
            raise request.user.refusal(f"change the register of broker {header.broker_name}: its `brokers` do not name it")
        check_cluster_name(header.cluster)
        check_broker_name(header.broker_name)
        if not request.body:
            raise LocalProtocolError(f"the value of broker {header.broker_name} is empty: expected an entry")
        try:
            swapped = await self._values.swap((header.cluster, header.broker_name), header.version, bytes(request.body))
        except StoreDiskError as error:
            log_limited(log, "error", "witness.write_failed", error=str(error))
            raise ServiceNotAvailableError(str(error)) from error
        return request.reply(RegisterSwapReply(swapped))
