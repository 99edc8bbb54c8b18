import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import (
    BY_CODE,
    BrokerError,
    BrokerSystemError,
    LocalProtocolError,
    LockstepError,
    NotLeaderError,
    RequestTimeoutError,
    StaleEpochError,
    TransportError,
    broker_error,
)

NOT_ERRORS = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    # Stored with a weaker guarantee, and codes of replication and of a version check, which this broker does not send yet.
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.VERSION_NOT_SUPPORTED,
}


@pytest.mark.parametrize("code", [code for code in ResponseCode if code not in NOT_ERRORS], ids=lambda code: code.name)
def test_each_error_code_has_its_own_class(code: ResponseCode) -> None:
    error = broker_error(code, "because")
    assert type(error) is not BrokerError
    assert error.code is code
    assert error.wire_code == code
    assert error.remark == "because"
    assert str(error) == f"{code.name}: because"


def test_each_error_class_has_its_own_code() -> None:
    leaves = BrokerError.__subclasses__()
    assert len({leaf.code for leaf in leaves}) == len(leaves)
    assert BY_CODE[ResponseCode.SYSTEM_ERROR] is BrokerSystemError


def test_unknown_error_code_keeps_its_number() -> None:
    error = broker_error(4711, "what")
    assert type(error) is BrokerError
    assert error.wire_code == 4711
    assert str(error) == "4711: what"


def test_error_without_a_remark_shows_its_code() -> None:
    assert str(broker_error(ResponseCode.STALE_EPOCH, None)) == "STALE_EPOCH"


def test_retriable_and_refresh_route_are_class_attributes() -> None:
    assert NotLeaderError.retriable
    assert NotLeaderError.refresh_route
    assert not StaleEpochError.retriable


def test_errors_can_be_caught_by_family_or_by_builtin_class() -> None:
    assert issubclass(RequestTimeoutError, TransportError)
    assert issubclass(RequestTimeoutError, TimeoutError)
    assert issubclass(TransportError, ConnectionError)
    assert issubclass(LocalProtocolError, ValueError)
    assert all(issubclass(kind, LockstepError) for kind in (TransportError, LocalProtocolError, BrokerError))


def test_own_codes_are_outside_rocketmqs_ranges() -> None:
    own = [code for code in RequestCode if code > 1000]
    assert own == [
        *range(30001, 30018),
        RequestCode.LIST_WAITING,
        RequestCode.AUTHENTICATE,
        RequestCode.LIST_HALVES,
        *range(30030, 30040),
    ]
    assert all(code < 2000 or code > 30100 for code in ResponseCode)
    assert max(*RequestCode, *ResponseCode) <= 0x7FFF, "they must fit the binary header's int16"
