"""docs/dashboard.md: every page of the dashboard is listed, tested in a browser, and shown in a small picture."""

import re
from pathlib import Path
from struct import unpack

import pytest
from starlette.routing import Route, compile_path

from browser.pages import PAGES, PICTURE_BYTES_MAX, PICTURES, PICTURES_BYTES_MAX, Picture
from lockstep.dashboard import Dashboard
from lockstep.runtime.host import Host

DOCS = Path(__file__).resolve().parents[3] / "docs"
FOLDER = DOCS / "pictures/dashboard"
PALETTE = 3
NO_PAGES = ("/messages/{id}/body", "/livez", "/changes/stop-replay", "/changes/{change}/done/{nonce}")
"""Routes without a picture. The outcome of a change has an address only after the change: tests/browser/test_script.py makes some."""


def test_every_route_is_a_page_of_the_list() -> None:
    routes = [route for route in Dashboard("127.0.0.1:1", host=Host.real(), changes=True).routes if isinstance(route, Route)]
    assert len(routes) > 10
    unlisted = [route.path for route in routes if not any(compile_path(route.path)[0].match(page) for page in PAGES)]
    assert unlisted == list(NO_PAGES), "add them to tests/browser/pages.py"


def test_every_page_has_a_picture_and_no_picture_is_left_over() -> None:
    assert {picture.page for picture in PICTURES} == set(PAGES)
    assert {path.name for path in FOLDER.iterdir()} == {picture.name for picture in PICTURES}, "run scripts/browser --pictures"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= PICTURES_BYTES_MAX


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_picture_is_small_and_shown_with_words_for_those_who_do_not_see_it(picture: Picture) -> None:
    data = (FOLDER / picture.name).read_bytes()
    assert len(data) <= PICTURE_BYTES_MAX
    width, _, _, kind = unpack(">IIBB", data[16:26])
    assert (data[:4], width, kind) == (b"\x89PNG", picture.width, PALETTE)
    (words,) = re.findall(
        rf"^!\[(.+)\]\(pictures/dashboard/{re.escape(picture.name)}\)$", (DOCS / "dashboard.md").read_text(), re.MULTILINE
    )
    assert len(words.split()) >= 8
