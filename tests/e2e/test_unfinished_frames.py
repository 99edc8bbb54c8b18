"""Connections that send most of a frame and go: the server gives back at once what it has received (wire.md: 256 MiB together)."""

import socket
import struct
from pathlib import Path

import pytest

from lockstep.runtime.connections.server import PARTIAL_BYTES_MAX
from support.background import background

pytestmark = pytest.mark.e2e

MIB = 1 << 20
CONNECTIONS = 40
SENT_MIB = 15
"""Of each frame: 600 MiB in all."""


@pytest.mark.parametrize("kind", [0x4D, 0], ids=["native", "classic"])
@pytest.mark.parametrize("server", ["broker", "nameserver"])
def test_unfinished_frames_of_connections_that_are_gone_take_no_memory(tmp_path: Path, server: str, kind: int) -> None:
    arguments = ["-m", f"lockstep.{server}", "--listen", "127.0.0.1:0"]
    if server == "broker":
        arguments += ["--store", str(tmp_path / "s")]
    with background(tmp_path, server, *arguments, ready=f"{server}.started") as process:
        address = process.started(f"{server}.started")["address"]
        before = process.resident_bytes()
        host, _, port = address.rpartition(":")
        for _ in range(CONNECTIONS):
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(struct.pack(">iI", 16 * MIB - 8, kind << 24 | 100))
                for _ in range(SENT_MIB):
                    peer.sendall(bytes(MIB))
        grown = process.resident_bytes() - before
        assert grown < PARTIAL_BYTES_MAX, f"{grown // MIB} MiB"
        assert process.stop() == 0
