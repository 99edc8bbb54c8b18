"""Runs a server program, from its settings to its exit code."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.runtime.configuration.config import LoadedSettings, Settings, load
from lockstep.runtime.configuration.tls_settings import TlsSettings
from lockstep.runtime.connections.listen_address import MEANINGS
from lockstep.runtime.daemon import Daemon, Service, exit_code_of
from lockstep.runtime.descriptors import DESCRIPTORS
from lockstep.runtime.logs import log
from lockstep.runtime.security.core_files import forbid_core_files

logger = log.get_logger("runtime.settings")

S = TypeVar("S", bound=Settings)

EXIT_USAGE = 2


def run_program(
    prog: str, model: type[S], make: Callable[[LoadedSettings[S]], Service], argv: Sequence[str], *, stop_ms: int | None = None
) -> int:
    """Load the settings, set up logging at `log_level` (if it exists), make and run the service. Return the exit code.

    An invalid setting gives one line on stderr and exit 2, also if `make` finds it; another error of `make` is reported the same way, with
    its own exit code. An unknown variable of the environment is logged as a warning.
    """
    try:
        loaded = load(model, argv, prog)
    except LockstepError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_USAGE
    log.configure(getattr(loaded.config, "log_level", "info"))
    for name, near in loaded.unknown.items():
        logger.warning("settings.unknown_variable", variable=name, ignored=True, did_you_mean=near)
    if isinstance(loaded.config, TlsSettings):
        if loaded.config.has_secrets and not loaded.config.core:
            forbid_core_files()
        if loaded.config.insecure:
            logger.warning("settings.insecure", insecure=loaded.config.insecure, means=MEANINGS[loaded.config.insecure])
    DESCRIPTORS.prepare()
    try:
        service = make(loaded)
    except LockstepError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else exit_code_of(error)
    daemon = Daemon(prog) if stop_ms is None else Daemon(prog, stop_ms=stop_ms)
    return daemon.run(service)
