"""Machines, processes, a network and disks on one event loop with virtual time: one seed is one universe."""

from lockstep.testing.simulation.disk import Fault, SimFile, SimFiles
from lockstep.testing.simulation.loop import LoopError, SimLoop, SimulationStuckError
from lockstep.testing.simulation.network import Network
from lockstep.testing.simulation.process import Machine, Process
from lockstep.testing.simulation.transport import Connection, Observer

__all__ = [
    "Connection",
    "Fault",
    "LoopError",
    "Machine",
    "Network",
    "Observer",
    "Process",
    "SimFile",
    "SimFiles",
    "SimLoop",
    "SimulationStuckError",
]
