"""What a request needs: declared with its handler, asked before it is called. A handler without a declaration can't be written.

    needs=[on_group(SUB), on_topic(SUB, GET)]   the user may Sub the group, and Sub or Get the topic that the request names
    needs=[inside("…")]                         the handler asks Request.user itself, because only it knows the names
    needs=ANY_USER, needs=SUPER_USER            every user; a super user

A request that waits in a lane is asked again when it begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

from lockstep.runtime.requests.request import Request
from lockstep.runtime.security.rights import Action, Kind, any_of, resource

PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = Action
_CHANGES = frozenset({CREATE, UPDATE, DELETE})


class Need(Protocol):
    """One condition of a request."""

    def check(self, request: Request) -> None:
        """Raise AccessDeniedError unless the user of the request may."""
        ...

    @property
    def changes(self) -> bool:
        """Return whether only requests that change something have this need: the audit has each of them."""
        ...

    def resource(self, request: Request) -> str:
        """Return the resource that the request names, as rights name it, or an empty text."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """One of these actions on the resource that a field of the header names; of the body, if the request has no header."""

    actions: tuple[Action, ...]
    kind: Kind
    field_name: str = ""
    optional: bool = False
    """Whether the request may name none, and then needs nothing."""
    _name_of: Callable[[Any], str] = field(init=False, repr=False, compare=False, default=lambda _: "")

    def __post_init__(self) -> None:
        if self.field_name:
            object.__setattr__(self, "_name_of", attrgetter(self.field_name))

    def check(self, request: Request) -> None:
        name = self._name_of(request.body if request.header is None else request.header)
        if name or not self.optional:
            request.user.check(self.actions, self.kind, name)

    @property
    def changes(self) -> bool:
        return _CHANGES.issuperset(self.actions)

    def resource(self, request: Request) -> str:
        name = self._name_of(request.body if request.header is None else request.header)
        return resource(self.kind, name) if name or self.kind is Kind.CLUSTER else ""

    def __str__(self) -> str:
        return f"{any_of(self.actions)} {self.kind}{' if it is named' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class InsideNeed:
    """What a handler asks itself."""

    text: str
    changes: bool = False

    def check(self, request: Request) -> None:
        return

    def resource(self, request: Request) -> str:
        return ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SuperNeed:
    """The user is a super user."""

    def check(self, request: Request) -> None:
        request.user.check_super("do this")

    @property
    def changes(self) -> bool:
        return True

    def resource(self, request: Request) -> str:
        return str(Kind.CLUSTER)

    def __str__(self) -> str:
        return "super user"


RequestNeeds = Sequence[Need]
ANY_USER: RequestNeeds = ()
SUPER_USER: RequestNeeds = (SuperNeed(),)


def on_topic(*actions: Action, name: str = "topic", optional: bool = False) -> Need:
    """Need one of these actions on the topic that the field `name` has."""
    return ResourceNeed(actions, Kind.TOPIC, name, optional)


def on_group(*actions: Action, name: str = "consumer_group", optional: bool = False) -> Need:
    """Need one of these actions on the group that the field `name` has."""
    return ResourceNeed(actions, Kind.GROUP, name, optional)


def on_cluster(*actions: Action) -> Need:
    """Need one of these actions on the cluster."""
    return ResourceNeed(actions, Kind.CLUSTER)


def inside(text: str, *, changes: bool = False) -> Need:
    """The handler asks for the needs that the text describes. `changes`: it always changes something."""
    return InsideNeed(text, changes)
