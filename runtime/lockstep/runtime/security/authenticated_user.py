"""Who sends a request, and what they may do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.protocol.errors import AuthenticationError, NoPermissionError
from lockstep.runtime.security.rights import NO_RIGHTS, Action, Kind, Rights, any_of, resource
from lockstep.runtime.security.scram import Verifier
from lockstep.runtime.security.users import Users
from lockstep.runtime.security.watched_files import WatchedFiles

DENIED_MS = 30_000
_SEE_TOPIC = (Action.LIST, Action.GET, Action.SUB, Action.PUB)
_SEE_GROUP = (Action.LIST, Action.GET, Action.SUB)


class AccessDeniedError(NoPermissionError):
    """A user's rights do not allow the request."""

    def __init__(self, remark: str, retry_after_ms: int | None = None, resource: str = "") -> None:
        super().__init__(remark)
        self.resource = resource
        """To what the right is missing, for the audit: the remark does not always tell it."""
        self.retry_after_ms = retry_after_ms
        """When a member may try to join again: rights may differ between servers until each has read the file."""


class LoginRefusedError(AuthenticationError):
    """A request that a user has signed is refused. `user`: who was named, or an empty text if there is no such user."""

    def __init__(self, remark: str, user: str) -> None:
        super().__init__(remark)
        self.user = user


class RequestUser:
    """The user of a request. One of this class itself may do everything: it is that of servers without users."""

    __slots__ = ()

    name: str
    """A class has it, or each user."""

    @property
    def is_super(self) -> bool:
        """Return whether the user may do everything."""
        return True

    @property
    def sees_all(self) -> bool:
        """Return whether the user may see all topics and groups and their status."""
        return True

    @property
    def users_digest(self) -> str | None:
        """Return the digest of the file that has the user; None for who has not logged in."""
        return None

    def may(self, actions: Sequence[Action], kind: Kind, name: str) -> bool:
        """Return whether the user may do one of these to a resource."""
        return True

    def may_be_broker(self, name: str) -> bool:
        """Return whether the user may register a broker of this name."""
        return True

    def check(self, actions: Sequence[Action], kind: Kind, name: str) -> None:
        """Raise AccessDeniedError unless the user may do one of these to a resource."""
        if not self.may(actions, kind, name):
            target = resource(kind, name)
            raise self._refusal_of(target, f"{any_of(actions)} {target}")

    def check_topic(self, name: str, *actions: Action) -> None:
        """Raise AccessDeniedError unless the user may do one of these to the topic."""
        self.check(actions, Kind.TOPIC, name)

    def check_group(self, name: str, *actions: Action) -> None:
        """Raise AccessDeniedError unless the user may do one of these to the group."""
        self.check(actions, Kind.GROUP, name)

    def check_message(self, topic: str, *actions: Action) -> None:
        """Raise AccessDeniedError unless the user may do one of these to the topic of a message. Only the audit is told its name."""
        if not self.may(actions, Kind.TOPIC, topic):
            raise self._refusal_of(resource(Kind.TOPIC, topic), f"{any_of(actions)} the topic of this message")

    def sees_topic(self, name: str) -> bool:
        """Return whether lists show the topic to the user."""
        return self.may(_SEE_TOPIC, Kind.TOPIC, name)

    def sees_group(self, name: str) -> bool:
        """Return whether lists show the group to the user."""
        return self.may(_SEE_GROUP, Kind.GROUP, name)

    def denied_groups(self, wanted: Iterable[tuple[str, Iterable[str]]]) -> dict[str, AccessDeniedError]:
        """Return the groups as a member of which the user may not consume these topics, each with the error that says why."""
        denied = {}
        for group, topics in wanted:
            try:
                self.check_consumption(group, topics)
            except AccessDeniedError as error:
                denied[group] = AccessDeniedError(f"group {group} is not for this user: {error.remark}", DENIED_MS, error.resource)
        return denied

    def check_consumption(self, group: str, topics: Iterable[str]) -> None:
        """Raise AccessDeniedError unless the user may consume these topics as a member of the group."""
        self.check_group(group, Action.SUB)
        for topic in topics:
            self.check_topic(topic, Action.SUB)

    def check_super(self, what: str) -> None:
        """Raise AccessDeniedError unless the user is a super user."""
        if not self.is_super:
            raise self.refusal(f"{what}: a super user may")

    def refusal(self, what: str) -> AccessDeniedError:
        """Return the error that says what the user may not do."""
        return AccessDeniedError(f"user {self.name} may not {what}")

    def _refusal_of(self, target: str, what: str) -> AccessDeniedError:
        error = self.refusal(what)
        error.resource = target
        return error


class _Anybody(RequestUser):
    __slots__ = ()

    name = ""


ANYBODY: RequestUser = _Anybody()
"""Nobody has to log in, or this client needs not."""


@dataclass(frozen=True, slots=True)
class AuthenticatedUser(RequestUser):
    """A user who has logged in, and the verifier of the password that was used: if it is taken away, the connection ends. Or one who has
    signed a request, without a verifier.

    The rights are those that the file of users gives at the time of each question.
    """

    name: str
    verifier: Verifier | None
    users: WatchedFiles[Users]

    @property
    def _rights(self) -> Rights:
        user = self.users.value.users.get(self.name)
        return NO_RIGHTS if user is None else user.rights

    @property
    def is_super(self) -> bool:
        return self._rights.is_super

    @property
    def sees_all(self) -> bool:
        return self._rights.sees_all

    @property
    def users_digest(self) -> str | None:
        return self.users.value.digest

    def may(self, actions: Sequence[Action], kind: Kind, name: str) -> bool:
        return self._rights.allow_any(actions, kind, name)

    def may_be_broker(self, name: str) -> bool:
        user = self.users.value.users.get(self.name)
        return user is not None and user.may_be_broker(name)

    def refusal(self, what: str) -> AccessDeniedError:
        return AccessDeniedError(f"user {self.name} may not {what} (users file {self.users.value.digest})")
