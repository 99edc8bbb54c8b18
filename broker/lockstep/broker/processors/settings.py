"""Requests of operators for the broker's settings. RocketMQ: AdminBrokerProcessor."""

from dataclasses import replace

from lockstep.broker.running_settings import RunningSettings
from lockstep.protocol.bodies import ChangeSettings
from lockstep.protocol.codes import RequestCode
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUPER_USER, on_cluster
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, Request


class SettingsProcessor:
    """Reports and changes the settings."""

    def __init__(self, settings: RunningSettings) -> None:
        self._settings = settings

    @handles(RequestCode.GET_BROKER_CONFIG, needs=[on_cluster(GET)])
    def report(self, request: Request) -> HandlerResult:
        return request.reply(body=replace(self._settings.report(), users_digest=request.user.users_digest, sees_all=request.user.sees_all))

    @handles(RequestCode.UPDATE_BROKER_CONFIG, None, ChangeSettings, needs=SUPER_USER)
    def change(self, request: Request) -> HandlerResult:
        body: ChangeSettings = request.body
        changed = self._settings.change(body.values, request.endpoint.peer)
        before = {each.setting.name: each.before for each in changed.changes}
        request.change = AuditedChange("cluster", before, {each.setting.name: each.setting.value for each in changed.changes})
        return request.reply(body=changed)
