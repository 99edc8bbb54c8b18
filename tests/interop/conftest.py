"""Fixtures: lines for the end of the run."""

import pytest

from support.cluster import MEASURED, Report


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Print a line at the end of the run."""
    return lambda line: request.node.user_properties.append((MEASURED, line))
