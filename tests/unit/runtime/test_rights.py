"""Rules of rights: what they allow, what they deny, and in which words a wrong one is refused."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.test_users import user

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.authenticated_user import AccessDeniedError
from lockstep.runtime.security.rights import CACHED_MAX, ROLES, Action, Kind, Rights, Rule
from lockstep.runtime.security.users import parse_users
from support.access import user_of

NAMES = ["a", "ab", "abc", "b", "%RETRY%a", "%DLQ%a", "a*"]
PATTERNS = ["*", "a", "a*", "ab*", "b", "%RETRY%a", "%*"]
RULES = st.lists(
    st.builds(
        Rule,
        st.lists(st.sampled_from(Action), min_size=1, max_size=3).map(tuple),
        st.sampled_from([Kind.TOPIC, Kind.GROUP]),
        st.sampled_from(PATTERNS),
    ),
    max_size=4,
).map(tuple)


def rights(*allow: str, deny: tuple[str, ...] = ()) -> Rights:
    return Rights(tuple(map(Rule.parse, allow)), tuple(map(Rule.parse, deny)))


@given(RULES, RULES)
def test_what_is_allowed_is_in_a_rule_and_in_none_that_denies(allow: tuple[Rule, ...], deny: tuple[Rule, ...]) -> None:
    def named(rules: tuple[Rule, ...], action: Action, kind: Kind, name: str) -> bool:
        found = [rule for rule in rules if rule.kind is kind and action in rule.actions]
        return any(rule.name == name or (rule.name[-1] == "*" and name[: len(rule.name) - 1] == rule.name[:-1]) for rule in found)

    found = Rights(allow, deny)
    for action, kind, name in product(Action, (Kind.TOPIC, Kind.GROUP), NAMES):
        if kind is Kind.TOPIC and name.startswith("%"):
            prefix = "%RETRY%" if name.startswith("%RETRY%") else "%DLQ%"
            sends = Action.SUB if prefix == "%RETRY%" else Action.UPDATE
            asked = {Action.PUB: sends, Action.SUB: Action.SUB, Action.GET: Action.GET, Action.LIST: Action.LIST}.get(action, Action.UPDATE)
            expected = found.allow_any([asked], Kind.GROUP, name.removeprefix(prefix))
        else:
            expected = named(allow, action, kind, name) and not named(deny, action, kind, name)
        assert found.allow_any([action], kind, name) is expected is found.allow_any([action], kind, name), (action, kind, name)
        assert found.decide(action, kind, name)[0] is expected
    assert Rights(allow, deny, is_super=True).allow_any([Action.DELETE], Kind.CLUSTER, "")


def test_reason_names_the_rule() -> None:
    found = rights("Sub topic:orders*", deny=("Sub,Pub topic:orders-secret",))
    assert found.decide(Action.SUB, Kind.TOPIC, "orders-1") == (True, "allowed by 'Sub topic:orders*'")
    assert found.decide(Action.SUB, Kind.TOPIC, "orders-secret") == (False, "denied by 'Sub,Pub topic:orders-secret'")
    assert found.decide(Action.PUB, Kind.TOPIC, "orders-1") == (False, "no rule allows it")


def test_names_that_a_peer_makes_up_do_not_grow_the_memory() -> None:
    found = rights("Sub topic:a*")
    for number in range(CACHED_MAX + 10):
        found.allow_any([Action.SUB], Kind.TOPIC, f"b{number}")
    assert len(found._decisions) <= CACHED_MAX


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected ACTION"),
        ("Sub", "expected ACTION"),
        ("Sub topic:a b", "expected ACTION"),
        ("sub topic:a", "expected actions of Pub, Sub, Create, Update, Delete, Get, List"),
        ("Sub, topic:a", "expected actions of"),
        ("Sub queue:a", "expected ACTION"),
        ("Sub topic", "expected ACTION"),
        ("Sub topic:", "expected ACTION"),
        ("Get cluster:a", "expected ACTION"),
        ("Sub topic:a*b", "a * is allowed at the end"),
    ],
)
def test_wrong_rule_is_refused_with_its_text(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"rule {text!r}: {words}")):
        Rule.parse(text)


def test_role_gives_rights_in_its_topics_and_groups_and_no_others() -> None:
    """Each role: the actions that it has on topic orders, group billing, another topic, another group, and the cluster."""
    resources = [(Kind.TOPIC, "orders"), (Kind.GROUP, "billing"), (Kind.TOPIC, "other"), (Kind.GROUP, "other"), (Kind.CLUSTER, "")]
    found = {}
    for role in ROLES:
        users = parse_users(user() + f'role = "{role}"\ntopics = ["orders*"]\ngroups = ["billing"]'.encode()).users
        each = users["billing"].rights
        found[role] = ["".join(action[0] for action in Action if each.allow_any([action], *place)) for place in resources]
    assert found == {
        "producer": ["P", "", "", "", ""],
        "consumer": ["S", "S", "", "", ""],
        "viewer": ["GL", "GL", "", "", "GL"],
        "operator": ["CUDGL", "CUDGL", "", "", "UGL"],
    }


@pytest.mark.parametrize(
    ("text", "sees_all"),
    [
        ("super = true", True),
        ('role = "viewer"', True),
        ('role = "operator"', True),
        ('role = "viewer"\ndeny = ["Sub topic:secret*"]', True),
        ('role = "viewer"\ndeny = ["Get topic:secret*"]', False),
        ('role = "viewer"\ndeny = ["Pub,List group:secret"]', False),
        ('role = "viewer"\ntopics = ["*"]\ngroups = ["b*"]', False),
        ('allow = ["Get topic:*", "List group:*"]', False),
        ('allow = ["Get topic:*", "Get group:*"]', True),
        ('allow = ["Get topic:*"]', False),
        ("", False),
    ],
)
def test_user_sees_all_who_may_get_all_names_that_there_will_be(text: str, sees_all: bool) -> None:
    assert parse_users(user() + text.encode()).users["billing"].rights.sees_all == sees_all


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('role = "admin"', "user.billing: role 'admin': expected one of producer, consumer, viewer, operator"),
        ('role = "producer"', "user.billing: role producer needs topics"),
        ('role = "consumer"\ntopics = ["a"]', "user.billing: role consumer needs topics and groups"),
        ('topics = ["a"]', "user.billing: topics and groups are those of a role"),
        ('role = "producer"\ntopics = ["a*b"]', r"user.billing: topics: 'a\*b': expected a name"),
        ('allow = ["Sub"]', "user.billing: rule 'Sub': expected ACTION"),
        ('super = "yes"', "user.billing: super: expected true or false"),
        ("brokers = 1", "user.billing: brokers: expected a text or a list of texts"),
    ],
)
def test_wrong_rights_of_a_user_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_users(user() + text.encode())


def test_user_of_a_broker_registers_it_and_sees_topics() -> None:
    found = parse_users(user() + b'brokers = ["broker-a", "shop-*"]').users["billing"]
    assert [found.may_be_broker(name) for name in ("broker-a", "broker-ab", "shop-1", "")] == [True, False, True, False]
    assert found.rights.allow_any([Action.GET], Kind.TOPIC, "orders")
    assert not found.rights.allow_any([Action.SUB, Action.PUB, Action.DELETE], Kind.TOPIC, "orders")


def test_refusal_about_a_message_tells_its_topic_to_the_audit_alone() -> None:
    with pytest.raises(AccessDeniedError, match="may not Sub or Get the topic of this message") as caught:
        user_of("Sub topic:orders").check_message("payments", Action.SUB, Action.GET)
    assert "payments" not in str(caught.value)
    assert caught.value.resource == "topic:payments"
