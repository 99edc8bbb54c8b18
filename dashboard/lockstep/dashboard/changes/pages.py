"""The pages of a change: its form, its plan, and what was done. A plan is carried out only if it is still the one that was shown.

    form ─▶ plan, in the words of the command ─▶ the name typed once more ─▶ the plan is made again: another one is shown instead ─▶ done

Each form has a token of the session: a page from elsewhere can't know it. Each page of a plan has a nonce: the plan is carried out once,
and its outcome has an address of its own (Post/Redirect/Get).
"""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from lockstep.dashboard.access.form_body import FormError, read_form
from lockstep.dashboard.access.sessions import BrowserSession, session_of
from lockstep.dashboard.changes.forms import Form, Planned, form_of
from lockstep.dashboard.changes.outcomes import NONCE, Outcomes, PlanOutcome, sentences
from lockstep.dashboard.changes.replays import Replays
from lockstep.operations.changes.catalogue import CHANGES
from lockstep.operations.changes.replay import DeadLetterReplay
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

FAILURES = (LockstepError, OSError)
RenderPage = Callable[[Request, str, Mapping[str, Any], int], Response]
log = get_logger("lockstep.dashboard")
OLD_FORM = "this form is of another dashboard, or of this one before its restart: nothing was changed. Send it again"
UNEXPECTED = "it failed for a reason that nobody expected: the log of the dashboard has it"
ANOTHER_PLAN = "things have changed, and nothing was done: this is what it does now"


class Changes:
    """Serves the forms of all changes."""

    def __init__(self, host: Host, tasks: Tasks, page: RenderPage) -> None:
        self._host = host
        self._page = page
        self.replays = Replays(tasks)
        self._outcomes = Outcomes()
        self._forms = {each.path: form_of(each) for each in CHANGES if each.title is not None}

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/changes", self._all, methods=["GET"]),
            Route("/changes/stop-replay", self._stop_replay, methods=["GET", "POST"]),
            Route("/changes/{change}", self._form, methods=["GET"]),
            Route("/changes/{change}", self._post, methods=["POST"]),
            Route("/changes/{change}/done/{nonce}", self._outcome, methods=["GET"]),
        ]

    async def _all(self, request: Request) -> Response:
        return self._list(request)

    def _list(self, request: Request, *, error: str | None = None, status: int = 200) -> Response:
        token = session_of(request).form_token
        values = {"kinds": list(self._forms.values()), "replays": self.replays.all, "token": token, "error": error}
        return self._page(request, "changes.html", values, status)

    async def _form(self, request: Request) -> Response:
        form = self._forms.get(request.path_params["change"])
        if form is None:
            return self._page(request, "missing.html", {}, 404)
        return self._shown(request, form, form.filled(request.query_params))

    async def _post(self, request: Request) -> Response:
        form = self._forms.get(request.path_params["change"])
        if form is None:
            return self._page(request, "missing.html", {}, 404)
        session = session_of(request)
        try:
            sent = await read_form(request)
        except FormError as error:
            return self._shown(request, form, form.filled({}), error=str(error), status=400)
        values = form.filled(sent)
        if not _has_token(session, sent):
            return self._shown(request, form, values, error=OLD_FORM, status=403)
        nonce = sent.get("nonce", "")
        if nonce in self._outcomes:
            return _to_outcome(request, form, nonce)
        try:
            planned = await self._plan(session, form, values)
        except FAILURES as error:
            return self._shown(request, form, values, error=str(error), status=409)
        values |= planned.fixed
        if sent.get("step") != "do":
            return self._shown(request, form, values, planned=planned)
        if sent.get("digest") != planned.digest or not NONCE.fullmatch(nonce):
            return self._shown(request, form, values, planned=planned, error=ANOTHER_PLAN, status=409)
        if form.confirmed is not None and sent.get("typed", "").strip() != values[form.confirmed].strip():
            wrong = f"type the {form.confirmed}'s name to confirm it: nothing was done"
            return self._shown(request, form, values, planned=planned, error=wrong, status=409)
        if nonce in self._outcomes:  # the form came a second time while its plan was made
            return _to_outcome(request, form, nonce)
        return await self._do(request, form, values, planned, nonce)

    async def _plan(self, session: BrowserSession, form: Form, values: Mapping[str, str]) -> Planned:
        """Return what the change would do with these values. Raise LockstepError if there is nothing to do, or not all of it is known."""
        operation = form.operation(values)
        if isinstance(operation, DeadLetterReplay):  # it goes on after the response
            plan = await self.replays.plan(session, operation)
        else:
            plan = await operation.plan(session.admin)
        plan.check_complete()
        return Planned.of(operation, plan)

    async def _do(self, request: Request, form: Form, values: Mapping[str, str], planned: Planned, nonce: str) -> Response:
        user = session_of(request).user
        of_change = {"change": form.name, "target": values[form.fields[0].name], "user": user, "peer": peer_of(request)}
        self._outcomes.begin(nonce)
        try:
            outcome = await planned.plan.carry_out()
            if outcome.failed is not None:
                raise OperationError(outcome.failed)
            self._outcomes.end(nonce, PlanOutcome(sentences(outcome.lines, outcome.undo)))
        except FAILURES as error:
            self._outcomes.end(nonce, PlanOutcome(error=str(error)))
            log.warning("change.failed", **of_change, error=str(error))
            return self._shown(request, form, values, planned=planned, error=str(error), status=409)
        finally:
            self._outcomes.end(nonce, PlanOutcome(error=UNEXPECTED))
        log.info("change.made", **of_change)
        return _to_outcome(request, form, nonce)

    async def _outcome(self, request: Request) -> Response:
        """Return the page that says what a plan has done, or that it is still carried out."""
        form, nonce = self._forms.get(request.path_params["change"]), request.path_params["nonce"]
        if form is None or nonce not in self._outcomes:
            return self._page(request, "missing.html", {}, 404)
        return self._page(request, "outcome.html", {"change": form, "outcome": self._outcomes.of(nonce)}, 200)

    async def _stop_replay(self, request: Request) -> Response:
        """Stop a replay, and lead to the list, where a browser reloads and refreshes it."""
        to_list = RedirectResponse(f"{request.scope.get('root_path', '')}/changes", 303)
        if request.method != "POST":
            return to_list
        session = session_of(request)
        try:
            sent = await read_form(request)
        except FormError as error:
            return self._list(request, error=str(error), status=400)
        if not _has_token(session, sent):
            return self._list(request, error=OLD_FORM, status=403)
        try:
            if self.replays.stop(sent.get("group", ""), session.user):
                log.info("change.made", change="stop-replay", target=sent["group"], user=session.user, peer=peer_of(request))
        except OperationError as error:
            return self._list(request, error=str(error), status=409)
        return to_list

    def _shown(
        self,
        request: Request,
        form: Form,
        values: Mapping[str, str],
        *,
        planned: Planned | None = None,
        error: str | None = None,
        status: int = 200,
    ) -> Response:
        nonce, token = self._host.random.token(16).hex(), session_of(request).form_token
        shown = {"change": form, "values": values, "planned": planned, "error": error, "token": token, "nonce": nonce}
        return self._page(request, "change.html", shown, status)


def _has_token(session: BrowserSession, sent: Mapping[str, str]) -> bool:
    return compare_digest(sent.get("token", "").encode(), session.form_token.encode())


def _to_outcome(request: Request, form: Form, nonce: str) -> Response:
    """Lead to the outcome of a plan, which a browser can reload."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/changes/{form.name}/done/{nonce}", 303)


def peer_of(request: Request) -> str | None:
    """Return the address of the browser, or of the proxy before the dashboard."""
    return None if request.client is None else request.client.host
