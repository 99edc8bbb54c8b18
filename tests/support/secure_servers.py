"""A nameserver and a broker as processes that require TLS, for tests without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.certificates import write_authority, write_certificate
from support.processes import program, run_program


@contextmanager
def secure_servers(directory: Path) -> Iterator[str]:
    """Run them. Yield the address of the cluster, in which there is the topic `orders`."""
    cert, key = write_certificate(directory)
    tls = ("--listen", "127.0.0.1:0", "--tls", "require", "--tls-cert", cert, "--tls-key", key)
    with program("lockstep.nameserver", *tls, event="nameserver.started") as nameserver:
        where = f"lockstep://{nameserver.started['address']}/?tls_ca={write_authority(directory / 'ca.pem')}"
        with program("lockstep.broker", *tls, "--nameserver", where, "--store", str(directory / "store"), event="broker.started"):
            assert run_program("lockstep.cli.main", "topic", "create", "orders", "--nameserver", where).returncode == 0
            yield where
