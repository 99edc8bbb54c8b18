"""The pages of a simulated cluster in Chromium: they are accessible, fit the screen, and have small pictures.

`scripts/browser --pictures` writes the pictures to docs/pictures/dashboard.
"""

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from browser.pages import PAGES, PICTURE_BYTES_MAX, PICTURES, PICTURES_BYTES_MAX, Picture, Scheme
from browser.scene import Scene

AXE = os.environ.get("LOCKSTEP_TEST_AXE")
if "LOCKSTEP_TEST_BROWSER" not in os.environ or AXE is None:
    pytest.skip("scripts/browser runs these tests", allow_module_level=True)

from PIL import Image  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from playwright.sync_api import Browser, Page  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

BASE = "http://127.0.0.1:9880"
HEIGHTS_MAX = (1_100, 750, 500)
COLORS = 64
UNLIKE = 100
"""The difference from which two colors have an entry each: less than between the panels and the background."""
Color = tuple[int, int, int]


def opened(browser: Browser, scene: Scene, *, scheme: Scheme, width: int, height: int = 900) -> Page:
    """Return a tab that shows the scene."""
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}, timezone_id="UTC", bypass_csp=True, reduced_motion="reduce"
    )
    scene.show(context)
    return context.new_page()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1_280), ("light", 390), ("dark", 1_280), ("dark", 390)])
def test_every_page_is_accessible_and_fits_the_screen(browser: Browser, scene: Scene, scheme: Scheme, width: int) -> None:
    page = opened(browser, scene, scheme=scheme, width=width)
    assert AXE is not None
    axe = Path(AXE).read_text()
    for each in PAGES:
        page.goto(BASE + scene.path(each))
        page.evaluate(axe)
        wrong = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in wrong] == [], each
        assert page.evaluate("document.documentElement.scrollWidth") <= width, each
    close(page)


def take(browser: Browser, scene: Scene, picture: Picture, folder: Path) -> int:
    """Write the picture of the beginning of a page, with a palette: as much as fits into PICTURE_BYTES_MAX. Return its size in bytes."""
    page = opened(browser, scene, scheme=picture.scheme, width=picture.width, height=100)
    page.goto(BASE + scene.path(picture.page))
    height = page.evaluate("document.documentElement.scrollHeight")
    size = PICTURE_BYTES_MAX + 1
    for height_max in HEIGHTS_MAX:
        if size > PICTURE_BYTES_MAX:
            page.set_viewport_size({"width": picture.width, "height": min(height_max, height)})
            size = save(page.screenshot(), folder / picture.name)
    close(page)
    return size


def save(shot: bytes, path: Path) -> int:
    """Write a screenshot with a palette of its most frequent colors, each unlike the others. Return its size in bytes."""
    image: Any = Image.open(BytesIO(shot)).convert("RGB")
    counted: list[tuple[int, Color]] = sorted(image.getcolors(image.width * image.height), reverse=True)
    palette: list[Color] = []
    for _, color in counted:
        if len(palette) < COLORS and all(difference(color, each) >= UNLIKE for each in palette):
            palette.append(color)
    entry = {color: nearest(palette, color) for _, color in counted}
    small = Image.new("P", image.size)
    small.putpalette([part for color in palette for part in color])
    pixels = image.tobytes()
    small.putdata([entry[color] for color in zip(pixels[::3], pixels[1::3], pixels[2::3], strict=True)])
    small.save(path, optimize=True)
    return path.stat().st_size


def nearest(palette: Sequence[Color], color: Color) -> int:
    """Return the index of the color that is most like this one."""
    return min(range(len(palette)), key=lambda index: difference(palette[index], color))


def difference(one: Color, other: Color) -> int:
    """Return the square of the distance between two colors."""
    return sum((each - part) ** 2 for each, part in zip(one, other, strict=True))


def close(page: Page) -> None:
    """Close a tab, whose parts may be about to refresh."""
    page.context.unroute_all(behavior="ignoreErrors")
    page.context.close()


def test_every_page_has_a_small_picture(browser: Browser, scene: Scene, tmp_path: Path) -> None:
    folder = Path(os.environ.get("LOCKSTEP_TEST_PICTURES", tmp_path))
    sizes = {each.name: take(browser, scene, each, folder) for each in PICTURES}
    assert {name: size for name, size in sizes.items() if size > PICTURE_BYTES_MAX} == {}
    assert sum(sizes.values()) <= PICTURES_BYTES_MAX
