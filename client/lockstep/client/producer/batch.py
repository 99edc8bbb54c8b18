"""The parcels of one `send_batch`, and their results in the order of its messages."""

from collections.abc import Sequence

from lockstep.client.errors import BatchSendError
from lockstep.client.producer.batcher import Parcel
from lockstep.client.producer.result import SendResult
from lockstep.protocol.errors import LockstepError


class Batch:
    """What was posted, each with the places of its messages in the user's list."""

    __slots__ = ("_count", "_places", "parcels")

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: list[Sequence[int]] = []
        self.parcels: list[Parcel] = []

    def add(self, parcel: Parcel, places: Sequence[int]) -> None:
        self.parcels.append(parcel)
        self._places.append(places)

    async def results(self) -> list[SendResult]:
        """Wait for all of them; BatchSendError if any failed."""
        if len(self.parcels) == 1:
            try:
                only: list[SendResult] = await self.parcels[0].future
            except LockstepError as error:
                raise BatchSendError([error] * self._count) from error
            return only
        results: list[SendResult | None] = [None] * self._count
        errors: dict[int, Exception] = {}
        for parcel, places in zip(self.parcels, self._places, strict=True):
            try:
                answered = await parcel.future
            except LockstepError as error:
                errors.update((place, error) for place in places)
            else:
                for place, result in zip(places, answered, strict=True):
                    results[place] = result
        if errors:
            first = errors[min(errors)]
            raise BatchSendError([errors.get(place) or result for place, result in enumerate(results)]) from first  # type: ignore[misc]
        return results  # type: ignore[return-value]
