"""Assign keys to the rows of a run, in a closed form, so that the expected rows of each key follow from the manifest.

Keys are assigned in cycles: row i has position i mod length of cycle i div length. Without skew a cycle contains each key once; with skew s
key k (from 0) occurs in it about in proportion to 1/(k+1)^s, at positions that the seed determines. A key's `seq` counts its rows from 0.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lockstep.protocol.errors import ConfigError

CYCLE_MAX = 1_000_000
SKEWED_LENGTH = 100_000
"""Approximate length of a cycle with skew; at least ten times the number of keys."""


@dataclass(frozen=True)
class KeyShares:
    """The assignment of rows to the keys 0 to keys−1."""

    keys: int
    skew: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.keys < 1 or self.skew < 0:
            raise ConfigError(f"{self.keys} keys with skew {self.skew}: expected 1 or more keys, and a skew of 0 or more")
        if self.skew and 10 * self.keys > CYCLE_MAX:
            raise ConfigError(f"{self.keys} keys with a skew: at most {CYCLE_MAX // 10} are allowed; use fewer keys, or no skew")

    @cached_property
    def weights(self) -> Sequence[int]:
        """Return how often each key occurs in a cycle; at least once."""
        if not self.skew:
            return [1] * self.keys
        shares = [(key + 1) ** -self.skew for key in range(self.keys)]
        scale = max(SKEWED_LENGTH, 10 * self.keys) / sum(shares)
        return [max(1, round(scale * share)) for share in shares]

    @cached_property
    def length(self) -> int:
        return sum(self.weights)

    @cached_property
    def positions(self) -> list[tuple[int, int]]:
        """Return (key, number of its earlier occurrences) for each position of a cycle. Only with skew: else position p has key p."""
        keys = [key for key, weight in enumerate(self.weights) for _ in range(weight)]
        order = sorted(range(len(keys)), key=lambda place: (zlib.crc32(f"{self.seed}:{place}".encode()), place))
        seen = [0] * self.keys
        positions = []
        for place in order:
            key = keys[place]
            positions.append((key, seen[key]))
            seen[key] += 1
        return positions

    def counts(self, rows: int) -> list[int]:
        """Return how many of the first `rows` rows each key has."""
        cycles, rest = divmod(rows, self.length)
        counts = [cycles * weight for weight in self.weights]
        for key in range(rest) if not self.skew else (key for key, _ in self.positions[:rest]):
            counts[key] += 1
        return counts
