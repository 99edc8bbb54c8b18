"""What a user may do, as rules of actions on topics, groups and the cluster. RocketMQ: Policy, Action, Resource of its ACL 2.0.

    Sub topic:orders*            an action, and a name, the beginning of names, or * for all
    Pub,Get topic:invoices       several actions
    Get cluster

What no rule allows is denied. A rule that denies stands above all that allow: unlike in RocketMQ it does not matter which is longer.

The topics of a group belong to it: nobody has rights in `%RETRY%billing` or `%DLQ%billing`, but for those of the group `billing`. A message
for its retry is what a consumer sends (Sub), a dead letter is one by an operator (Update).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_tool_group


class Action(StrEnum):
    """What may be done with a resource."""

    PUB = "Pub"
    """Send to a topic."""
    SUB = "Sub"
    """Consume a topic; be a member of a group."""
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    """Read its status and its messages."""
    LIST = "List"
    """See it in lists."""


class Kind(StrEnum):
    """The kinds of resources."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


def is_name_pattern(text: str) -> bool:
    """Return whether a text is a name, or the beginning of names with a * at its end."""
    return bool(text) and "*" not in text[:-1] and not any(map(str.isspace, text))


def matches_name(pattern: str, name: str) -> bool:
    """Return whether a name is the one, or one of those, that a pattern stands for."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True, slots=True)
class Rule:
    """Actions on the resources whose names match."""

    actions: tuple[Action, ...]
    kind: Kind
    name: str = "*"
    """A name, or the beginning of names with a * at its end. That of a cluster does not matter."""

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Return the rule of a text. Raise ConfigError."""
        words, form = text.split(), "expected ACTION[,ACTION] topic:NAME, group:NAME or cluster"
        if len(words) != 2:
            raise ConfigError(f"rule {text[:80]!r}: {form}")
        kind, _, name = words[1].partition(":")
        try:
            actions = tuple(map(Action, dict.fromkeys(words[0].split(","))))
        except ValueError:
            raise ConfigError(f"rule {text[:80]!r}: expected actions of {', '.join(Action)}") from None
        if kind not in tuple(Kind) or bool(name) == (kind == Kind.CLUSTER):
            raise ConfigError(f"rule {text[:80]!r}: {form}")
        if name and not is_name_pattern(name):
            raise ConfigError(f"rule {text[:80]!r}: a * is allowed at the end of a name")
        return cls(actions, Kind(kind), name or "*")

    @property
    def target(self) -> str:
        """Return the text of the resource, or resources."""
        return resource(self.kind, self.name)

    def __str__(self) -> str:
        return f"{','.join(self.actions)} {self.target}"

    def matches(self, action: Action, kind: Kind, name: str) -> bool:
        """Return whether the rule is about this action on this resource."""
        if kind is not self.kind or action not in self.actions:
            return False
        return kind is Kind.CLUSTER or matches_name(self.name, name)


def resource(kind: Kind, name: str) -> str:
    """Return the text of a resource."""
    return str(kind) if kind is Kind.CLUSTER else f"{kind}:{name}"


def any_of(actions: Sequence[Action]) -> str:
    """Return the text of actions of which one is enough."""
    *others, last = actions
    return f"{', '.join(others)} or {last}" if others else str(last)


def _rules(actions: Sequence[Action], kind: Kind, names: Sequence[str]) -> list[Rule]:
    return [Rule(tuple(actions), kind, name) for name in names]


_CHANGE = (Action.GET, Action.LIST, Action.CREATE, Action.UPDATE, Action.DELETE)
_SEE = (Action.GET, Action.LIST)
Names = Sequence[str]
ROLES: Mapping[str, Callable[[Names, Names], list[Rule]]] = {
    "producer": lambda topics, _: _rules([Action.PUB], Kind.TOPIC, topics),
    "consumer": lambda topics, groups: _rules([Action.SUB], Kind.TOPIC, topics) + _rules([Action.SUB], Kind.GROUP, groups),
    "viewer": lambda topics, groups: (
        _rules(_SEE, Kind.TOPIC, topics or "*") + _rules(_SEE, Kind.GROUP, groups or "*") + [Rule(_SEE, Kind.CLUSTER)]
    ),
    "operator": lambda topics, groups: (
        _rules(_CHANGE, Kind.TOPIC, topics or "*")
        + _rules(_CHANGE, Kind.GROUP, groups or "*")
        + [Rule((*_SEE, Action.UPDATE), Kind.CLUSTER)]
    ),
}
"""Role → the rules that it is short for, of the user's topics and groups."""

NEED_TOPICS, NEED_GROUPS = ("producer", "consumer"), ("consumer",)
"""Roles that need topics, and groups."""
_OF_RETRY = {Action.PUB: Action.SUB, Action.SUB: Action.SUB, Action.GET: Action.GET, Action.LIST: Action.LIST}
_OF_DLQ = {Action.SUB: Action.SUB, Action.GET: Action.GET, Action.LIST: Action.LIST}
"""Action on a topic of a group → action on the group. Any other one: Update."""
_OF_ALL = {(Action.PUB, TRACE_TOPIC), (Action.GET, AUTO_CREATE_TOPIC)}
"""What every user may do. RocketMQ's clients do both by themselves."""
CACHED_MAX = 4_096
"""Decisions that are kept of each user."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The rules of one user."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    is_super: bool = False
    _decisions: dict[tuple[Action, Kind, str], bool] = field(default_factory=dict, repr=False, compare=False)

    def allow_any(self, actions: Sequence[Action], kind: Kind, name: str) -> bool:
        """Return whether the user may do one of these to a resource."""
        known = self._decisions
        for action in actions:
            decided = known.get((action, kind, name))
            if decided is None:
                decided = self.decide(action, kind, name)[0]
                if len(known) >= CACHED_MAX:
                    known.clear()
                known[action, kind, name] = decided
            if decided:
                return True
        return False

    @property
    def sees_all(self) -> bool:
        """Return whether the user may see all topics and groups and their status, whatever they are called."""
        return self.is_super or all(
            any(Action.GET in rule.actions and rule.kind is kind and rule.name == "*" for rule in self.allow)
            and not any(rule.kind is kind and {Action.GET, Action.LIST} & set(rule.actions) for rule in self.deny)
            for kind in (Kind.TOPIC, Kind.GROUP)
        )

    def decide(self, action: Action, kind: Kind, name: str) -> tuple[bool, str]:
        """Return whether the user may, and why."""
        if self.is_super:
            return True, "the user is a super user"
        if kind is Kind.TOPIC:
            for prefix, of_group in ((RETRY_PREFIX, _OF_RETRY), (DLQ_PREFIX, _OF_DLQ)):
                if name.startswith(prefix):
                    return self.decide(of_group.get(action, Action.UPDATE), Kind.GROUP, name.removeprefix(prefix))
            if (action, name) in _OF_ALL:
                return True, "every user may"
        if kind is Kind.GROUP and is_tool_group(name):
            return True, "every user may: it has no members, and the rights in the topic decide"
        for verdict, rules in ((False, self.deny), (True, self.allow)):
            for rule in rules:
                if rule.matches(action, kind, name):
                    return verdict, f"{'allowed' if verdict else 'denied'} by {str(rule)!r}"
        return False, "no rule allows it"


NO_RIGHTS = Rights()
