"""What a broker gives to a user by a response: the rights without which it may not, and what belongs to this user by it.

Pure, as wire_readers.py. The rights are those of docs/permissions.md, not those that handlers declare.
"""

from collections.abc import Callable, Iterator

from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from sweep.connections import Frame
from sweep.events.access import Answered, LockGivenUp

NOT_DECIDED = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.UNAUTHENTICATED,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    }
)
"""Responses to sends that say nothing about whose the producer id is."""
Given = tuple[list[str], list[str]]
"""(needs, claims)."""


def _member(group: str, topics: Iterator[str] | list[str]) -> list[str]:
    return [f"Sub group:{group}", *(f"Sub topic:{topic}" for topic in topics)]


def _heartbeat(frame: Frame, request: Frame) -> Given:
    if not frame.ok:
        return [], []
    body, needs = request.body(), []
    for consumer in body.get("consumerDataSet", ()):
        needs += _member(consumer["groupName"], [each["topic"] for each in consumer.get("subscriptionDataSet", ())])
    return needs, [f"client id {body['clientID']}"] if body.get("session") is not None else []


def lock_claim(group: str, topic: str, queue: int, client_id: str) -> str:
    """Return the claim of a classic lock."""
    return f"lock of {client_id} on {group} {topic}:{queue}"


def _lock(frame: Frame, request: Frame) -> Given:
    if not frame.ok:
        return [], []
    asked, given = request.body(), frame.body()
    needs: list[str] = []
    if "items" in asked:
        for item, result in zip(asked["items"], given["items"], strict=True):
            if result["verdict"] == LockVerdict.OK:
                needs += _member(item["group"], [item["topic"]])
        return needs, []
    group, claims = asked["consumerGroup"], []
    for ref in given["lockOKMQSet"]:
        needs += _member(group, [ref["topic"]])
        claims.append(lock_claim(group, ref["topic"], ref["queueId"], asked["clientId"]))
    return needs, claims


def _sync(frame: Frame, request: Frame) -> Given:
    needs: list[str] = []
    if frame.ok and request.command.body:
        for item, result in zip(request.body().get("items", ()), frame.body()["items"], strict=True):
            if result["verdict"] == LockVerdict.OK:
                needs += _member(item["group"], [item["topic"]])
    return needs, []


def _of_member(frame: Frame, request: Frame) -> Given:
    return (_member(request.fields["consumerGroup"], [request.fields["topic"]]) if frame.ok else []), []


def _send(frame: Frame, request: Frame) -> Given:
    producer = request.fields.get("producerId")
    claims = [f"producer id {producer}"] if producer is not None and frame.command.code not in NOT_DECIDED else []
    return ([f"Pub topic:{request.fields['topic']}"] if frame.ok else []), claims


def _send_back(frame: Frame, request: Frame) -> Given:
    return ([f"Sub group:{request.fields['group']}"] if frame.ok else []), []


def _list(frame: Frame, request: Frame) -> Given:
    return ([f"Sub,Get group:{request.fields['consumerGroup']}"] if frame.ok else []), []


def _query(frame: Frame, request: Frame) -> Given:
    group, topic = request.fields["consumerGroup"], request.fields["topic"]
    return ([f"Sub,Get group:{group}", f"Sub,Get topic:{topic}"] if frame.ok else []), []


READERS: dict[int, Callable[[Frame, Frame], Given]] = {
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.SYNC: _sync,
    RequestCode.PULL_MESSAGE: _of_member,
    RequestCode.SEND_RECORDS: _send,
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.RECALL_MESSAGE: _send,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.DEAD_LETTER: _of_member,
    RequestCode.PARK: _of_member,
    RequestCode.UPDATE_CONSUMER_OFFSET: _of_member,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _list,
    RequestCode.QUERY_CONSUMER_OFFSET: _query,
}
"""Request code → the reader of its response."""


def answered(frame: Frame, request: Frame, user: str) -> Answered:
    """Return the event of a response to a user."""
    code = request.command.code
    read = READERS.get(code)
    needs, claims = ([], []) if read is None else read(frame, request)
    return Answered(
        *frame.server,
        frame.link.broker,
        frame.link.connection,
        user,
        code,
        frame.command.code,
        request.t,
        needs=tuple(dict.fromkeys(needs)),
        claims=tuple(claims),
        gives=code == RequestCode.PULL_MESSAGE and frame.ok,
    )


def given_up(request: Frame) -> Iterator[LockGivenUp]:
    """Return the events of a request that frees classic locks."""
    body = request.body()
    for ref in body["mqSet"]:
        claim = lock_claim(body["consumerGroup"], ref["topic"], ref["queueId"], body["clientId"])
        yield LockGivenUp(*request.client, request.link.broker, claim)


def user_of(message: bytes) -> str:
    """Return the user that the first message of a login names; an empty text for another message."""
    return message.decode().partition("n,,n=")[2].partition(",r=")[0]
