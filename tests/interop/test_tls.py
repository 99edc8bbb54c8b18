"""RocketMQ's own Java clients against servers that require TLS."""

from pathlib import Path

import pytest

from support.certificates import write_authority, write_certificate
from support.cluster import QUICK, running_cluster
from support.interop import trial
from support.java_programs import compiled

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
@pytest.mark.parametrize(
    ("authority", "name", "connects"),
    [("ours", "127.0.0.1", True), ("ours", "elsewhere.example", True), ("theirs", "127.0.0.1", False), (None, "127.0.0.1", True)],
)
async def test_java_client_checks_the_authority_if_it_has_one(
    version: str, authority: str | None, name: str, connects: bool, tmp_path: Path
) -> None:
    cert, key = write_certificate(tmp_path, name)
    class_path = compiled(version, tmp_path, "Trial", "LitePull")
    options = ["-Dtls.enable=true"]
    if authority is not None:
        trusted = write_authority(tmp_path / "trusted.pem", authority)
        options += ["-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={trusted}"]
    async with running_cluster(tmp_path) as cluster:
        cluster.server_options = ("--tls", "require", "--tls-cert", cert, "--tls-key", key)
        cluster.parameters = f"tls_ca={write_authority(tmp_path / 'ca.pem')}&tls_server_name={name}"
        await cluster.nameserver()
        await cluster.broker("broker-a", "--auto-create-topics", *QUICK)
        command = ["java", *options, f"-Duser.home={tmp_path}", "-cp", class_path, "Trial", cluster.addresses["nameserver"]]
        results, output = await trial([*command, "sync", "push", "ordered"], tmp_path)
    done = [result for result in results if result.startswith("ok ")]
    assert done == (["ok sync", "ok push", "ok ordered"] if connects else []), output
