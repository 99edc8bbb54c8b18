"""A group's contract: what its members must agree on (ordering.md 11). Contracts are checked and compared only here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from shlex import quote

from lockstep.protocol.bodies import CONTRACT_VERSION_MAX, SQL92, TAG, ConsumerGroup, Subscription
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.sql92 import SqlError, canonical_sql
from lockstep.protocol.tags import ALL, check_expression, parse_tags
from lockstep.protocol.topics.allocate import is_allowed_when_ordered

TOPICS_PER_GROUP_MAX = 1_024
TOPICS_PER_CLIENT_MAX = 1_024
"""Subscriptions of all groups in one HEART_BEAT. They take up to 20 ms of a loop turn, and a tenth of that if nothing has changed."""
TAGS_PER_CLIENT_MAX = 4_096
"""Tags in all subscriptions of one HEART_BEAT."""
SQL_LENGTH_PER_CLIENT_MAX = 32 << 10
"""Characters of all SQL92 expressions in one HEART_BEAT. To parse them takes some 20 ms of a loop turn."""
DIFFERENCES_MAX = 16
"""Number of differences between two contracts that a refusal names."""
SUBSCRIPTION_BYTES_MAX = 512 << 10
"""Topics and expressions of one group together. A contract is one state change, which must fit into the smallest log file, 1 MiB."""
CONTRACTS_MAX = 8
"""Contracts of one group that may be in force at a time. A rolling change has two."""
MAY_DIFFER = ("contract_version", "subscriptions", "retry", "consume_from_where", "consume_timestamp_ms")
"""The fields of a contract that members of several versions need not have in common, within the rule of `mixing_refusal`."""
SPEC_LENGTH_MAX = 255
"""Bytes of an expression's type, a strategy, an order or a retry policy: as many as a group's name may have."""


def check_heartbeat(client_id: str, consumers: Sequence[ConsumerGroup]) -> None:
    """Raise LocalProtocolError if a HEART_BEAT names more tags than the loop may handle in one turn. Cheap: nothing is parsed."""
    tags = sum([each.expression.count("||") + 1 for entry in consumers for each in entry.subscriptions])
    if tags > TAGS_PER_CLIENT_MAX:
        raise LocalProtocolError(f"client {client_id} names {tags} tags in its subscriptions, {TAGS_PER_CLIENT_MAX} allowed")
    length = sum([len(each.expression) for entry in consumers for each in entry.subscriptions if each.expression_type == SQL92])
    if length > SQL_LENGTH_PER_CLIENT_MAX:
        raise LocalProtocolError(
            f"client {client_id} has {length} characters of SQL92 expressions in its subscriptions, {SQL_LENGTH_PER_CLIENT_MAX} allowed"
        )


def contract_of(offered: ConsumerGroup) -> ConsumerGroup:
    """Return the contract that a HEART_BEAT declares for a group: without subscription versions, topics and tags sorted.

    Raise LocalProtocolError for a contract that no group may have: it would be stored, and compared with that of every member.
    """
    _check(offered)
    subscriptions = sorted((_subscription(each) for each in offered.subscriptions), key=lambda each: each.topic)
    return replace(offered, subscriptions=tuple(subscriptions))


def _check(offered: ConsumerGroup) -> None:
    check_group(offered.group)
    if not 0 <= offered.contract_version <= CONTRACT_VERSION_MAX:
        raise LocalProtocolError(f"group {offered.group}: contract version {offered.contract_version}: 0 to {CONTRACT_VERSION_MAX} allowed")
    topics = {each.topic: None for each in offered.subscriptions}
    if len(offered.subscriptions) > TOPICS_PER_GROUP_MAX or len(topics) != len(offered.subscriptions):
        count = len(offered.subscriptions)
        raise LocalProtocolError(
            f"group {offered.group}: {count} subscriptions, expected each topic once and at most {TOPICS_PER_GROUP_MAX}"
        )
    for word in (offered.allocate, offered.order_by, offered.retry, *(each.expression_type for each in offered.subscriptions)):
        if (length := len(word.encode("utf-8", "surrogatepass"))) > SPEC_LENGTH_MAX:
            raise LocalProtocolError(f"group {offered.group}: {word[:40]!r}… has {length} bytes: at most {SPEC_LENGTH_MAX}")
    if offered.ordered and not is_allowed_when_ordered(offered.allocate):
        raise LocalProtocolError(
            f"group {offered.group} is ordered: its members could disagree about a queue's owner by allocate {offered.allocate}"
        )
    for each in offered.subscriptions:
        check_topic(each.topic)
        check_expression(each.expression)
    size = sum([len(each.topic) + len(each.expression.encode()) for each in offered.subscriptions])
    if size > SUBSCRIPTION_BYTES_MAX:
        raise LocalProtocolError(f"group {offered.group}: its subscriptions have {size} bytes, {SUBSCRIPTION_BYTES_MAX} allowed")


def includes(wide: ConsumerGroup, narrow: ConsumerGroup) -> bool:
    """Return whether the subscriptions of `wide` match every message that those of `narrow` match."""
    topics = {each.topic: each for each in wide.subscriptions}
    return all(each.topic in topics and _covers(topics[each.topic], each) for each in narrow.subscriptions)


def _covers(wide: Subscription, narrow: Subscription) -> bool:
    if wide == narrow or (wide.expression_type == TAG and wide.expression == ALL):
        return True
    if wide.expression_type != TAG or narrow.expression_type != TAG or narrow.expression == ALL:
        return False
    return parse_tags(narrow.expression) <= parse_tags(wide.expression)


def mixing_refusal(here: ConsumerGroup, asked: ConsumerGroup) -> str | None:
    """Return why members with these two contracts can't be in the group at the same time (ordering.md 11.5), or None if they can."""
    common = replace(asked, **{name: getattr(here, name) for name in MAY_DIFFER})
    if common != here:
        return f"members that differ in this can't run together: {'; '.join(differences(here, common))}"
    if not includes(here, asked) and not includes(asked, here):
        found = "; ".join(_subscription_differences(here, asked)[:DIFFERENCES_MAX])
        return f"subscriptions may become wider or narrower while members run, not both in one change: {found}"
    return None


@dataclass(frozen=True, slots=True)
class ContractConflict:
    """Why a contract can't be put into force beside others."""

    refusing: tuple[int, ...]
    """Versions of the contracts whose members can't run beside a member with this one."""
    difference: str
    """What differs from one of them, as text."""
    advice: str
    """What else than to stop the other members may help, as text that continues a sentence; perhaps empty."""


def find_conflict(
    contracts: Mapping[int, ConsumerGroup], asked: ConsumerGroup, *, used_count: int, allowed: bool
) -> ContractConflict | None:
    """Return why `asked` can't be put into force beside `contracts`, or None if it can (ordering.md 11.5).

    `contracts`: version → contract, the newest is the last. `used_count`: the number of those that a connected member or one in its grace
    has. `allowed`: whether an operator lets the version of `asked` join although a higher one is in force.
    """
    version, highest = asked.contract_version, max(contracts)
    mixing = {each: mixing_refusal(here, asked) for each, here in contracts.items()}
    refusing = tuple(each for each, why in mixing.items() if each == version or why is not None)
    outdated = version not in contracts and version < highest and not allowed
    if not refusing and not outdated and used_count < CONTRACTS_MAX:
        return None
    if reason := next(filter(None, mixing.values()), None):
        advice = f" ({reason})" if version else ""
    elif version in refusing:
        advice = f", or announce the change: contract_version={highest + 1}"
    elif outdated:
        advice = (
            f". Version {version} is older than {highest}: announce a change by contract_version={highest + 1}, or go back to it: "
            f"lockstep group update {quote(asked.group)} --next-contract-version {version}"
        )
    else:
        advice = f": contracts of {CONTRACTS_MAX} versions are in force, the maximum"
    here = contracts[refusing[0]] if refusing else list(contracts.values())[-1]
    return ContractConflict(refusing, "; ".join(differences(here, asked)) or f"its version is {here.contract_version}", advice)


def matching_version(contracts: Mapping[int, ConsumerGroup], offered: ConsumerGroup) -> int | None:
    """Return the version of the contract that equals the offered one, or None. Version 0 in an offer stands for any."""
    version = offered.contract_version
    for each in [version] if version else list(contracts):
        known = contracts.get(each)
        if known is not None and known == (offered if each == version else replace(offered, contract_version=each)):
            return each
    return None


def resubscribed(here: ConsumerGroup, offered: ConsumerGroup) -> ConsumerGroup | None:
    """Return the contract with the subscriptions of `offered`, or None if anything else but the version differs (ordering.md 11.4)."""
    changed = replace(here, subscriptions=offered.subscriptions)
    return changed if changed == replace(offered, contract_version=here.contract_version) else None


def differences(here: ConsumerGroup, asked: ConsumerGroup) -> list[str]:
    """Return the values of both sides for the fields that differ, at most DIFFERENCES_MAX of them."""
    found = _subscription_differences(here, asked)
    for field in fields(ConsumerGroup):
        if field.name not in ("group", "subscriptions", "contract_version"):
            mine, theirs = getattr(here, field.name), getattr(asked, field.name)
            if mine != theirs:
                found.append(f"{field.name}: {_plain(mine)} here, {_plain(theirs)} asked for")
    return found if len(found) <= DIFFERENCES_MAX else [*found[:DIFFERENCES_MAX], f"and {len(found) - DIFFERENCES_MAX} more"]


def _subscription_differences(here: ConsumerGroup, asked: ConsumerGroup) -> list[str]:
    mine = {each.topic: each for each in here.subscriptions}
    theirs = {each.topic: each for each in asked.subscriptions}
    return [
        f"subscription of {topic}: {_words(mine.get(topic))} here, {_words(theirs.get(topic))} asked for"
        for topic in sorted({**mine, **theirs})
        if mine.get(topic) != theirs.get(topic)
    ]


def _subscription(each: Subscription) -> Subscription:
    expression = each.expression.strip() or ALL
    if each.expression_type == TAG and expression != ALL:
        expression = " || ".join(sorted(parse_tags(expression)))
    elif each.expression_type == SQL92:
        try:
            expression = canonical_sql(expression)
        except SqlError:
            pass  # its pulls fail with the reason
    return replace(each, expression=expression, sub_version=0)


def _words(each: Subscription | None) -> str:
    return "none" if each is None else repr(each.shown)


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
