"""What the pytest plugin and its fixtures share: the settings of a test's marker, and the keys of a test's clock and cluster."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lockstep.testing.clock import TestClock  # noqa: F401
    from lockstep.testing.cluster import TestCluster  # noqa: F401

CLOCK = pytest.StashKey["TestClock"]()
CLUSTER = pytest.StashKey["TestCluster"]()


def settings_of(node: pytest.Item) -> dict[str, Any]:
    """Return the arguments of the test's `lockstep` markers; the nearest marker takes precedence."""
    settings: dict[str, Any] = {}
    for marker in node.iter_markers("lockstep"):
        settings = {**marker.kwargs, **settings}
    return settings
