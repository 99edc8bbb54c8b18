"""Requests of operators for the nameserver's settings. They are not changed by requests."""

from collections.abc import Mapping

from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import BrokerSettings
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.admin import SettingsHeader
from lockstep.runtime.configuration.reported_settings import report_setting
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.login import LoginProcessor
from lockstep.runtime.requests.needs import GET, on_cluster
from lockstep.runtime.requests.request import Request

FIXED = "a nameserver takes its settings at the start"


class NameserverSettings:
    """Reports the settings. `origins` has the source of each value, if it is known."""

    def __init__(self, config: NameserverConfig, origins: Mapping[str, str], login: LoginProcessor) -> None:
        self._config = config
        self._origins = origins
        self._login = login

    @handles(RequestCode.GET_NAMESRV_CONFIG, SettingsHeader, needs=[on_cluster(GET)])
    def report(self, request: Request) -> Command:
        """Return all settings, in the order of their declaration."""
        names = declared_settings(NameserverConfig)
        settings = tuple(report_setting(name, self._config, self._config, self._origins, FIXED) for name in names)
        return request.reply(body=self._login.report(request, BrokerSettings(settings)))
