"""Hostile requests as a client of RocketMQ could send them: JSON or binary headers, and JSON bodies. The seed determines the stream."""

import inspect
import json
import pkgutil
from copy import deepcopy
from importlib import import_module
from struct import pack
from typing import Any

import lockstep.broker
import lockstep.nameserver
from lockstep.protocol.bodies import LockBatchBody
from lockstep.protocol.codes import RequestCode as R
from lockstep.runtime.requests.dispatch import HandlerSpec
from support.hostile import EXTREME, Hostile
from support.java_wire import BINARY, JSON, batch

PACKAGES = {"broker": lockstep.broker, "nameserver": lockstep.nameserver}
HOSTILE = (*(each for each in EXTREME if not isinstance(each, bytes)), [], {}, [[]], {"a": {"b": []}}, 10**4_000, 1e300, "9" * 4_400, "1e5")
"""Values for any place of a JSON text. `json.dumps` writes half a surrogate pair as an escape, and NaN and Infinity as such."""
RAW = (
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 5_000,
    '"\\ud800"',
    '"\\udfff\\ud800"',
    "[" * 100_000,
    '{"a":' * 50_000,
    "01",
    "'x'",
    '"',
    "{a:1}",
)
"""Texts for any place of a JSON text that are not JSON, or not within the limits."""


def classic_handlers(server: str) -> dict[int, HandlerSpec]:
    """Return the handlers of a server that serve RocketMQ's clients, by code."""
    found: dict[int, HandlerSpec] = {}
    package = PACKAGES[server]
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
                for _, method in inspect.getmembers(kind, inspect.isfunction):
                    found |= {spec.code: spec for spec in getattr(method, "__handles__", ()) if spec.classic}
    return found


def heartbeat(group: str = "fuzz-group", topic: str = "fuzz") -> dict[str, Any]:
    """Return a heartbeat as Java writes it."""
    subscription = {"classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*", "subVersion": 1, "tagsSet": []}
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{**subscription, "topic": topic}, {**subscription, "topic": "fuzz-2"}],
        "unitMode": False,
    }
    return {"clientID": "fuzz@1", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "fuzz-group"}]}


class HostileJava(Hostile):
    """A source of random frames for one code after the other."""

    def frame(self, spec: HandlerSpec, kind: int, opaque: int) -> bytes:
        """Return a whole frame with a mostly plausible header and body."""
        fields = {} if spec.header is None else self._header(spec.header)
        if self.random.random() < 0.1:
            fields[self.random.choice(("", "unknown", "queueId", "x" * 200))] = self._extreme()
        header = self.binary(spec.code, opaque, fields) if kind == BINARY else self._json_header(spec.code, opaque, fields)
        if self.random.random() < 0.02:
            header = self._damaged(header)
        body = self._java_body(spec)
        return pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body

    def binary(self, code: int, opaque: int, fields: dict[str, Any]) -> bytes:
        texts = [(str(name).encode("utf-8", "replace")[:30_000], text(value)) for name, value in fields.items() if value is not None]
        entries = b"".join(pack(">h", len(name)) + name + pack(">i", len(value)) + value for name, value in texts)
        return pack(">hbhiiii", code, 0, 409, opaque, 0, 0, len(entries)) + entries

    def _json_header(self, code: int, opaque: int, fields: dict[str, Any]) -> bytes:
        plain = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409}
        return self._json(plain) if self.random.random() < 0.05 else json.dumps(plain, default=repr).encode()

    def _java_body(self, spec: HandlerSpec) -> bytes:
        draw = self.random.random()
        if spec.code == R.HEART_BEAT:
            return self._json(heartbeat())
        if spec.code == R.LOCK_BATCH_MQ:
            return self._json(self._dataclass(LockBatchBody, 0.05))
        if spec.body is not None and spec.body is not bytes:
            return self._json(self._dataclass(spec.body, 0.05))
        if draw < 0.3:
            return self._bytes()
        return self._damaged(batch((b"x", "TAGS\x01a"), (b"y", ""))) if draw < 0.6 else b"x"

    def _json(self, plain: Any) -> bytes:
        """Return a value as JSON: with a hostile value at some places, a text that is no JSON, or damaged bytes."""
        draw = self.random.random()
        if draw < 0.7:
            for _ in range(self.random.choice((0, 1, 1, 1, 2, 5))):
                self._spoil(plain)
        data = json.dumps(plain, default=repr).encode()
        if draw < 0.9:
            return data
        if draw < 0.95:
            return self._damaged(data)
        parts = data.split(b":")
        at = self.random.randrange(1, len(parts)) if len(parts) > 1 else 0
        parts[at] = self.random.choice(RAW).encode() + self.random.choice((b"", parts[at][-1:], b"," + parts[at]))
        return b":".join(parts)

    def _spoil(self, plain: Any) -> None:
        """Replace one place, at any depth."""
        while isinstance(plain, dict | list) and plain:
            place = self.random.choice(list(plain)) if isinstance(plain, dict) else self.random.randrange(len(plain))
            if not isinstance(plain[place], dict | list) or not plain[place] or self.random.random() < 0.3:
                if isinstance(plain, dict) and self.random.random() < 0.2:
                    del plain[place]
                else:
                    plain[place] = deepcopy(self.random.choice(HOSTILE))  # which is spoiled itself later
                return
            plain = plain[place]

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            if changed:
                changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)


def text(value: Any) -> bytes:
    return ("true" if value is True else "false" if value is False else str(value)).encode("utf-8", "surrogatepass")


def broken_frames() -> dict[str, tuple[bytes, str]]:
    """Return frames that close their connection: name → (bytes, what the log says)."""

    def framed(header: bytes, kind: int) -> bytes:
        return pack(">iI", 4 + len(header), kind << 24 | len(header)) + header

    def fields(*raw: bytes) -> bytes:
        data = b"".join(raw)
        return pack(">hbhiiii", 310, 0, 409, 1, 0, 0, len(data)) + data

    many = json.dumps({"code": 310, "extFields": {str(number): "" for number in range(129)}}).encode()
    values = {
        "half a surrogate pair": (b'"\\ud800"', "half of a surrogate pair"),
        "half a pair as a name": (b'"","\\udead":""', "half of a surrogate pair"),
        "nested 60,000 deep": (b"[" * 60_000, "nested too deeply"),
        "closed 30,000 deep": (b"[" * 30_000 + b"]" * 30_000, "nested too deeply"),
        "nested 100,000 deep": (b"[" * 100_000, "more than 65536 elements"),
        "5,000 digits": (b"9" * 5_000, "not JSON that can be read"),
        "NaN": (b"NaN", "not a number"),
        "Infinity": (b"-Infinity", "not a number"),
        "too large to be finite": (b"1e999", "too large for a number"),
        "a list": (b"[]", "a value that is an object or a list"),
        "no UTF-8": (b'"\xff"', "not JSON that can be read"),
    }
    found = {
        f"JSON: {name}": (framed(b'{"code":310,"opaque":1,"extFields":{"b":' + raw + b"}}", JSON), reason)
        for name, (raw, reason) in values.items()
    }
    return found | {
        "JSON: empty": (framed(b"", JSON), "not JSON that can be read"),
        "JSON: cut off": (framed(b'{"code":310,"extFields":{"b":"x', JSON), "not JSON that can be read"),
        "JSON: a list as header": (framed(b"[]", JSON), "not a JSON object"),
        "JSON: code is a text": (framed(b'{"code":"x"}', JSON), "code is not an int32"),
        "JSON: opaque too large": (framed(b'{"opaque":4294967296}', JSON), "opaque is not an int32"),
        "JSON: 129 fields": (framed(many, JSON), "at most 128 members"),
        "JSON: commas": (framed(b"[" + b"0," * 100_000 + b"0]", JSON), "elements"),
        "binary: empty": (framed(b"", BINARY), "binary header can't be read"),
        "binary: cut off": (framed(fields()[:10], BINARY), "binary header can't be read"),
        "binary: fields beyond the header": (framed(fields()[:-4] + pack(">i", 9), BINARY), "fields of 9 bytes"),
        "binary: fields of negative length": (framed(fields()[:-4] + pack(">i", -1), BINARY), "fields of -1 bytes"),
        "binary: name beyond the header": (framed(fields(pack(">h", 999)), BINARY), "a text of 999 bytes"),
        "binary: value of 2 GiB": (framed(fields(pack(">h", 1), b"b", pack(">i", 2**31 - 1)), BINARY), "a text of 2147483647 bytes"),
        "binary: no UTF-8": (framed(fields(pack(">h", 1), b"b", pack(">i", 1), b"\xff"), BINARY), "binary header can't be read"),
        "binary: half a pair": (framed(fields(pack(">h", 1), b"b", pack(">i", 3), b"\xed\xa0\x80"), BINARY), "binary header can't be read"),
        "binary: 129 fields": (framed(fields((pack(">h", 1) + b"b" + pack(">i", 0)) * 129), BINARY), "more than 128 fields"),
    }
