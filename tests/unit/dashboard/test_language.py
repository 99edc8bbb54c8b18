"""The language of the pages: which one is chosen, and that every text of the templates is translated."""

import re
from pathlib import Path

import pytest
from jinja2 import nodes

from lockstep.dashboard.changes.forms import Form, form_of
from lockstep.dashboard.language import LANGUAGES, LOCALE, catalogue, chosen_language
from lockstep.dashboard.render import HERE, environment
from lockstep.operations.brokers import rates
from lockstep.operations.changes import operation
from lockstep.operations.changes.catalogue import CHANGES
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import dashboard

CHINESE = catalogue("zh-CN")
TEMPLATES = sorted(path.name for path in (HERE / "templates").iterdir())


@pytest.mark.parametrize(
    ("asked", "cookie", "accepted", "language"),
    [
        (None, None, "", "en"),
        (None, None, "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        (None, None, "en-US,en;q=0.9,zh-CN;q=0.8", "en"),
        (None, None, "en;q=0.3, zh-TW;q=0.7", "zh-CN"),
        (None, None, "de, fr;q=0.5", "en"),
        (None, None, "de, zh;q=0.5", "zh-CN"),
        (None, None, "zh;q=0, en", "en"),
        (None, None, "*", "en"),
        (None, None, "zh;q=x,;;,=,q=1," + "a," * 10_000, "en"),
        ("zh-CN", None, "en", "zh-CN"),
        ("en", "zh-CN", "zh", "en"),
        (None, "zh-CN", "en", "zh-CN"),
        ("<script>", "x", "en", "en"),
    ],
)
def test_language_is_the_asked_one_else_the_former_one_else_the_browsers(
    asked: str | None, cookie: str | None, accepted: str, language: str
) -> None:
    assert chosen_language(asked, cookie, accepted) == language


def texts(name: str) -> set[str]:
    """Return the texts that a template translates."""
    calls = environment().parse((HERE / "templates" / name).read_text()).find_all(nodes.Call)
    named = [call.args[0] for call in calls if isinstance(call.node, nodes.Name) and call.node.name == "_"]
    return {text.value for text in named if isinstance(text, nodes.Const)}


def marks(text: str) -> list[str]:
    return sorted(re.findall(r"%\(\w+\)s|</?\w+>", text))


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_text_of_a_template_has_a_chinese_one_with_the_same_values_and_elements(name: str) -> None:
    for text in texts(name):
        assert text in CHINESE, text
        assert marks(text) == marks(CHINESE[text]), text
        assert '"' not in CHINESE[text], "it may be the value of an attribute"


FORMS = [each for each in map(form_of, CHANGES) if each.title]


def texts_of_form(form: Form) -> set[str]:
    """Return the texts of a form that are translated: its title, and labels and hints of its fields, and what stands for a bool."""
    found = {text for each in form.fields for text in (each.label, each.hint, *(each.choices if each.declared.kind is bool else ()))}
    return {form.title, *found} - {""}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_text_of_a_form_has_a_chinese_one(form: Form) -> None:
    assert texts_of_form(form) - CHINESE.keys() == set()


def test_each_language_but_english_has_a_catalogue_and_each_catalogue_a_language() -> None:
    assert {path.stem.replace("_", "-") for path in LOCALE.glob("*.po")} == LANGUAGES.keys() - {"en"}


def test_no_translation_is_left_over() -> None:
    """Those that no template names are words that Python gives to templates."""
    used = set().union(*map(texts, TEMPLATES), *map(texts_of_form, FORMS))
    sources = [*HERE.rglob("*.py"), *(HERE / "templates").iterdir(), Path(rates.__file__), *Path(operation.__file__).parent.iterdir()]
    given = "".join(path.read_text().lower() for path in sources if path.is_file())
    assert [text for text in CHINESE if text not in used and text.lower() not in given] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_have_no_text_that_is_not_translated(name: str) -> None:
    """Text between elements, and attributes that are read to a person, have letters only in code and in the name of the project."""
    source = (HERE / "templates" / name).read_text()
    source = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", source, flags=re.DOTALL)
    shown = re.sub(r"<(code|kbd)>.*?</\1>", "", source, flags=re.DOTALL)
    read = re.findall(r'(?:aria-label|placeholder|title)="([^"]*)"', shown)
    for text in (*re.findall(r">([^<]*)<", shown), *read):
        assert not re.search(r"[A-Za-z]{2,}", text.replace("lockstep", "").replace("&amp;", "")), text


async def test_page_is_in_the_chosen_language_and_stays_in_it(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        english = await get(on.app, "/")
        assert '<html lang="en">' in english.text
        assert "set-cookie" not in english.headers
        chinese = await get(on.app, "/?lang=zh-CN", root="/lockstep")
        assert '<html lang="zh-CN">' in chinese.text
        assert "集群" in chinese.text
        cookie = chinese.headers["set-cookie"]
        assert cookie.startswith("lang=zh-CN;")
        assert "Path=/lockstep" in cookie
        refreshed = await get(on.app, "/?lang=zh-CN", cookie="lang=en", x_part="figures")
        assert "<html" not in refreshed.text
        assert "set-cookie" not in refreshed.headers, "a page that is open chooses the language of all others"
        assert '<html lang="zh-CN">' in (await get(on.app, "/", cookie="lang=zh-CN")).text
        assert '<html lang="zh-CN">' in (await get(on.app, "/groups", accept_language="zh-CN,zh;q=0.9")).text
        assert set(LANGUAGES) == {"en", "zh-CN"}


def test_translated_words_are_escaped_like_all_others() -> None:
    made = environment("zh-CN")
    template = made.from_string('{{ _("No group with %(name)s", name=name) }}{% trans n=name %}so {{ n }}{% endtrans %}')
    assert "<script>" not in template.render(name="<script>")
    assert isinstance(made.parse(""), nodes.Template)
