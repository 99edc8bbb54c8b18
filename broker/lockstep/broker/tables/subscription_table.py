"""What groups and members subscribe to: equal subscriptions are kept once, and all together have a size in memory."""

from lockstep.protocol.bodies import Subscription

Subscriptions = tuple[Subscription, ...]

SUBSCRIPTION_BYTES = 250
"""Memory of one subscription beside its two texts."""


def estimated_bytes(subscriptions: Subscriptions) -> int:
    """About the memory that they take."""
    return sum([SUBSCRIPTION_BYTES + len(each.topic) + len(each.expression.encode()) for each in subscriptions])


class SubscriptionTable:
    """Subscriptions with the number of those who use them. Each `acquire` is followed by one `release`."""

    def __init__(self) -> None:
        self._used: dict[Subscriptions, tuple[Subscriptions, int]] = {}
        """Subscriptions → the copy that is kept, and how often it is used."""
        self.bytes = 0
        """About the memory that all take."""

    def __len__(self) -> int:
        return len(self._used)

    def additional_bytes(self, subscriptions: Subscriptions) -> int:
        """By how much `acquire` would raise `bytes`."""
        return 0 if subscriptions in self._used else estimated_bytes(subscriptions)

    def acquire(self, subscriptions: Subscriptions) -> Subscriptions:
        """The copy to keep."""
        kept, count = self._used.get(subscriptions, (subscriptions, 0))
        self._used[kept] = kept, count + 1
        if not count:
            self.bytes += estimated_bytes(kept)
        return kept

    def release(self, subscriptions: Subscriptions) -> None:
        """One who took it does not use it any more."""
        kept, count = self._used[subscriptions]
        if count > 1:
            self._used[kept] = kept, count - 1
        else:
            del self._used[kept]
            self.bytes -= estimated_bytes(kept)
