"""One error tree. A message says what, which, the limit or expectation, and the next step.

LockstepError
    ConfigError            a setting is unknown, missing or out of range
    LocalProtocolError     this side was about to break the protocol (bad argument, bad name, too large)
    RemoteProtocolError    the other side broke the protocol (bad frame, bad header, bad body)
    TransportError         no answer: refused, closed, timed out
        RequestTimeoutError
    BrokerError            an answer that refuses; one class per response code
    StoreError             the log on disk
    StateError             called at the wrong time (not started, closed)
"""

from typing import ClassVar

from lockstep.protocol.codes import ResponseCode


class LockstepError(Exception):
    """The root of every error that lockstep raises."""


class ConfigError(LockstepError):
    """A setting is unknown, missing or out of range."""


class LocalProtocolError(LockstepError, ValueError):
    """This side was asked to send something that the protocol does not allow."""


class RemoteProtocolError(LockstepError):
    """The other side sent something that the protocol does not allow."""


class TransportError(LockstepError, ConnectionError):
    """The request has no answer: connection refused, closed or lost. Whether it was carried out is unknown once it was written."""


class RequestTimeoutError(TransportError, TimeoutError):
    """The answer did not come in time. Whether the request was carried out is unknown."""


class StoreError(LockstepError):
    """The log on disk can't be used as asked."""


class StateError(LockstepError, RuntimeError):
    """Called at the wrong time: not started yet, or closed already."""


class BrokerError(LockstepError):
    """A nameserver or broker refused. `code` is the wire's number, `remark` the other side's words."""

    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    retriable: ClassVar[bool] = False
    """The same request may succeed later, here or at another broker."""
    refresh_route: ClassVar[bool] = False
    """The refusal says that the caller's route is old."""

    def __init__(self, remark: str = "", *, wire_code: int | None = None) -> None:
        self.remark = remark
        self.wire_code = int(self.code) if wire_code is None else wire_code
        super().__init__(f"{self.code.name if wire_code is None else wire_code}: {remark}" if remark else self.code.name)


class BrokerSystemError(BrokerError):
    """SYSTEM_ERROR: the handler failed, or a RocketMQ rule answers so."""

    retriable = True


class SystemBusyError(BrokerError):
    """SYSTEM_BUSY: the broker has too much to do just now."""

    code = ResponseCode.SYSTEM_BUSY
    retriable = True


class RequestCodeNotSupportedError(BrokerError):
    """REQUEST_CODE_NOT_SUPPORTED: the broker or nameserver lacks this request, or a feature that it needs."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class FlushDiskTimeoutError(BrokerError):
    """Stored, but not confirmed on disk in time."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class MessageIllegalError(BrokerError):
    """MESSAGE_ILLEGAL: a message, or what is asked with it, breaks a limit or a rule of the broker."""

    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailableError(BrokerError):
    """Disk full, shutting down, or not started."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class NoPermissionError(BrokerError):
    """NO_PERMISSION: the broker forbids it, or its limits leave no room for it."""

    code = ResponseCode.NO_PERMISSION


class TopicNotExistError(BrokerError):
    """TOPIC_NOT_EXIST: there is no such topic, or it was deleted."""

    code = ResponseCode.TOPIC_NOT_EXIST
    refresh_route = True


class QueryNotFoundError(BrokerError):
    """QUERY_NOT_FOUND: there is nothing at the place that was asked for."""

    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseError(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED: a subscription's expression is not valid."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExistError(BrokerError):
    """SUBSCRIPTION_NOT_EXIST: the broker does not know the group's subscription before its next heartbeat."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retriable = True


class SubscriptionNotLatestError(BrokerError):
    """SUBSCRIPTION_NOT_LATEST: the broker knows an older subscription of the group before its next heartbeat."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retriable = True


class SubscriptionGroupNotExistError(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST: the broker does not know the consumer group."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class StaleEpochError(BrokerError):
    """The epoch is not the queue's current one: drop the queue and what was prefetched."""

    code = ResponseCode.STALE_EPOCH


class NotYoursError(BrokerError):
    """The broker's member list gives the queue to another member."""

    code = ResponseCode.NOT_YOURS


class SubscriptionConflictError(BrokerError):
    """The group's members already agreed on another contract; the remark names both sides, field by field."""

    code = ResponseCode.SUBSCRIPTION_CONFLICT
    PASSING: ClassVar[str] = " (passing: nobody who stands by it is connected)"
    """How the remark ends while the other side is only in its grace, draining, or expected back after a start."""

    @property
    def passing(self) -> bool:
        """Trying again may succeed without anybody's doing."""
        return self.remark.endswith(self.PASSING)


class LayoutStaleError(BrokerError):
    """A keyed send carried an older layout than the broker's."""

    code = ResponseCode.LAYOUT_STALE
    retriable = True
    refresh_route = True


class OutOfSequenceError(BrokerError):
    """The frame straddles the next sequence or leaves a gap."""

    code = ResponseCode.OUT_OF_SEQUENCE


class DuplicateFrameError(BrokerError):
    """The frame lies wholly below the next sequence: it is stored already, the offset is no longer known."""

    code = ResponseCode.DUPLICATE


class NonDeterministicRetryError(BrokerError):
    """A retried frame carries other bytes than the first one did."""

    code = ResponseCode.NON_DETERMINISTIC_RETRY


class RouteNotReadyError(BrokerError):
    """The nameserver has started and no broker has registered yet: ask another one or use the cache."""

    code = ResponseCode.ROUTE_NOT_READY
    retriable = True


class NotLeaderError(BrokerError):
    """NOT_LEADER: another broker is the leader."""

    code = ResponseCode.NOT_LEADER
    retriable = True
    refresh_route = True


class DuplicateClientIdError(BrokerError):
    """A living session already has this client id."""

    code = ResponseCode.DUPLICATE_CLIENT_ID


class BrokerNameTakenError(BrokerError):
    """A live broker has this name, or this store was accepted with a later term."""

    code = ResponseCode.BROKER_NAME_TAKEN


class RegistrationPendingError(BrokerError):
    """The name is registered, and the nameserver asks that broker whether it is still there: register again in a second."""

    code = ResponseCode.REGISTRATION_PENDING
    retriable = True


def _leaves(cls: type[BrokerError]) -> list[type[BrokerError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _leaves(sub))]


BY_CODE: dict[int, type[BrokerError]] = {int(cls.code): cls for cls in _leaves(BrokerError)}


def broker_error(code: int, remark: str | None) -> BrokerError:
    """The error for a response code; a code without a class of its own gives BrokerError with `wire_code` set."""
    cls = BY_CODE.get(code)
    return BrokerError(remark or "", wire_code=code) if cls is None else cls(remark or "")
