"""Users with any rights, and an example of each request, for tests of what requests need."""

from collections.abc import Sequence
from itertools import product
from operator import attrgetter
from typing import Any

from lockstep.protocol import bodies
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import JSON, MSGPACK
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.requests.dispatch import HandlerSpec
from lockstep.runtime.requests.needs import InsideNeed, Need, ResourceNeed, SuperNeed
from lockstep.runtime.security.authenticated_user import AccessDeniedError, RequestUser
from lockstep.runtime.security.rights import NO_RIGHTS, Action, Kind, Rights, Rule
from support.wire_values import example_of

DENIAL = "user tester may not "
EVERYTHING = tuple(Rule(tuple(Action), kind) for kind in Kind)
"""All rules; a super user may do more."""


class UserWithRights(RequestUser):
    """A user with rights, who counts how often it was asked for one."""

    name = "tester"

    def __init__(self, rights: Rights = NO_RIGHTS, brokers: Sequence[str] = ()) -> None:
        self.rights = rights
        self.brokers = brokers
        self.asked = 0

    @property
    def is_super(self) -> bool:
        self.asked += 1
        return self.rights.is_super

    def may(self, actions: Sequence[Action], kind: Kind, name: str) -> bool:
        self.asked += 1
        return self.rights.allow_any(actions, kind, name)

    def may_be_broker(self, name: str) -> bool:
        self.asked += 1
        return name in self.brokers

    def refusal(self, what: str) -> AccessDeniedError:
        return AccessDeniedError(f"{DENIAL}{what}")


def user_of(*rules: str) -> UserWithRights:
    """Return a user with these rules."""
    return UserWithRights(Rights(tuple(map(Rule.parse, rules))))


HEARTBEAT = bodies.HeartbeatBody("c", (bodies.ConsumerGroup("g", (bodies.Subscription("t"),)),), session="0" * 32, connection=1)
LAYOUT = TopicLayout("topic", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),))
BODIES: dict[RequestCode, object] = {
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchBody("g", "c", (bodies.QueueRef("t", "broker-a", 0),)),
    RequestCode.UPDATE_AND_CREATE_TOPIC: LAYOUT,
}
"""The bodies that handlers decode themselves."""
CLASSIC_BODIES: dict[RequestCode, bytes] = {
    RequestCode.HEART_BEAT: b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}]}',
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: b'{"groupConfigList":[{"groupName":"g"}]}',
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: b'{"topicConfigList":[{"topicName":"t"}]}',
}
CLASSIC_FIELDS: dict[RequestCode, dict[str, Any]] = {RequestCode.UPDATE_AND_CREATE_TOPIC: {"topic": "t", "readQueueNums": "4"}}
"""What examples of dataclasses would not say, or say in values that are refused for themselves."""


def example(spec: HandlerSpec, *, native: bool) -> tuple[dict[str, Any], bytes]:
    """Return the fields and the body of a request for a handler, in which each name is that of its field."""
    codec, code = CODECS[MSGPACK if native else JSON], RequestCode(spec.code)
    fields = {} if spec.header is None else codec.write_fields(example_of(spec.header))
    if not native and (code in CLASSIC_BODIES or code in CLASSIC_FIELDS):
        return CLASSIC_FIELDS.get(code, fields), CLASSIC_BODIES.get(code, b"")
    if code in BODIES and spec.body is bytes:
        return fields, encode_body(BODIES[code]) if native else codec.write_body(BODIES[code])
    if spec.body in (None, bytes):
        return fields, b"" if spec.body is None else b"body"
    return fields, codec.write_body(example_of(spec.body))


def named_by(need: ResourceNeed, spec: HandlerSpec) -> str:
    """Return the name that the example of a request has in the field of a need."""
    if need.kind is Kind.CLUSTER:
        return "*"
    found = attrgetter(need.field_name)(example_of(spec.body if spec.header is None else spec.header))
    assert isinstance(found, str), need
    return found


def users_with_just(spec: HandlerSpec) -> list[UserWithRights]:
    """Return users who have one of the rights that each need of a handler names, and no other; all of them, if the handler asks itself."""
    needs = resources(spec.needs)
    more = EVERYTHING if any(isinstance(need, InsideNeed) for need in spec.needs) else ()
    is_super = any(isinstance(need, SuperNeed) for need in spec.needs)
    names = {need: CLASSIC_FIELDS.get(RequestCode(spec.code), {}).get(need.field_name) or named_by(need, spec) for need in needs}
    choices = product(*([Rule((action,), need.kind, names[need]) for action in need.actions] for need in needs))
    return [UserWithRights(Rights((*rules, *more), is_super=is_super), ["broker_name", "broker-a"]) for rules in choices]


def resources(needs: Sequence[Need]) -> list[ResourceNeed]:
    return [need for need in needs if isinstance(need, ResourceNeed)]
