"""The login of the dashboard in Chromium, by TLS, on a wide screen and on a telephone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.tab import LIMIT_MS, serving, tab
from support.certificates import write_authority, write_certificate
from support.logins import PASSWORD, write_users
from support.processes import Program, program

if "LOCKSTEP_TEST_BROWSER" not in os.environ:
    pytest.skip("scripts/browser runs these tests", allow_module_level=True)

from playwright.sync_api import Browser, Page  # type: ignore[import-not-found, unused-ignore]

RULES = {
    "panel": 'role = "viewer"',
    "reader": 'role = "viewer"',
    "ops": 'role = "operator"',
    "broker-a": 'brokers = ["broker-a"]',
    "guest": "",
}


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("login") / "users.toml"
    write_users(path, {name: [PASSWORD] for name in RULES}, RULES)
    return path


@pytest.fixture(scope="module")
def closed(users_file: Path) -> Iterator[Program]:
    """Yield a dashboard that allows changes, over servers that require TLS and logins."""
    folder = users_file.parent
    (folder / "password").write_text(PASSWORD)
    cert, key = write_certificate(folder)
    ca = write_authority(folder / "ca.pem")
    tls = ("--tls", "require", "--tls-cert", cert, "--tls-key", key)
    server = ("--listen", "127.0.0.1:0", *tls, "--security", str(users_file))
    with program("lockstep.nameserver", *server, event="nameserver.started") as nameserver:

        def url(user: str) -> str:
            return f"lockstep://{user}@{nameserver.started['address']}/?tls_ca={ca}&password_file={folder / 'password'}"

        broker = ("--name", "broker-a", "--nameserver", url("broker-a"), "--store", str(folder / "store"))
        with (
            program("lockstep.broker", *server, *broker, event="broker.started"),
            serving(url("panel"), "127.0.0.1:0", "--allow-changes", *tls) as made,
        ):
            yield made


def log_in(page: Page, user: str, password: str = PASSWORD) -> None:
    page.fill("[name=user]", user)
    page.fill("[name=password]", password)
    page.press("[name=password]", "Enter")


@pytest.mark.parametrize("width", [390, 1_280])
def test_user_logs_in_may_not_change_and_logs_out(browser: Browser, closed: Program, width: int) -> None:
    made = tab(browser, closed, viewport={"width": width, "height": 800}, ignore_https_errors=True, locale="en")
    page = made.page
    made.open("/topics?q=a")
    page.evaluate(Path(os.environ["LOCKSTEP_TEST_AXE"]).read_text())
    assert page.evaluate("axe.run()")["violations"] == []
    assert page.locator("[name=user]").evaluate("each => each === document.activeElement")
    for user, password, words in (
        ("reader", "wrong password", "the user or the password is wrong"),
        ("guest", PASSWORD, "may not Get cluster"),
    ):
        log_in(page, user, password)
        page.wait_for_selector(f"text={words}", timeout=LIMIT_MS)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.input_value("[name=user]") == user
        assert page.input_value("[name=password]") == ""
    log_in(page, "reader")
    page.wait_for_url("**/topics?q=a", timeout=LIMIT_MS)
    made.until_refreshed()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    assert page.evaluate("document.cookie") == ""
    made.send_form("/changes/topic-create", {"topic": "below", "queues": "1"}, "Show what it does")
    page.click("button.do")
    page.wait_for_selector("text=user reader may not Create", timeout=LIMIT_MS)
    page.click("#logout")
    page.wait_for_selector("[name=password]", timeout=LIMIT_MS)
    made.open("/topics")
    page.wait_for_selector("[name=password]", timeout=LIMIT_MS)
    made.close()


def test_page_that_is_open_leads_to_the_login_when_its_user_is_gone(browser: Browser, closed: Program, users_file: Path) -> None:
    made = tab(browser, closed, ignore_https_errors=True, locale="en")
    made.open("/groups")
    log_in(made.page, "ops")
    made.page.wait_for_selector("text=Log out ops", timeout=LIMIT_MS)
    write_users(users_file, {name: [PASSWORD] for name in RULES if name != "ops"}, RULES)
    made.page.wait_for_selector("text=The session has ended.", timeout=LIMIT_MS)
    made.close()
