"""The pages of the dashboard, in one list: for the tests in a browser and for the pictures in docs/pictures/dashboard."""

from dataclasses import dataclass
from typing import Literal

Scheme = Literal["light", "dark"]
TOPIC, GROUP = "orders", "billing"
MESSAGE = "MESSAGE"
"""Stands for the id of a message in the topic."""
PAGES = (
    *(
        "/",
        "/topics",
        f"/topics/{TOPIC}",
        f"/topics/{TOPIC}/messages",
        f"/topics/{TOPIC}/tail",
        f"/topics/{TOPIC}/waiting",
        f"/topics/{TOPIC}/transactions",
        "/messages",
        f"/messages/{MESSAGE}",
    ),
    *("/groups", f"/groups/{GROUP}", f"/groups/{GROUP}/why", f"/groups/{GROUP}/parked", "/groups/mailing/dead"),
    *("/delays", "/delays/waiting", "/transactions", "/settings", "/doctor"),
    *("/changes", "/changes/group-reset"),
)
"""Every page, over a cluster that has this topic, this group and this message."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page."""

    name: str
    """The name of its file."""
    page: str
    width: int = 1_280
    scheme: Scheme = "light"


def _name(page: str) -> str:
    return page.replace(MESSAGE, "message").strip("/").replace("/", "-") or "cluster"


PICTURES = (
    *(Picture(f"{_name(page)}.png", page) for page in PAGES),
    Picture("cluster-dark.png", "/", scheme="dark"),
    Picture("groups-billing-narrow.png", f"/groups/{GROUP}", width=390),
)
"""What docs/dashboard.md shows. `scripts/browser --pictures` takes them."""
PICTURE_BYTES_MAX = 60_000
PICTURES_BYTES_MAX = 720_000
