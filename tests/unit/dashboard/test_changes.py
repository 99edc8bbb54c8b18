"""Changes: planned, shown, confirmed, carried out as their commands do it; refused without the name, the token, or the same plan."""

import asyncio
import html
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lockstep.client import PushConsumer
from lockstep.dashboard import Dashboard
from lockstep.dashboard.access.form_body import FORM_BYTES_MAX, FORM_S
from lockstep.dashboard.changes.forms import Form, form_of
from lockstep.dashboard.changes.outcomes import KEPT_MAX, Outcomes, PlanOutcome
from lockstep.operations.brokers.replicas import LogCopy, copies
from lockstep.operations.changes import catalogue
from lockstep.operations.watch.cache import Cache
from lockstep.protocol.bodies import RegisterStanding, ReplicaStanding
from lockstep.protocol.errors import TopicNotExistError
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import Got, get, post
from support.command_lines import check_command
from support.panel import checked
from support.parked_group import Group, until_parked
from support.queue_moves import consuming
from support.why_kit import GROUP, TOPIC, Member, send

CHANGES: Mapping[str, Form] = {each.path: form_of(each) for each in catalogue.CHANGES if each.title is not None}


class Panel:
    """A dashboard that may change things, and its forms."""

    def __init__(self, made: Dashboard) -> None:
        self.dashboard = made

    async def form(self, name: str, **values: str) -> dict[str, str]:
        """Return the fields of the plan's form, after the form itself was sent with these values."""
        first = fields(await get(self.dashboard.app, f"/changes/{name}"))
        return fields(await self.sent(name, {**first, **values}))

    async def sent(self, name: str, form: Mapping[str, str]) -> Got:
        return await post(self.dashboard.app, f"/changes/{name}", form)

    async def planned(self, name: str, **values: str) -> str:
        """Return the page of the plan, as words."""
        first = fields(await get(self.dashboard.app, f"/changes/{name}"))
        return words(await self.sent(name, {**first, **values}))

    async def done(self, name: str, typed: str = "", **values: str) -> str:
        """Carry a change out. Return the page that says what was done, as words."""
        form = await self.form(name, **values)
        got = await self.carried_out(name, {**form, "typed": typed})
        assert got.status == 200, words(got)
        return words(got)

    async def carried_out(self, name: str, form: Mapping[str, str]) -> Got:
        """Return the page to which the confirmed form of a plan leads."""
        got = await self.sent(name, form)
        return await get(self.dashboard.app, got.headers["location"]) if got.status == 303 else got


def fields(got: Got) -> dict[str, str]:
    """Return the fields of the page's form with what they have."""
    found = {}
    for tag in re.findall(r"<input[^>]*>", got.text.partition('method="post"')[2]):
        named = {name: html.unescape(value) for name, value in re.findall(r'(\w+)="([^"]*)"', tag)}
        if "name" in named:
            found[named["name"]] = named.get("value", "")
    for name, inner in re.findall(r'<select name="(\w+)">(.*?)</select>', got.text, re.DOTALL):
        chosen = re.search(r'<option value="([^"]*)" selected>', inner)
        found[name] = html.unescape(chosen[1]) if chosen else ""
    for name, inner in re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', got.text, re.DOTALL):
        found[name] = html.unescape(inner)
    return found


def words(got: Got) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", got.text.partition("<h1>")[2])).split())


@asynccontextmanager
async def panel(cluster: TestCluster) -> AsyncIterator[Panel]:
    made = Dashboard(cluster.nameserver, host=Host.current(), changes=True)
    await made.start()
    try:
        yield Panel(made)
    finally:
        await made.stop()


async def queues_of(on: Panel, topic: str) -> int:
    return len((await on.dashboard.watch.admin.route(topic)).layout.write_queues)


async def progress(cluster: TestCluster) -> dict[str, int | None]:
    found = await cluster.group_status(GROUP)
    assert found is not None
    return {str(line.queue): line.committed_offset for line in found.queues}


# ------------------------------------------------------------------------------------------------------------ what is refused


async def test_without_permission_there_is_no_form_and_no_change(lockstep_cluster: TestCluster) -> None:
    made = Dashboard(lockstep_cluster.nameserver, host=Host.current())
    for name in CHANGES:
        assert (await get(made.app, f"/changes/{name}")).status == 404
        assert (await post(made.app, f"/changes/{name}", {})).status == 405
    assert "changes" not in (await get(made.app, "/")).text.lower()
    await made.stop()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"sec_fetch_site": "cross-site", "origin": "http://127.0.0.1:9880"}, 403),
        ({"origin": "http://127.0.0.1:9880"}, 200),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({}, 403),
    ],
)
async def test_form_must_come_from_a_page_of_the_dashboard(lockstep_cluster: TestCluster, headers: dict[str, str], status: int) -> None:
    async with panel(lockstep_cluster) as on:
        form = fields(await get(on.dashboard.app, "/changes/topic-create"))
        data = "&".join(f"{name}={value}" for name, value in {**form, "topic": TOPIC}.items()).encode()
        kind = "application/x-www-form-urlencoded"
        got = await get(on.dashboard.app, "/changes/topic-create", method="POST", data=data, content_type=kind, **headers)  # type: ignore[arg-type]
        assert got.status == status
        assert ("is created, with 4 queues" in words(got)) == (status == 200)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_no_other_method_is_accepted(lockstep_cluster: TestCluster, method: str) -> None:
    async with panel(lockstep_cluster) as on:
        got = await get(on.dashboard.app, "/changes/topic-create", method=method, sec_fetch_site="same-origin")
        assert got.status == 405


@pytest.mark.parametrize("token", ["", "guessed", "\u202e", None])
async def test_form_without_the_token_changes_nothing(lockstep_cluster: TestCluster, token: str | None) -> None:
    async with panel(lockstep_cluster) as on:
        form = await on.form("topic-create", topic=TOPIC)
        if token is None:
            del form["token"]
        else:
            form["token"] = token
        got = await on.sent("topic-create", form)
        assert (got.status, "nothing was changed" in words(got)) == (403, True)
        with pytest.raises(TopicNotExistError):
            await on.dashboard.watch.admin.route(TOPIC)


async def test_change_needs_the_name_and_the_plan_that_was_shown(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    async with panel(cluster) as on:
        form = await on.form("topic-alter", topic=TOPIC, queues="4")
        for typed in ("", "Orders", "other"):
            got = await on.sent("topic-alter", {**form, "typed": typed})
            assert (got.status, "nothing was done" in words(got)) == (409, True)
        assert await queues_of(on, TOPIC) == 4
        changed = await on.sent("topic-alter", {**form, "typed": TOPIC, "queues": "8"})
        assert (changed.status, "things have changed" in words(changed)) == (409, True)
        await on.done("topic-alter", typed=TOPIC, topic=TOPIC, queues="3")
        stale = await on.sent("topic-alter", {**form, "typed": TOPIC})
        assert (stale.status, "things have changed" in words(stale)) == (409, True)
        assert await queues_of(on, TOPIC) == 6
        assert (await on.carried_out("topic-alter", {**fields(stale), "typed": TOPIC})).status == 200
        assert await queues_of(on, TOPIC) == 8


async def test_confirmed_plan_is_carried_out_once(lockstep_cluster: TestCluster) -> None:
    """A second click, or a reload of the answer, would send the message again."""
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    async with panel(lockstep_cluster) as on:
        admin = on.dashboard.watch.admin
        form = await on.form("send", topic=TOPIC, body="x", key="k")
        first, second = await asyncio.gather(on.sent("send", form), on.sent("send", form))
        third = await on.sent("send", form)
        assert [each.status for each in (first, second, third)] == [303] * 3
        (place,) = {each.headers["location"] for each in (first, second, third)}
        page = await get(on.dashboard.app, place)
        assert "Done" in words(page)
        assert words(await get(on.dashboard.app, place)) == words(page)
        offsets = [await admin.offsets(broker, TOPIC) for broker in await admin.brokers()]
        assert sum(queue.max_offset for queues in offsets for queue in queues) == 1
        again = await on.done("send", topic=TOPIC, body="x", key="k")
        assert again != words(page)


async def test_outcome_that_is_not_known_yet_or_not_at_all(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    async with panel(lockstep_cluster) as on:
        changes = on.dashboard._changes
        assert changes is not None
        changes._outcomes.begin("a" * 32)
        assert "It is being carried out." in words(await get(on.dashboard.app, f"/changes/send/done/{'a' * 32}"))
        for path in (f"/changes/send/done/{'b' * 32}", f"/changes/nothing/done/{'a' * 32}"):
            assert (await get(on.dashboard.app, path)).status == 404
        form = await on.form("send", topic=TOPIC, body="x")
        for nonce in ("", "x", "é" * 32, "A" * 32):
            got = await on.sent("send", {**form, "nonce": nonce})
            assert (got.status, "nothing was done" in words(got)) == (409, True), nonce


async def test_second_click_on_a_plan_that_fails_leads_to_the_reason(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    async with panel(lockstep_cluster) as on:
        form = await on.form("send", topic=TOPIC, body="x")

        async def fails(*_: object, **__: object) -> None:
            await asyncio.sleep(1)
            raise TopicNotExistError("it was deleted meanwhile")

        monkeypatch.setattr("lockstep.operations.changes.send.send_message", fails)
        first, second = await asyncio.gather(on.sent("send", form), on.sent("send", form))
        assert (first.status, "it was deleted meanwhile" in words(first)) == (409, True)
        assert second.status == 303
        page = await get(on.dashboard.app, second.headers["location"])
        assert "it was deleted meanwhile" in words(page)
        monkeypatch.undo()
        assert (await on.carried_out("send", {**fields(first)})).status == 200, "the page of the error has another nonce"


def test_outcomes_are_bounded_and_an_outcome_that_is_known_stays() -> None:
    outcomes = Outcomes()
    outcomes.begin("first")
    assert outcomes.of("first") is None
    outcomes.end("first", PlanOutcome(("done",)))
    outcomes.end("first", PlanOutcome(error="another"))
    assert outcomes.of("first") == PlanOutcome(("done",))
    for number in range(KEPT_MAX):
        outcomes.begin(str(number))
    assert "first" not in outcomes
    assert all(outcomes.of(str(number)) is None for number in range(KEPT_MAX))


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b"{}", "application/json", "a form is expected"),
        (b"--x", "multipart/form-data; boundary=x", "a form is expected"),
        (b"topic=%FF", "application/x-www-form-urlencoded", "can't be read"),
        (b"topic=\xff", "application/x-www-form-urlencoded", "can't be read"),
        (b"&".join(b"f%d=" % n for n in range(100)), "application/x-www-form-urlencoded", "can't be read"),
        (b"body=" + bytes(FORM_BYTES_MAX), "application/x-www-form-urlencoded", "larger than 256 KiB"),
        (b"", "", "a form is expected"),
    ],
    ids=range(7),
)
async def test_what_is_no_form_is_refused_with_the_reason(lockstep_cluster: TestCluster, data: bytes, kind: str, said: str) -> None:
    async with panel(lockstep_cluster) as on:
        got = await get(on.dashboard.app, "/changes/send", method="POST", data=data, content_type=kind, sec_fetch_site="same-origin")
        assert (got.status, said in words(got)) == (400, True)


async def test_form_that_does_not_come_is_refused(lockstep_cluster: TestCluster) -> None:
    async with panel(lockstep_cluster) as on:

        async def silent(scope: Any, receive: Any, send: Any) -> None:
            await on.dashboard.app(scope, asyncio.Event().wait, send)

        for name in ("send", "stop-replay"):
            got = await post(silent, f"/changes/{name}", {})
            assert (got.status, f"has not come within {FORM_S} s" in words(got)) == (400, True)


async def test_every_page_that_answers_a_form_can_refresh_its_parts(lockstep_cluster: TestCluster) -> None:
    """The script asks for the parts of a page with GET, at the address of the form."""
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    async with panel(lockstep_cluster) as on:
        form = await on.form("topic-alter", topic=TOPIC, queues="4")
        answers = {
            "plan": ("topic-alter", {**form, "step": "plan"}),
            "wrong name": ("topic-alter", {**form, "typed": ""}),
            "done": ("topic-alter", {**form, "typed": TOPIC}),
            "no token": ("topic-alter", {}),
            "no such change": ("unknown", form),
            "stop without a token": ("stop-replay", {}),
            "stop": ("stop-replay", form),
        }
        for case, (name, sent) in answers.items():
            path = f"/changes/{name}"
            answer = await on.sent(name, sent)
            if answer.status == 303:
                path = answer.headers["location"]
                answer = await get(on.dashboard.app, path)
            parts = re.findall(r'data-part="(\w+)"', answer.text)
            assert parts, case
            for part in parts:
                refreshed = await get(on.dashboard.app, path, x_part=part)
                if refreshed.status == 303:
                    refreshed = await get(on.dashboard.app, refreshed.headers["location"], x_part=part)
                assert "etag" in refreshed.headers, (case, part)


RUBBISH = ["", " ", "-1", "--help", "<script>", "\u202e", "x" * 5_000, "%RETRY%x", "a b", "9" * 30, "broker-a:0", "\x00", "é"]


@pytest.mark.parametrize("name", CHANGES)
async def test_rubbish_in_any_field_is_refused_and_never_an_error_of_the_server(lockstep_cluster: TestCluster, name: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    good = {"topic": TOPIC, "group": GROUP, "queues": "4", "to": "end", "consume": "yes"}
    async with panel(cluster) as on:
        first = fields(await get(on.dashboard.app, f"/changes/{name}"))
        for each in CHANGES[name].fields:
            for value in RUBBISH:
                form = {**first, **{key: value for key, value in good.items() if key in first}, each.name: value}
                got = await on.sent(name, form)
                assert got.status in (200, 409), (each.name, value)
                assert "<script>" not in got.text.partition("<main")[2].replace("&lt;script&gt;", "")
        late = await on.planned("group-reset", group=GROUP, to="9999-12-31T23:59:59-23:00")
        assert "is after the year 9999 in UTC" in late
        assert await queues_of(on, TOPIC) == 4
        assert (await get(on.dashboard.app, "/changes/unknown")).status == 404
        assert (await on.sent("unknown", {})).status == 404


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("topic-create", {"topic": "-new", "broker": "broker-a"}),
        ("topic-alter", {"topic": TOPIC, "queues": "5"}),
        ("topic-purge", {"topic": TOPIC, "to": "0s", "queue": "broker-a:0"}),
        ("topic-delete", {"topic": TOPIC}),
        ("send", {"topic": TOPIC, "sharding_key": "-k 'x'", "tag": "t", "keys": "a -b", "body": "--help"}),
        ("send", {"topic": TOPIC, "body": "two\nlines"}),
        ("group-reset", {"group": GROUP, "to": "2h", "topic": TOPIC, "queue": "broker-a:0", "drop_parked": "yes"}),
        ("group-settings", {"group": GROUP, "consume": "no", "subscription_policy": "classic"}),
    ],
)
async def test_plan_changes_nothing_and_shows_a_command_that_lockstep_accepts(
    lockstep_cluster: TestCluster, name: str, values: dict[str, str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await cluster.start("a", Member(cluster).run)
    await send(cluster, 40, keys=40)
    await cluster.settled(GROUP)
    async with panel(cluster) as on:
        before = await progress(cluster), await on.dashboard.watch.admin.topics(), await queues_of(on, TOPIC)
        first = fields(await get(on.dashboard.app, f"/changes/{name}"))
        got = await on.sent(name, {**first, **values})
        assert got.status == 200, words(got)
        check_command(html.unescape(re.search(r'<pre tabindex="0">(lockstep .*?)</pre>', got.text, re.DOTALL)[1]))  # type: ignore[index]
        assert (await progress(cluster), await on.dashboard.watch.admin.topics(), await queues_of(on, TOPIC)) == before


# ----------------------------------------------------------------------------------------------------------- what is carried out


async def test_topic_is_created_written_altered_and_deleted(lockstep_cluster: TestCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster = lockstep_cluster
    caplog.set_level(logging.INFO, "lockstep.dashboard")
    async with panel(cluster) as on:
        done = await on.done("topic-create", topic=TOPIC, queues="2")
        assert f"Topic {TOPIC} created: 2 queues on broker-a, 2 queues on broker-b." in done
        assert f"topic {TOPIC} exists already" in await on.planned("topic-create", topic=TOPIC)
        sent = await on.done("send", topic=TOPIC, sharding_key="k", body="<b>\nhello", keys="a b")
        assert "SEND_OK" in sent
        place = re.search(r"offset id (\w+)", sent)
        assert place is not None
        shown = words(await get(on.dashboard.app, f"/messages/{place[1]}"))
        assert "<b> hello" in shown
        assert "lockstep-dashboard" in shown
        await on.done("topic-alter", typed=TOPIC, topic=TOPIC, queues="3", broker="broker-a")
        assert await queues_of(on, TOPIC) == 5
        plan = await on.planned("topic-delete", topic=TOPIC)
        assert "its 5 queues, 1 messages" in plan
        assert f"Topic {TOPIC} is deleted:" in await on.done("topic-delete", typed=TOPIC, topic=TOPIC)
        with pytest.raises(TopicNotExistError):
            await on.dashboard.watch.admin.route(TOPIC)
    made = [record.getMessage() for record in caplog.records if "change.made" in record.getMessage()]
    assert len(made) == 4
    assert not any("hello" in line for line in made), "bodies are not logged"


async def test_topic_is_purged(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 10)
    async with panel(cluster) as on:
        plan = await on.planned("topic-purge", topic=TOPIC, to="end")
        assert f"10 messages of topic {TOPIC} are removed" in plan
        assert "bytes stay in the log files" in plan
        done = await on.done("topic-purge", typed=TOPIC, topic=TOPIC, to="end")
        assert f"topic {TOPIC}: 10 messages removed in " in done.replace(f"Topic {TOPIC}", f"topic {TOPIC}")
        assert f"topic {TOPIC} has no messages before end" in await on.planned("topic-purge", topic=TOPIC, to="end")


async def test_topic_is_not_altered_while_an_ordered_group_lags(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def fail(messages: object, context: object) -> None:
        raise RuntimeError("not now")

    await cluster.start("a", Member(cluster, fail).run)
    await send(cluster, 10)
    await cluster.advance(seconds=5)
    async with panel(cluster) as on:
        form = await on.form("topic-alter", topic=TOPIC, queues="2")
        got = await on.sent("topic-alter", {**form, "typed": TOPIC})
        assert (got.status, "nothing was changed" in words(got)) == (409, True)
        assert await queues_of(on, TOPIC) == 2


@pytest.mark.parametrize("to", ["beginning", "1h", "0"])
async def test_group_is_reset_while_it_consumes_and_the_reset_can_be_undone(lockstep_cluster: TestCluster, to: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    got: list[int] = []

    async def listen(messages: Any, context: object) -> None:
        got.extend(int(each.body) for each in messages)

    await cluster.start("a", Member(cluster, listen).run)
    await send(cluster, 40, keys=40)
    await cluster.settled(GROUP)
    async with panel(cluster) as on:
        assert "40 messages again and skips 0" in await on.planned("group-reset", group=GROUP, to=to)
        form = await on.form("group-reset", group=GROUP, to=to)
        await send(cluster, 40, keys=40)
        await cluster.settled(GROUP)
        done = words(await on.carried_out("group-reset", {**form, "typed": GROUP}))
        undo = re.findall(r"lockstep group reset-offset \S+ --topic \S+(?: --queue \S+)+ --to \d+", done)
        assert sum(line.count("--queue") for line in undo) == 4
        for line in undo:
            check_command(line)
        await cluster.settled(GROUP)
        assert sorted(got) == sorted([*range(40)] * 4)


async def test_progress_of_a_group_in_a_topic_that_it_has_left_is_ended(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.create_topic("bills", queues=1)
    await cluster.start("old", consuming(cluster, GROUP, 0, TOPIC, "bills"))
    await send(cluster, 10)
    await cluster.settled(GROUP)
    async with panel(cluster) as on:
        assert f"members of group {GROUP} may consume {TOPIC}" in await on.planned("group-forget", group=GROUP, topic=TOPIC)
        await cluster.start("new", consuming(cluster, GROUP, 1, "bills"))
        await cluster.stop("old")
        await cluster.advance(seconds=5)
        page = await get(on.dashboard.app, f"/groups/{GROUP}")
        assert f"No contract in force subscribes to {TOPIC}: the group has left it" in words(page)
        assert f"/changes/group-forget?group={GROUP}&amp;topic={TOPIC}" in page.text
        form = fields(await get(on.dashboard.app, "/changes/group-forget"))
        planned = await on.sent("group-forget", {**form, "group": GROUP, "topic": TOPIC})
        assert f"The progress of group {GROUP} in {TOPIC} ends, in 2 queues" in words(planned)
        check_command(html.unescape(re.search(r'<pre tabindex="0">(lockstep .*?)</pre>', planned.text, re.DOTALL)[1]))  # type: ignore[index]
        done = await on.done("group-forget", typed=GROUP, group=GROUP, topic=TOPIC)
        assert f"The progress of group {GROUP} in {TOPIC} has ended." in done
        assert f"group {GROUP} has no progress in {TOPIC}" in await on.planned("group-forget", group=GROUP, topic=TOPIC)


async def test_settings_of_a_group_are_changed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with panel(cluster) as on:
        assert "nothing to change" in await on.planned("group-settings", group=GROUP)
        done = await on.done("group-settings", typed=GROUP, group=GROUP, consume="no")
        assert "may NOT consume, at broker-a, broker-b" in done
        await send(cluster, 10)
        await cluster.advance(seconds=20)
        found = await cluster.group_status(GROUP)
        assert found is not None
        assert sum(line.lag or 0 for line in found.queues) == 10
        await on.done("group-settings", typed=GROUP, group=GROUP, consume="yes")
        await cluster.settled(GROUP)


@pytest.mark.lockstep(brokers=1)
async def test_parked_keys_are_replayed_and_dropped(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(60, 10, "k1", "k2", "k3")
    async with panel(cluster) as on:
        assert "key 'k9' of group billing is not parked" in await on.planned("park-replay", group=group.name, key="k9")
        group.poison.clear()
        assert "keys to replay: 1," in await on.done("park-replay", typed=group.name, group=group.name, key="k1")
        await until_parked(group, "k2", "k3")
        assert group.of_key("k1") == [1, 11, 21, 31, 41, 51]
        refused = await on.planned("group-reset", group=group.name, to="end")
        assert "are parked" in refused
        forgotten = f"2 parked keys of {group.name} are forgotten, with 12 messages that wait for them."
        assert forgotten in await on.planned("topic-delete", topic=TOPIC)
        assert "keys to drop: 2," in await on.done("park-drop", typed=group.name, group=group.name)
        await until_parked(group)
        assert "parked keys" not in await on.planned("topic-delete", topic=TOPIC)
        assert f"no keys of group {group.name} are parked" in await on.planned("park-drop", group=group.name)


async def dead_letters(cluster: TestCluster, count: int) -> set[int]:
    """Let a concurrent group give up on messages. Return those that it accepts from then on."""
    await cluster.create_topic(TOPIC, queues=1)
    accepted: set[int] = set()
    broken = [True]

    async def member() -> None:
        consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, max_reconsume_times=0).subscribe(TOPIC)

        async def listen(messages: Any, context: object) -> None:
            if broken[0]:
                raise RuntimeError("not now")
            accepted.update(int(each.body) for each in messages)

        consumer.concurrently(listen)
        async with consumer:
            await consumer.wait_closed()

    await cluster.start("a", member)
    await cluster.advance(seconds=5)
    await send(cluster, count)
    await cluster.advance(seconds=30)
    broken[0] = False
    assert not accepted
    return accepted


async def test_dead_letters_are_replayed_with_progress(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    accepted = await dead_letters(cluster, 30)
    async with panel(cluster) as on:
        assert "no dead letters" in await on.planned("dlq-replay", group="nobody")
        assert "30 dead letters of billing are sent to %RETRY%billing" in await on.planned("dlq-replay", group=GROUP)
        await on.done("dlq-replay", typed=GROUP, group=GROUP, rate="5")
        form = await on.form("dlq-replay", group=GROUP, rate="5")
        await asyncio.sleep(3)
        got = await on.sent("dlq-replay", {**form, "typed": GROUP})
        assert (got.status, "is running: stop it first" in words(got)) == (409, True)
        page = await get(on.dashboard.app, "/changes")
        assert f'<button id="stop-{GROUP}">' in page.text, "the script finds it again when rows have moved"
        running = words(page)
        found = re.search(r"retry 30 (\d+) Stop", running)
        assert found is not None, running
        assert 0 < int(found[1]) < 30
        await cluster.advance(seconds=60)
        assert "retry 30 30 done" in words(await get(on.dashboard.app, "/changes"))
        await cluster.settled(GROUP)
        assert accepted == set(range(30))
        assert "no dead letter that was not replayed" in await on.planned("dlq-replay", group=GROUP)


async def test_stopped_replay_has_recorded_what_it_sent(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    accepted = await dead_letters(cluster, 30)
    async with panel(cluster) as on:
        await on.done("dlq-replay", typed=GROUP, group=GROUP, rate="5")
        await asyncio.sleep(3)
        stop = fields(await get(on.dashboard.app, "/changes"))
        refused = await post(on.dashboard.app, "/changes/stop-replay", {**stop, "token": "guessed"})
        assert (refused.status, "nothing was changed" in words(refused), "Stop" in words(refused)) == (403, True, True)
        got = await post(on.dashboard.app, "/changes/stop-replay", stop, root="/lockstep")
        assert (got.status, got.headers["location"]) == (303, "/lockstep/changes")
        await asyncio.sleep(2)
        ended = re.search(r"retry 30 (\d+) stopped", words(await get(on.dashboard.app, "/changes")))
        assert ended is not None
        sent = int(ended[1])
        assert f"{30 - sent} dead letters of billing" in await on.planned("dlq-replay", group=GROUP)
        await on.done("dlq-replay", typed=GROUP, group=GROUP, rate="100")
        await cluster.advance(seconds=60)
        await cluster.settled(GROUP)
        assert accepted == set(range(30))


async def test_dashboard_that_stops_ends_its_replays_in_order(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await dead_letters(cluster, 30)
    async with panel(cluster) as on:
        await on.done("dlq-replay", typed=GROUP, group=GROUP, rate="5")
        await asyncio.sleep(3)
    async with panel(cluster) as on:
        plan = await on.planned("dlq-replay", group=GROUP)
        found = re.search(r"(\d+) dead letters of billing", plan)
        assert found is not None, plan
        assert 0 < int(found[1]) < 30


async def test_brokers_that_are_away_are_said_before_anything_is_changed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with panel(cluster) as on:
        await cluster.kill("broker-b")
        for name, values in (("group-reset", {"to": "end"}), ("topic-purge", {"topic": TOPIC, "to": "end"}), ("park-drop", {})):
            assert "nothing was changed" in await on.planned(name, group=GROUP, **values)
        await cluster.kill("nameserver-1")
        for name in CHANGES.keys() - {"replica-promote"}:  # it is for a copy at an address
            to = "end" if name in ("group-reset", "topic-purge") else ""
            given = {
                "topic": TOPIC,
                "group": GROUP,
                "to": to,
                "consume": "no",
                "queues": "9",
                "body": "b",
                "broker": "a",
                "member": "b",
                "key": "k",
                "transaction_id": "i",
                "reason": "r",
            }
            got = await on.planned(name, **given)
            assert "nameserver" in got, name


@pytest.mark.lockstep(brokers=1)
async def test_copies_of_logs_are_listed_with_their_changes_once_a_broker_has_a_replica(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with panel(cluster) as on:
        await cluster.advance(seconds=8)
        assert "Copies of the logs" not in words(await get(on.dashboard.app, "/"))
        (broker,) = await on.dashboard.watch.admin.brokers()
        gone = ReplicaStanding("c" * 16, "192.0.2.3:10911", in_set=False, connected=False, stored=0, applied=0, silent_ms=65_000)
        master = replace(await on.dashboard.watch.admin.copy_status(broker.address), replicas=(gone,))
        replica = replace(master, role="replica", member="b" * 16, replicas=(), following=True, trouble="<disk full>")
        found = copies({broker.address: master, "192.0.2.2:10911": replica}, {gone.address: "connection refused"}, {})

        async def read(_: None) -> list[LogCopy]:
            return found

        on.dashboard._caches = replace(on.dashboard._caches, copies=Cache(on.dashboard.host.clock, on.dashboard.tasks, read))
        await get(on.dashboard.app, "/")
        await cluster.advance(seconds=1)
        page = checked(await get(on.dashboard.app, "/"))
        row = f"{broker.name} 192.0.2.3:10911 replica no no – – not reached: connection refused; not connected for 65 s"
        assert f"{row} {'c' * 16} Forget" in page.text
        assert "<disk full>" in page.text
        links = [link for link in page.links if "/changes/replica-" in link]
        assert links == [
            "/changes/replica-promote?address=192.0.2.2%3A10911",
            f"/changes/replica-forget?broker={broker.name}&member={'c' * 16}",
        ]
        register = RegisterStanding("witness://192.0.2.9:9878", 400, "", 7, "b" * 16, ("b" * 16,), {"b" * 16: "192.0.2.2:10911"}, "elected")
        found = copies({"192.0.2.2:10911": replace(replica, term=7, following=False, trouble="", register=register)}, {}, {})
        await cluster.advance(seconds=10)
        await get(on.dashboard.app, "/")
        await cluster.advance(seconds=1)
        page = checked(await get(on.dashboard.app, "/"))
        assert f"Register of {broker.name} register witness://192.0.2.9:9878: reached" in page.text
        assert f"broker {broker.name} has no master: 192.0.2.2:10911 is in its set. Next: wait" in page.text
        links = [link for link in page.links if "/changes/replica-" in link or "/changes/ha-" in link]
        assert links == [f"/changes/ha-failover?broker={broker.name}"]
        assert "knows no replica" in await on.planned("replica-forget", broker=broker.name, member="c" * 16)
        assert f"is the master of broker {broker.name} already" in await on.planned("replica-promote", address=broker.address)
