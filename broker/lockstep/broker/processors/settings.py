"""Requests of operators for the broker's settings. RocketMQ: AdminBrokerProcessor."""

from lockstep.broker.running_settings import RunningSettings
from lockstep.protocol.bodies import ChangeSettings
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.admin import SettingsHeader
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.login import LoginProcessor
from lockstep.runtime.requests.needs import GET, SUPER_USER, on_cluster
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, Request


class SettingsProcessor:
    """Reports and changes the settings."""

    def __init__(self, settings: RunningSettings, login: LoginProcessor) -> None:
        self._settings = settings
        self._login = login

    @handles(RequestCode.GET_BROKER_CONFIG, SettingsHeader, needs=[on_cluster(GET)], at_once=True)
    def report(self, request: Request) -> HandlerResult:
        return request.reply(body=self._login.report(request, self._settings.report()))

    @handles(RequestCode.UPDATE_BROKER_CONFIG, None, ChangeSettings, needs=SUPER_USER, at_once=True)
    def change(self, request: Request) -> HandlerResult:
        body: ChangeSettings = request.body
        changed = self._settings.change(body.values, request.endpoint.peer)
        before = {each.setting.name: each.before for each in changed.changes}
        request.change = AuditedChange("cluster", before, {each.setting.name: each.setting.value for each in changed.changes})
        return request.reply(body=changed)
