"""Subscriptions of groups and members. Equal ones are stored once, and their total memory is known."""

from lockstep.protocol.bodies import Subscription

Subscriptions = tuple[Subscription, ...]

SUBSCRIPTION_BYTES = 250
"""Memory of one subscription without its two texts."""


def estimated_bytes(subscriptions: Subscriptions) -> int:
    """Return about how much memory these subscriptions take."""
    return sum([SUBSCRIPTION_BYTES + len(each.topic) + len(each.expression.encode()) for each in subscriptions])


class SubscriptionTable:
    """A reference-counted table of subscriptions. Each `acquire` is followed by one `release`."""

    def __init__(self) -> None:
        self._used: dict[Subscriptions, tuple[Subscriptions, int]] = {}
        """Subscriptions → the stored copy, and its number of references."""
        self.bytes = 0
        """Estimated memory of all entries."""

    def __len__(self) -> int:
        return len(self._used)

    def additional_bytes(self, subscriptions: Subscriptions) -> int:
        """Return by how much `acquire` would raise `bytes`."""
        return 0 if subscriptions in self._used else estimated_bytes(subscriptions)

    def acquire(self, subscriptions: Subscriptions) -> Subscriptions:
        """Add a reference and return the stored copy."""
        kept, count = self._used.get(subscriptions, (subscriptions, 0))
        self._used[kept] = kept, count + 1
        if not count:
            self.bytes += estimated_bytes(kept)
        return kept

    def release(self, subscriptions: Subscriptions) -> None:
        """Remove a reference. The last one removes the entry."""
        kept, count = self._used[subscriptions]
        if count > 1:
            self._used[kept] = kept, count - 1
        else:
            del self._used[kept]
            self.bytes -= estimated_bytes(kept)
