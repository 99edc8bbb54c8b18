"""Settings of the witness."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.runtime.configuration.server_settings import ServerSettings
from lockstep.runtime.configuration.settings import Range


@dataclass(frozen=True, kw_only=True)
class WitnessConfig(ServerSettings):
    """The witness keeps, for each broker name, which copy of its log is the master, so that the copies can elect one by themselves."""

    listen: Annotated[tuple[str, ...], Range(1), "[NAME=]HOST:PORT to listen on. Port 0: any free port."] = ("127.0.0.1:9878",)
    store: Annotated[str, "Directory of its files, one for each broker name."] = "lockstep-witness"
