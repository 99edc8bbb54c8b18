"""The question of the page that explains why a group makes no progress: about all its queues, one of them, or that of a sharding key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.explain.why_query import Diagnosis
from lockstep.operations.explain.why_question import ask
from lockstep.operations.targets import parse_topic_queue
from lockstep.operations.watch.cache import CachedResult
from lockstep.protocol.errors import ConfigError

COST_FACTOR = 4
"""A diagnosis takes a second even if it is cheap, because it looks twice."""


@dataclass(frozen=True, slots=True)
class Question:
    """The subject of a page. Without a queue, a key and a topic: all queues of the group."""

    group: str
    queue: str | None = None
    """TOPIC:QUEUE or TOPIC@BROKER:QUEUE."""
    key: str | None = None
    topic: str | None = None
    """That of the key, or all queues of one topic."""


def question_of(group: str, query: Mapping[str, str]) -> Question:
    """Return the question of a request."""
    return Question(group, query.get("queue", "").strip() or None, query.get("key") or None, query.get("topic", "").strip() or None)


async def answer(admin: AdminClient, question: Question) -> Diagnosis:
    """Examine the subject of the question. A message is no target here: to search for it takes long, and this page asks again and again.

    Raise what `lockstep.operations.explain.why_question.ask` and its Examine raise, and ConfigError for text that names no queue.
    """
    if question.queue is not None and parse_topic_queue(question.queue) is None:
        raise ConfigError(f"{question.queue!r} is no queue: write TOPIC:QUEUE or TOPIC@BROKER:QUEUE, as in orders@broker-a:3")
    examine = await ask(admin, question.group, question.queue, question.key, question.topic)
    return await examine()


def why(question: Question, found: CachedResult[Diagnosis]) -> dict[str, Any]:
    """Return what the page shows."""
    diagnosis = found.value
    return {
        "group": question.group,
        "question": question,
        "found": diagnosis,
        "error": None if found.error is None else str(found.error),
        "others": 0 if diagnosis is None else max(0, len(diagnosis.states) - len(diagnosis.explanations)),
    }
