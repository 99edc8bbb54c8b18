"""Machines, processes, a network and disks on one event loop with virtual time: one seed is one universe.

Here: what stands in for `runtime` under a test. Not here: faults and members of a cluster (`testing`), worlds and checkers
(`tests/sweep`).

Read `scheduler.py`, then `network.py` and `disk.py`.
"""

from lockstep.testing.simulation.disk import Fault, SimFile, SimFiles
from lockstep.testing.simulation.loop import LoopError, SimLoop, SimulationStuckError
from lockstep.testing.simulation.network import Network
from lockstep.testing.simulation.process import Machine, Process
from lockstep.testing.simulation.transport import Observer, SimConnection

__all__ = [
    "Fault",
    "LoopError",
    "Machine",
    "Network",
    "Observer",
    "Process",
    "SimConnection",
    "SimFile",
    "SimFiles",
    "SimLoop",
    "SimulationStuckError",
]
