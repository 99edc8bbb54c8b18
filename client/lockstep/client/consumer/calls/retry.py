"""How an ordered group retries a batch. RocketMQ: ConsumeMessageOrderlyService."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.settings import Range, check_settings

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
"""The pause between two calls with one batch is 10 to 30,000 ms."""

BLOCKED_AFTER_ATTEMPTS = 3
"""With unlimited attempts, QueueBlocked is reported after this many failed calls, and each time the number has doubled."""


def clamp_suspend_ms(suspend_ms: float) -> int:
    """Return the allowed pause that is closest to `suspend_ms`."""
    return int(min(max(suspend_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX))


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before each retry of a batch: first_ms · factor^(n−1) before the n-th retry, at most max_ms, always 10 to 30,000 ms.

    Raises:
        ConfigError: A number has the wrong type or is out of range, or `max_ms` is less than `first_ms`.
    """

    first_ms: Annotated[int, Range(1)] = 1_000
    """The pause before the first retry, in milliseconds."""
    factor: Annotated[float, Range(1, 1_000)] = 2.0
    """Each further pause is longer by this factor."""
    max_ms: Annotated[int, Range(1)] = SUSPEND_MS_MAX
    """The longest pause, in milliseconds."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_ms < self.first_ms:
            raise ConfigError(f"max_ms is {self.max_ms!r}: expected at least first_ms, which is {self.first_ms!r}")

    def pause_ms(self, attempts: int) -> int:
        """Return the pause before the next call.

        Args:
            attempts: The number of failed calls so far, at least 1.

        Returns:
            Milliseconds, 10 to 30,000.
        """
        exponent = min(attempts - 1, 64)  # any factor > 1 has reached max_ms long before; this bounds the power
        return clamp_suspend_ms(min(self.first_ms * self.factor**exponent, self.max_ms))


@dataclass(frozen=True, slots=True)
class OrderedRetry:
    """What happens to a batch that fails: its listener raised, returned SUSPEND, or returned something that is neither None nor a status.

    By default a batch is retried until it succeeds, with a growing pause, as RocketMQ does. With `max_attempts` and
    `on_exhausted="block"`, the queue is blocked after that many failed calls and QueueBlocked is reported; the next grant (a restart, a
    move) or `consumer.resume()` allows one more call. With `on_exhausted="dlq"` the broker copies the batch's messages to the topic
    `%DLQ%group` and moves the group's progress past them, and the queue goes on. Failed calls are stored with the progress: neither a move
    nor a restart resets the count. No message is skipped. With order_by="sharding_key" all this applies to the key instead of the queue,
    and the count of a key that is not the oldest unfinished one begins again after a move.

    With `on_exhausted="park"` the sharding key of the failed message is set aside: its messages from there on wait at the broker, and every
    other message of the queue goes on. `lockstep park replay` brings the key back, in order, when the cause is removed. A failed batch is
    called again message by message, so that the right key is parked. A message without a key can't be parked: it blocks, as with "block".

    The policy is part of the group's contract: all members must have the same.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or `on_exhausted` is "dlq" or "park" without `max_attempts`.
    """

    max_attempts: Annotated[int | None, Range(1)] = None
    """Failed calls of a batch before `on_exhausted` applies; None: unlimited."""
    backoff: Backoff = Backoff()
    """The pause between two calls."""
    on_exhausted: Literal["block", "dlq", "park"] = "block"
    """"block": the queue waits for a new grant or `resume()`. "dlq": the batch goes to the dead-letter topic. "park": the message's key is
    set aside."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.on_exhausted != "block" and self.max_attempts is None:
            raise ConfigError(f'on_exhausted "{self.on_exhausted}" needs max_attempts: unlimited attempts are never exhausted')

    def __str__(self) -> str:
        """Return the policy as members compare it."""
        pause = f"pause {self.backoff.first_ms} ms x{self.backoff.factor:g} up to {self.backoff.max_ms} ms"
        return f"unlimited, {pause}" if self.max_attempts is None else f"{self.max_attempts} attempts, {pause}, then {self.on_exhausted}"

    def is_blocked(self, attempts: int) -> bool:
        """Return whether health() shows a queue as blocked after so many failed calls of its first batch. It may be called again."""
        return attempts >= (BLOCKED_AFTER_ATTEMPTS if self.max_attempts is None else self.max_attempts)

    def exhausted(self, attempts: int) -> bool:
        """Return whether `on_exhausted` applies after this many failed calls. Never if attempts are unlimited."""
        return self.max_attempts is not None and attempts >= self.max_attempts

    def blocks(self, attempts: int) -> bool:
        """Return whether the batch is not called again after this many failed calls."""
        return self.on_exhausted == "block" and self.exhausted(attempts)

    def gives_up(self, attempts: int) -> bool:
        """Return whether the batch is dead-lettered after this many failed calls."""
        return self.on_exhausted == "dlq" and self.exhausted(attempts)

    def parks(self, attempts: int) -> bool:
        """Return whether the message's key is parked after this many failed calls."""
        return self.on_exhausted == "park" and self.exhausted(attempts)

    def reports_blocked(self, attempts: int) -> bool:
        """Return whether QueueBlocked is reported after this failed call, the `attempts`th."""
        if self.max_attempts is not None:
            return attempts >= self.max_attempts
        step, rest = divmod(attempts, BLOCKED_AFTER_ATTEMPTS)
        return rest == 0 and step > 0 and step & (step - 1) == 0


RETRY_UNLIMITED = OrderedRetry()
"""The default: as RocketMQ."""
