"""A group's contract: what its members must agree on (ordering.md 10). The one place where two are compared."""

from dataclasses import fields, replace
from enum import Enum

from lockstep.protocol.bodies import ConsumerGroup, Subscription


def contract_of(offered: ConsumerGroup) -> ConsumerGroup:
    """What a HEART_BEAT says of a group, as the contract that it stands for: no subscription versions, topics and tags in order."""
    subscriptions = sorted((_subscription(each) for each in offered.subscriptions), key=lambda each: each.topic)
    return replace(offered, subscriptions=tuple(subscriptions))


def differences(here: ConsumerGroup, asked: ConsumerGroup) -> list[str]:
    """Both sides of every field that differs."""
    found = _subscription_differences(here, asked)
    for field in fields(ConsumerGroup):
        if field.name not in ("group", "subscriptions"):
            mine, theirs = getattr(here, field.name), getattr(asked, field.name)
            if mine != theirs:
                found.append(f"{field.name}: {_plain(mine)} here, {_plain(theirs)} asked for")
    return found


def _subscription_differences(here: ConsumerGroup, asked: ConsumerGroup) -> list[str]:
    mine = {each.topic: each for each in here.subscriptions}
    theirs = {each.topic: each for each in asked.subscriptions}
    return [
        f"subscription of {topic}: {_words(mine.get(topic))} here, {_words(theirs.get(topic))} asked for"
        for topic in sorted({**mine, **theirs})
        if mine.get(topic) != theirs.get(topic)
    ]


def _subscription(each: Subscription) -> Subscription:
    expression = each.expression.strip() or "*"
    if each.expression_type == "TAG" and expression != "*":
        expression = " || ".join(sorted({tag for part in expression.split("||") if (tag := part.strip())}))
    return replace(each, expression=expression, sub_version=0)


def _words(each: Subscription | None) -> str:
    if each is None:
        return "none"
    return repr(each.expression) if each.expression_type == "TAG" else f"{each.expression_type} {each.expression!r}"


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
