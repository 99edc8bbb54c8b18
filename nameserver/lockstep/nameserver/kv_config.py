"""Key-value settings of RocketMQ's tools, in memory. RocketMQ: KVConfigManager.

There is one namespace: ORDER_TOPIC_CONFIG, in which `mqadmin updateOrderConf` and `updateTopic -o true` keep "BROKER:QUEUES;…" for a topic.
It has no effect on routes, as in RocketMQ without its setting orderMessageEnable. It is forgotten when the nameserver stops.
"""

from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, QueryNotFoundError
from lockstep.protocol.names import check_topic

NAMESPACE = "ORDER_TOPIC_CONFIG"
VALUE_CHARACTERS_MAX = 2_048
CHARACTERS_MAX = 4 << 20
"""Characters of all keys and values: the response with all of them must fit a frame."""


class KvConfig:
    """A table of topic → value. Pure."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._characters = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raise NoPermissionError for another namespace or if there is no room, LocalProtocolError for a key that is no topic's name or a
        value that is too long."""
        self._check_namespace(namespace)
        check_topic(key)
        if len(value) > VALUE_CHARACTERS_MAX:
            raise LocalProtocolError(f"the value of {key} has {len(value)} characters: at most {VALUE_CHARACTERS_MAX}")
        more = len(value) - len(self._values[key]) if key in self._values else len(key) + len(value)
        if self._characters + more > CHARACTERS_MAX:
            raise NoPermissionError(f"{NAMESPACE} has {self._characters} characters, {CHARACTERS_MAX} are allowed: delete entries")
        self._values[key] = value
        self._characters += more

    def find(self, namespace: str, key: str) -> str | None:
        """Return the value, or None if there is none."""
        return self._values.get(key) if namespace == NAMESPACE else None

    def get(self, namespace: str, key: str) -> str:
        """Return the value. Raise QueryNotFoundError if there is none."""
        value = self.find(namespace, key)
        if value is None:
            raise QueryNotFoundError(f"no value of {key[:80]!r} in namespace {namespace[:80]!r}")
        return value

    def delete(self, namespace: str, key: str) -> None:
        """As in RocketMQ, deleting a key without a value succeeds. Raise NoPermissionError for another namespace."""
        self._check_namespace(namespace)
        if (value := self._values.pop(key, None)) is not None:
            self._characters -= len(key) + len(value)

    def table(self, namespace: str) -> dict[str, str]:
        """Return all values, sorted by key. Raise QueryNotFoundError if there are none."""
        if namespace != NAMESPACE or not self._values:
            raise QueryNotFoundError(f"nothing is stored in namespace {namespace[:80]!r}")
        return dict(sorted(self._values.items()))

    @staticmethod
    def _check_namespace(namespace: str) -> None:
        if namespace != NAMESPACE:
            raise NoPermissionError(f"namespace {namespace[:80]!r} can't be changed: only {NAMESPACE} is supported")
