"""All errors, as one tree. A message names the problem, the value, the limit or expectation, and the next step.

LockstepError
    ConfigError            a setting is unknown, missing or out of range
    LocalProtocolError     the caller asked this side to break the protocol (bad argument, bad name, too large)
    RemoteProtocolError    the other side broke the protocol (bad frame, bad header, bad body)
    TransportError         no response: refused, closed, timed out
        RequestTimeoutError
    BrokerError            an error response; one class per response code
    StoreError             the log on disk
    StateError             called at the wrong time (not started, closed)
"""

from typing import ClassVar, TypeVar

from lockstep.protocol.codes import ResponseCode

E = TypeVar("E", bound=BaseException)

_CAUSE, _CONTEXT = BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"]


def without_frames(error: E) -> E:
    """Return the error without its traceback and those of its causes, for an object that keeps it.

    A traceback holds the frames through which the error came, with all that they worked on. If one of them also leads to the object that
    keeps the error, only the garbage collector would free them.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue  # errors may refer to each other in a circle
        seen.add(id(each))
        BaseException.with_traceback(each, None)  # the attributes may be those of a user's class
        left += _CAUSE.__get__(each), _CONTEXT.__get__(each)
    return error


class LockstepError(Exception):
    """The base class of every error that lockstep raises."""


class ConfigError(LockstepError):
    """A setting is unknown, missing or out of range."""


class LocalProtocolError(LockstepError, ValueError):
    """The call would send something that the protocol does not allow."""


class RemoteProtocolError(LockstepError):
    """The other side sent something that the protocol does not allow."""


class TransportError(LockstepError, ConnectionError):
    """The connection was refused, closed or lost before a response came.

    If the request was written, it is unknown whether it was executed.
    """


class RequestTimeoutError(TransportError, TimeoutError):
    """The response did not arrive in time. It is unknown whether the request was executed."""


class StoreError(LockstepError):
    """The log on disk can't be used as requested."""


class StateError(LockstepError, RuntimeError):
    """A method was called at the wrong time: before the start or after the close."""


class BrokerError(LockstepError):
    """A nameserver or broker responded with an error.

    Args:
        remark: The reason that the other side gave.
        wire_code: The response code, if it has no class of its own. Otherwise it is the `code` of the class.
    """

    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed later, here or at another broker."""
    refresh_route: ClassVar[bool] = False
    """Whether the error means that the caller's route is outdated."""
    retry_after_ms: int | None = None
    """When to try again, if the other side has said so."""
    address: str | None = None
    """The address of whoever is responsible instead, if the other side has named it."""
    term: int | None = None
    """The term of whoever is responsible instead, if the other side has named it."""

    def __init__(self, remark: str = "", *, wire_code: int | None = None) -> None:
        self.remark = remark
        self.wire_code = int(self.code) if wire_code is None else wire_code
        super().__init__(f"{self.code.name if wire_code is None else wire_code}: {remark}" if remark else self.code.name)


class BrokerSystemError(BrokerError):
    """SYSTEM_ERROR: the request handler failed, or a rule of RocketMQ responds so."""

    retriable = True


class SystemBusyError(BrokerError):
    """SYSTEM_BUSY: the broker is overloaded now."""

    code = ResponseCode.SYSTEM_BUSY
    retriable = True


class RequestCodeNotSupportedError(BrokerError):
    """REQUEST_CODE_NOT_SUPPORTED: the broker or nameserver does not support this request, or a feature that it needs."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class FlushDiskTimeoutError(BrokerError):
    """FLUSH_DISK_TIMEOUT: the message is stored, but was not confirmed on disk in time."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class MessageIllegalError(BrokerError):
    """MESSAGE_ILLEGAL: a message, or an option of the request, violates a limit or rule of the broker."""

    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailableError(BrokerError):
    """SERVICE_NOT_AVAILABLE: the broker's disk is full, or it is shutting down or not started."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class NoPermissionError(BrokerError):
    """NO_PERMISSION: the broker forbids the operation, or its limits don't allow it."""

    code = ResponseCode.NO_PERMISSION


class AuthenticationError(BrokerError):
    """UNAUTHENTICATED: the server requires a login, or does not accept this one; or it can't be trusted with one."""

    code = ResponseCode.UNAUTHENTICATED


class TopicNotExistError(BrokerError):
    """TOPIC_NOT_EXIST: the topic does not exist or was deleted."""

    code = ResponseCode.TOPIC_NOT_EXIST
    refresh_route = True


class QueryNotFoundError(BrokerError):
    """QUERY_NOT_FOUND: the position of the request has no data."""

    code = ResponseCode.QUERY_NOT_FOUND


class TooLateToRecallError(BrokerError):
    """ILLEGAL_OPERATION: the message does not wait any more, so it can't be recalled."""

    code = ResponseCode.ILLEGAL_OPERATION


class TransactionCommittedError(BrokerError):
    """TRANSACTION_SHOULD_COMMIT: the message can't be rolled back, because it was committed. RocketMQ: ResponseCode 200."""

    code = ResponseCode.TRANSACTION_SHOULD_COMMIT


class TransactionRolledBackError(BrokerError):
    """TRANSACTION_SHOULD_ROLLBACK: the message can't be committed, because it was rolled back. RocketMQ: ResponseCode 201."""

    code = ResponseCode.TRANSACTION_SHOULD_ROLLBACK


class TransactionGroupError(BrokerError):
    """TRANSACTION_STATE_GROUP_WRONG: the half message is of another producer group. RocketMQ: ResponseCode 203."""

    code = ResponseCode.TRANSACTION_STATE_GROUP_WRONG


class SubscriptionParseError(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED: the expression of a subscription is invalid."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExistError(BrokerError):
    """SUBSCRIPTION_NOT_EXIST: the broker does not know the group's subscription until its next heartbeat."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retriable = True


class SubscriptionNotLatestError(BrokerError):
    """SUBSCRIPTION_NOT_LATEST: the broker has an older subscription of the group until its next heartbeat."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retriable = True


class SubscriptionGroupNotExistError(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST: the broker does not know the consumer group."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class ConsumerNotOnlineError(BrokerError):
    """CONSUMER_NOT_ONLINE: no member of the group is connected to the broker."""

    code = ResponseCode.CONSUMER_NOT_ONLINE


class MemberTimeoutError(BrokerError):
    """CONSUME_MSG_TIMEOUT: a member did not respond in time to a request that the broker passed on."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT
    retriable = True


class StaleEpochError(BrokerError):
    """STALE_EPOCH: the epoch is not the queue's current one. Drop the queue and its prefetched messages."""

    code = ResponseCode.STALE_EPOCH


class NotYoursError(BrokerError):
    """NOT_YOURS: the broker's member list assigns the queue to another member."""

    code = ResponseCode.NOT_YOURS


class SubscriptionConflictError(BrokerError):
    """SUBSCRIPTION_CONFLICT: the group's members already agreed on another contract. The remark shows both sides, field by field."""

    code = ResponseCode.SUBSCRIPTION_CONFLICT
    TEMPORARY: ClassVar[str] = " (temporary: no connected member has a contract that conflicts)"
    """The end of the remark while the other side is only in its grace period, draining, or expected back after a start."""

    @property
    def temporary(self) -> bool:
        """Return whether a retry may succeed without intervention."""
        return self.remark.endswith(self.TEMPORARY)


class LayoutStaleError(BrokerError):
    """LAYOUT_STALE: a keyed send carried an older layout than the broker's, or an unkeyed one named a queue that is not open there."""

    code = ResponseCode.LAYOUT_STALE
    retriable = True
    refresh_route = True


class OutOfSequenceError(BrokerError):
    """OUT_OF_SEQUENCE: the frame straddles the next sequence or leaves a gap."""

    code = ResponseCode.OUT_OF_SEQUENCE


class DuplicateFrameError(BrokerError):
    """DUPLICATE: the whole frame is below the next sequence, so it is stored already. Its offset is no longer known."""

    code = ResponseCode.DUPLICATE


class NonDeterministicRetryError(BrokerError):
    """NON_DETERMINISTIC_RETRY: a retried frame has other bytes than the first attempt."""

    code = ResponseCode.NON_DETERMINISTIC_RETRY


class RouteNotReadyError(BrokerError):
    """ROUTE_NOT_READY: the nameserver has started and no broker has registered yet. Ask another nameserver or use the cached route."""

    code = ResponseCode.ROUTE_NOT_READY
    retriable = True


class NotLeaderError(BrokerError):
    """NOT_LEADER: another broker is the leader, or may be. Nothing was carried out. `address` and `term` are the leader's, if known."""

    code = ResponseCode.NOT_LEADER
    retriable = True
    refresh_route = True

    def __init__(self, remark: str = "", *, address: str | None = None, term: int | None = None) -> None:
        super().__init__(remark)
        self.address = address
        self.term = term


class NotEnoughReplicasError(BrokerError):
    """NOT_ENOUGH_REPLICAS: the broker may not confirm anything now, because it can't reach enough copies. Nothing was stored."""

    code = ResponseCode.NOT_ENOUGH_REPLICAS
    retriable = True
    refresh_route = True


class DuplicateClientIdError(BrokerError):
    """DUPLICATE_CLIENT_ID: a live session already has this client id."""

    code = ResponseCode.DUPLICATE_CLIENT_ID


class BrokerNameTakenError(BrokerError):
    """BROKER_NAME_TAKEN: a live broker has this name, or this store was accepted with a later term.

    `term` is that term, if the registration has said that its own stands in a register.
    """

    code = ResponseCode.BROKER_NAME_TAKEN

    def __init__(self, remark: str = "", *, term: int | None = None) -> None:
        super().__init__(remark)
        self.term = term


class ParkRefusedError(BrokerError):
    """PARK_REFUSED: the key can't be set aside, is not set aside, or is in a state that does not allow the request."""

    code = ResponseCode.PARK_REFUSED


class RegistrationPendingError(BrokerError):
    """REGISTRATION_PENDING: the name is registered, and the nameserver checks whether that broker is alive. Register again in a second."""

    code = ResponseCode.REGISTRATION_PENDING
    retriable = True


def _leaves(cls: type[BrokerError]) -> list[type[BrokerError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _leaves(sub))]


BY_CODE: dict[int, type[BrokerError]] = {int(cls.code): cls for cls in _leaves(BrokerError)}


def broker_error(code: int, remark: str | None) -> BrokerError:
    """Return the error for a response code. A code without a class gives a BrokerError with `wire_code` set."""
    cls = BY_CODE.get(code)
    return BrokerError(remark or "", wire_code=code) if cls is None else cls(remark or "")
