"""The dashboard as an ASGI application: its pages, and what they know of the cluster."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from lockstep.dashboard import failed_messages, views, why_page
from lockstep.dashboard.access.guard import Guard
from lockstep.dashboard.access.login import BrowserLogin, without_login
from lockstep.dashboard.access.sessions import SESSION, BrowserSession, Sessions, session_of
from lockstep.dashboard.changes.pages import Changes
from lockstep.dashboard.documents import answer_document, document, error_status, group_document, refusal, wants_json
from lockstep.dashboard.failed_messages import DeadLetters, ParkedRows, read_dead, read_parked
from lockstep.dashboard.known_copies import KnownCopies
from lockstep.dashboard.message_page import MessagePage
from lockstep.dashboard.messages import Messages
from lockstep.dashboard.queues import ShownGroup, shown_group
from lockstep.dashboard.render import BASE, PART, Static, Templates
from lockstep.dashboard.search.message_search import MessageSearch
from lockstep.dashboard.search.searches import Searches
from lockstep.dashboard.search.transactions_page import TransactionsPage
from lockstep.dashboard.search.waiting_page import TimersPage
from lockstep.dashboard.tail_page import TailPage
from lockstep.dashboard.why_page import Question, question_of
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.delays import DelayReport, delays_json
from lockstep.operations.brokers.diagnosis import Finding, findings_json
from lockstep.operations.brokers.doctor_query import examine
from lockstep.operations.brokers.overviews import read_delays
from lockstep.operations.brokers.rates import groups_of_topic
from lockstep.operations.brokers.replicas import LogCopy
from lockstep.operations.brokers.settings_query import ClusterSettings, read_settings
from lockstep.operations.explain.why_query import Diagnosis, diagnosis_json
from lockstep.operations.groups.group_list import GroupLine, groups_json
from lockstep.operations.groups.group_query import list_groups
from lockstep.operations.watch.cache import Cache, CachedResult
from lockstep.operations.watch.group_look import look_at_group
from lockstep.operations.watch.topic_query import TopicReport, read_topic, topic_json
from lockstep.operations.watch.watch import Watch
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host

NAMES_FRESH_MS = 5_000
"""The nameservers are asked for the names of topics again when they are of this age: brokers report only those with messages."""
FINDINGS_FRESH_MS = 60_000
"""The page of the cluster asks for an examination when the last one is of this age."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Requests that are made only for a page that is open. Those of which the key has a client are made by it, that of a session: what they
    return is for its user only."""

    groups: Cache[str, ShownGroup]
    topics: Cache[str, TopicReport]
    whys: Cache[tuple[AdminClient, Question], Diagnosis]
    doctor: Cache[None, list[Finding]]
    copies: Cache[None, list[LogCopy]]
    dead: Cache[tuple[AdminClient, str], DeadLetters]
    parked: Cache[tuple[AdminClient, str, bool], ParkedRows]
    settings: Cache[None, ClusterSettings]
    delays: Cache[None, DelayReport]
    topic_names: Cache[None, tuple[str, ...]]
    listing: Cache[None, tuple[list[GroupLine], Mapping[str, str]]]


class Dashboard:
    """The pages of one cluster. `start` begins to watch it; `app` is the ASGI application."""

    def __init__(
        self,
        nameserver: str,
        *,
        host: Host | None = None,
        host_names: Iterable[str] = (),
        bodies: bool = True,
        changes: bool = False,
        login: bool | None = None,
    ) -> None:
        """`host_names`: names under which browsers may open it. Without `bodies` no body of a message is shown or searched.

        With `changes` whoever may look can change topics and groups. With `login` browsers have to log in as users of the cluster, by
        default if the dashboard itself does; then messages, dead letters and parked keys are read, and changes made, as that user.
        """
        self.host = host or Host.current()
        self.tasks = Tasks()
        self.watch = Watch(self.host, nameserver, self.tasks)
        self._templates = Templates()
        self._changes = Changes(self.host, self.tasks, self._page) if changes else None
        self._messages, self._searches = Messages(bodies=bodies), Searches()
        messages = self._messages
        self._tails = TailPage(self.tasks, messages)
        admin, clock = self.watch.admin, self.host.clock
        copies = KnownCopies(admin)
        self._sessions = Sessions(admin, self.tasks, self._ended)
        self._caches = Caches(
            groups=Cache(clock, self.tasks, self._look_at_group),
            topics=Cache(clock, self.tasks, lambda topic: read_topic(admin, topic)),
            whys=Cache(clock, self.tasks, lambda key: why_page.answer(*key), cost_factor=why_page.COST_FACTOR),
            doctor=Cache(clock, self.tasks, lambda _: examine(admin)),
            copies=Cache(clock, self.tasks, lambda _: copies.read()),
            dead=Cache(clock, self.tasks, lambda key: read_dead(key[0], messages, key[1])),
            parked=Cache(clock, self.tasks, lambda key: read_parked(key[0], key[1], count=key[2])),
            settings=Cache(clock, self.tasks, lambda _: read_settings(admin)),
            delays=Cache(clock, self.tasks, lambda _: read_delays(admin)),
            topic_names=Cache(clock, self.tasks, lambda _: admin.topics()),
            listing=Cache(clock, self.tasks, lambda _: list_groups(admin)),
        )
        login = admin.has_login if login is None else login
        entrance = BrowserLogin(self._sessions, self._templates, f"lockstep_session_{self.host.random.token(4).hex()}")
        self.routes = [
            Route("/", self._cluster),
            Route("/topics", self._topics),
            Route("/topics/{topic}", self._topic),
            Route("/topics/{topic}/messages", self._topic_messages),
            Route("/topics/{topic}/tail", self._topic_tail),
            Route("/topics/{topic}/waiting", self._waiting),
            Route("/topics/{topic}/transactions", self._transactions),
            Route("/messages", self._find_message),
            Route("/messages/{id}", self._message),
            Route("/messages/{id}/body", self._message_body),
            Route("/groups", self._groups),
            Route("/groups/{group}", self._group),
            Route("/groups/{group}/why", self._why),
            Route("/groups/{group}/dead", self._dead),
            Route("/groups/{group}/parked", self._parked),
            Route("/delays", self._delays),
            Route("/delays/waiting", self._waiting),
            Route("/transactions", self._transactions),
            Route("/settings", self._settings),
            Route("/doctor", self._doctor),
            Route("/livez", _livez),
            *(self._changes.routes if self._changes is not None else ()),
            *(entrance.routes if login else ()),
            Mount("/static", Static()),
        ]
        pages = Starlette(routes=self.routes, exception_handlers={404: self._not_found})
        gate = entrance.gate(pages) if login else without_login(pages, BrowserSession(None, admin, self.host.random.token(16).hex()))
        self.app: ASGIApp = Guard(gate, host_names, changes=changes, login=login)

    async def start(self) -> None:
        """Begin to watch the cluster."""
        self.tasks.spawn(self.watch.run(), "dashboard watch")

    async def stop(self) -> None:
        """End all sessions and all requests to the cluster."""
        self._sessions.end_all()
        await self.tasks.cancel_all()

    def _ended(self, session: BrowserSession) -> None:
        if self._changes is not None:
            self._changes.replays.stop_of(session)

    # --------------------------------------------------------------------------------------------------------------- pages

    def _page(self, request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
        if wants_json(request):
            return refusal("this page has no JSON", status if status >= 400 else 406)
        frame = {**views.frame(self.watch, self.host.clock), "changes": self._changes is not None, "user": session_of(request).user}
        return self._templates.page(request, name, {**frame, **values}, status)

    def _answer_page(
        self, request: Request, name: str, values: Mapping[str, Any], answer: CachedResult[Any], status: int | None = None
    ) -> Response:
        """Return the page of a result that may be an earlier one. The page shows that, and by default has the status of the result."""
        aged = {**values, **views.age(answer, self.host.clock.wall_ms())}
        return self._page(request, name, aged, _status(answer) if status is None else status)

    async def _cluster(self, request: Request) -> Response:
        found = await self._caches.doctor.look(None, wait=False, fresh_ms=FINDINGS_FRESH_MS)
        copies = await self._caches.copies.look(None, wait=False)
        return self._answer_page(request, "cluster.html", views.cluster(self.watch, found, copies), found, 200)

    async def _topics(self, request: Request) -> Response:
        names = await self._caches.topic_names.look(None, wait=False, fresh_ms=NAMES_FRESH_MS)
        return self._page(request, "topics.html", views.topics(self.watch, names, request.query_params))

    async def _topic(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        if wants_json(request):
            return answer_document(await self._caches.topics.look(topic, fresh=True), lambda found: topic_json(topic, found))
        answer = await self._caches.topics.look(topic)
        group = request.query_params.get("of", "")
        known = group != "" and group in groups_of_topic(self.watch.looks, topic)
        of = (group, await self._caches.groups.look(group)) if known else None
        return self._answer_page(request, "topic.html", views.topic(self.watch, topic, answer, of, request.query_params), answer)

    @asynccontextmanager
    async def _search(self, request: Request) -> AsyncIterator[MessageSearch]:
        admin = session_of(request).admin
        async with admin.keep_connections():
            yield MessageSearch(admin, self._messages, self._searches)

    @asynccontextmanager
    async def _one(self, request: Request) -> AsyncIterator[MessagePage]:
        admin = session_of(request).admin
        async with admin.keep_connections():
            yield MessagePage(admin, self._messages, self._searches)

    async def _topic_messages(self, request: Request) -> Response:
        if PART in request.headers:
            return self._page(request, BASE, {})
        async with self._search(request) as search:
            values = await search.of_topic(request.path_params["topic"], request.query_params)
        return self._page(request, "messages.html", values, 503 if values["busy"] else 200)

    async def _topic_tail(self, request: Request) -> Response:
        values = await self._tails.of_topic(session_of(request).admin, request.path_params["topic"], request.query_params)
        return self._page(request, "tail.html", values, 404 if values["missing"] else 200)

    async def _waiting(self, request: Request) -> Response:
        if PART in request.headers:
            return self._page(request, BASE, {})
        admin = session_of(request).admin
        async with admin.keep_connections():
            values = await TimersPage(admin, self._searches).list(request.path_params.get("topic"), request.query_params)
        return self._page(request, "waiting.html", values, 503 if values["busy"] else 404 if values["missing"] else 200)

    async def _transactions(self, request: Request) -> Response:
        if PART in request.headers:
            return self._page(request, BASE, {})
        admin = session_of(request).admin
        async with admin.keep_connections():
            values = await TransactionsPage(admin, self._searches).list(request.path_params.get("topic"), request.query_params)
        return self._page(request, "transactions.html", values, 503 if values["busy"] else 404 if values["missing"] else 200)

    async def _find_message(self, request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/messages/{quote(wanted, safe='')}", 303)
        if PART in request.headers:
            return self._page(request, BASE, {})
        async with self._search(request) as search:
            values = await search.by_key(request.query_params)
        return self._page(request, "find.html", values, 503 if values["busy"] else 200)

    async def _message(self, request: Request) -> Response:
        if PART in request.headers:
            return self._page(request, BASE, {})
        as_json = wants_json(request)
        async with self._one(request) as one:
            values = await one.one(request.path_params["id"], related=not as_json)
        status = 200 if values["message"] else 503 if values["busy"] else 404
        if as_json:
            return document(one.document(values)) if values["message"] else refusal(values["error"], status)
        return self._page(request, "message.html", values, status)

    async def _message_body(self, request: Request) -> Response:
        async with self._one(request) as one:
            return await one.body(request.path_params["id"])

    async def _look_at_group(self, group: str) -> ShownGroup:
        return shown_group(group, await look_at_group(self.watch, group))

    async def _groups(self, request: Request) -> Response:
        if wants_json(request):
            return answer_document(await self._caches.listing.look(None, fresh=True), lambda found: groups_json(*found))
        return self._page(request, "groups.html", views.groups(self.watch, request.query_params))

    async def _group(self, request: Request) -> Response:
        group = request.path_params["group"]
        if wants_json(request):
            return answer_document(await self._caches.groups.look(group, fresh=True), lambda found: group_document(group, found.look))
        answer = await self._caches.groups.look(group)
        values = views.group(self.watch, group, answer, self.host.clock.wall_ms(), request.query_params)
        return self._answer_page(request, "group.html", values, answer, 404 if values["unknown"] else None)

    async def _why(self, request: Request) -> Response:
        question = question_of(request.path_params["group"], request.query_params)
        key = session_of(request).admin, question
        if wants_json(request):
            return answer_document(await self._caches.whys.look(key, fresh=True), lambda found: diagnosis_json(question.group, found))
        answer = await self._caches.whys.look(key)
        return self._answer_page(request, "why.html", why_page.why(question, answer), answer)

    async def _dead(self, request: Request) -> Response:
        group = request.path_params["group"]
        answer = await self._caches.dead.look((session_of(request).admin, group))
        return self._answer_page(request, "dead.html", failed_messages.dead(group, answer), answer)

    async def _parked(self, request: Request) -> Response:
        group, count = request.path_params["group"], request.query_params.get("count") == "1"
        answer = await self._caches.parked.look((session_of(request).admin, group, count))
        return self._answer_page(request, "parked.html", failed_messages.parked(group, answer, count=count), answer)

    async def _delays(self, request: Request) -> Response:
        if wants_json(request):
            return answer_document(await self._caches.delays.look(None, fresh=True), delays_json)
        return self._page(request, "delays.html", views.delays(self.watch))

    async def _settings(self, request: Request) -> Response:
        answer = await self._caches.settings.look(None)
        return self._answer_page(request, "settings.html", views.settings(answer, request.query_params), answer)

    async def _doctor(self, request: Request) -> Response:
        if wants_json(request):
            return answer_document(await self._caches.doctor.look(None, fresh=True), findings_json)
        answer = await self._caches.doctor.look(None)
        return self._answer_page(request, "doctor.html", views.doctor(answer), answer)

    async def _not_found(self, request: Request, _: Exception) -> Response:
        if SESSION not in request.scope:  # a page without it shows no names
            return PlainTextResponse("not found\n", 404)
        return self._page(request, "missing.html", {}, 404)


async def _livez(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _status(answer: CachedResult[Any]) -> int:
    """Return the status of a page. One that shows an earlier result has 200."""
    return 200 if answer.value is not None or answer.error is None else error_status(answer.error, 200)
