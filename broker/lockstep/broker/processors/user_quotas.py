"""What users with limits may still use of this broker (runtime/security/user_limits.py). For others it costs a look at an empty table.

A send above a limit is refused, with the time after which it may be sent again. A pull above one waits (pull.py). Nothing else is counted:
heartbeats, locks, commits and messages that are sent back decide who owns a queue and how far it is. They share a connection with sends, so
none stops being read.
"""

from collections import Counter
from collections.abc import Mapping

from lockstep.protocol.errors import NoPermissionError
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.request import RetryLaterError
from lockstep.runtime.security.token_bucket import TokenBucket
from lockstep.runtime.security.user_limits import NO_LIMITS, UserLimits
from lockstep.runtime.security.users import Users
from lockstep.runtime.security.watched_files import WatchedFiles

RETRY_MS_MIN = 100
"""The shortest time that a refused sender is told to wait: a bucket holds a second's worth, so nothing is lost by it."""
HELD_RETRY_MS = 1_000
"""When a pull may be sent again that was refused because too many wait."""
PULL_SPACING_MS = 2
"""Time between two pulls of a user that are tried again: thousands that wait must not be looked at all at once, again and again."""
NO_LIMITED_USERS: Mapping[str, UserLimits] = {}


class UserBuckets:
    """The buckets of one user; None: no limit."""

    __slots__ = ("bytes_in", "bytes_out", "limits", "pulls_due_ms", "requests")

    def __init__(self, limits: UserLimits, before: "UserBuckets | None", now_ms: int) -> None:
        """`before`: the user's until now, under other limits."""
        requests, bytes_in, bytes_out = (None, None, None) if before is None else (before.requests, before.bytes_in, before.bytes_out)
        self.limits = limits
        self.requests: TokenBucket | None = _bucket(limits.requests_per_s, requests, now_ms)
        self.bytes_in: TokenBucket | None = _bucket(limits.bytes_in_per_s, bytes_in, now_ms)
        self.bytes_out: TokenBucket | None = _bucket(limits.bytes_out_per_s, bytes_out, now_ms)
        self.pulls_due_ms = 0
        """When the last pull that waits is tried again."""


class UserQuotas:
    """The buckets of all users with limits. A change of the limits is in force with the next request, as rights are."""

    def __init__(self, users: WatchedFiles[Users] | None, clock: Clock) -> None:
        """`users`: None if nobody logs in."""
        self._users = users
        self._clock = clock
        self._buckets: dict[str, UserBuckets] = {}
        self.exceeded: Counter[tuple[str, str]] = Counter()
        """(user, limit) → requests that were refused or waited because of it."""

    @property
    def limited(self) -> Mapping[str, UserLimits]:
        """Return the limits of the users who have some."""
        return NO_LIMITED_USERS if self._users is None else self._users.value.limited

    def limits_of(self, user: str) -> UserLimits:
        """Return the limits of a user."""
        return self.limited.get(user, NO_LIMITS)

    def admit_send(self, user: str, size: int) -> None:
        """Count a send of `size` bytes, or raise RetryLaterError."""
        now_ms = self._clock.monotonic_ms()
        buckets = self._of(user, now_ms)
        if buckets is None:
            return
        waits = {"requests_per_s": _wait_ms(buckets.requests, now_ms), "bytes_in_per_s": _wait_ms(buckets.bytes_in, now_ms)}
        limit = max(waits, key=lambda each: waits[each])
        if waits[limit]:
            self.exceeded[user, limit] += 1
            raise RetryLaterError(f"user {user} is above its limit {limit} at this broker", max(waits[limit], RETRY_MS_MIN))
        _take(buckets.requests, 1, now_ms)
        _take(buckets.bytes_in, size, now_ms)

    def admit_pull(self, user: str, *, is_counted: bool) -> bool:
        """Return whether a pull may be served now, and count it. `is_counted`: as a request it was counted before."""
        now_ms = self._clock.monotonic_ms()
        buckets = self._of(user, now_ms)
        if buckets is None:
            return True
        requests = None if is_counted else buckets.requests
        if _wait_ms(requests, now_ms) or _wait_ms(buckets.bytes_out, now_ms):
            return False
        _take(requests, 1, now_ms)
        return True

    def pull_due_ms(self, user: str) -> int:
        """Return when a pull that was not admitted is to be tried again, by the monotonic clock. Each call is another pull."""
        now_ms = self._clock.monotonic_ms()
        buckets = self._of(user, now_ms)
        if buckets is None:
            return now_ms
        requests_ms, bytes_ms = _wait_ms(buckets.requests, now_ms), _wait_ms(buckets.bytes_out, now_ms)
        self.exceeded[user, "requests_per_s" if requests_ms > bytes_ms else "bytes_out_per_s"] += 1
        buckets.pulls_due_ms = max(now_ms + max(requests_ms, bytes_ms), buckets.pulls_due_ms + PULL_SPACING_MS)
        return buckets.pulls_due_ms

    def count_pulled(self, user: str, size: int) -> None:
        """Count bytes that a pull returns."""
        now_ms = self._clock.monotonic_ms()
        buckets = self._of(user, now_ms)
        if buckets is not None:
            _take(buckets.bytes_out, size, now_ms)

    def check_held(self, user: str, held: int) -> None:
        """Raise RetryLaterError if a user of whom `held` pulls wait may not have another one wait."""
        limit = self.limits_of(user).held_pulls
        if limit is not None and held >= limit:
            self.exceeded[user, "held_pulls"] += 1
            raise RetryLaterError(f"{held} pulls of user {user} wait at this broker, its limit held_pulls", HELD_RETRY_MS)

    def check_producer_ids(self, user: str, count: int) -> None:
        """Raise NoPermissionError if a user who sends under `count` producer ids may not send under another one."""
        limit = self.limits_of(user).producer_ids
        if limit is not None and count >= limit:
            self.exceeded[user, "producer_ids"] += 1
            raise NoPermissionError(
                f"user {user} has sent under {count} producer ids at this broker within an hour, its limit producer_ids: use fewer"
            )

    def _of(self, user: str, now_ms: int) -> UserBuckets | None:
        limits = self.limited.get(user)
        if limits is None:
            return None
        buckets = self._buckets.get(user)
        if buckets is None or buckets.limits is not limits:
            buckets = self._buckets[user] = UserBuckets(limits, buckets, now_ms)
        return buckets


def _bucket(rate_per_s: int | None, before: TokenBucket | None, now_ms: int) -> TokenBucket | None:
    if rate_per_s is None or before is None:
        return None if rate_per_s is None else TokenBucket(rate_per_s, now_ms)
    before.change_rate(rate_per_s, now_ms)
    return before


def _wait_ms(bucket: TokenBucket | None, now_ms: int) -> int:
    return 0 if bucket is None else bucket.wait_ms(now_ms)


def _take(bucket: TokenBucket | None, count: int, now_ms: int) -> None:
    if bucket is not None:
        bucket.take(count, now_ms)
