"""RocketMQ's own clients, unchanged, sign their requests: what they may do with the rights of their user, and what they print without."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.access_keys import write_signers
from support.cluster import QUICK, Cluster, running_cluster
from support.interop import PROGRAMS, cpp_python, go_program, node_folder, trial
from support.java_tools import JavaTools
from support.logins import PASSWORD

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECRETS = {name: f"a secret of {name}" for name in ("admin", "shop", "billing", "trial")}
RULES = {
    "trial": 'role = ["producer", "consumer"]\ntopics = ["cpp-*", "node-*"]\ngroups = ["group-*"]',
    "shop": 'role = "producer"\ntopics = ["orders"]\nallow = ["Sub topic:invoices"]',
    "billing": 'role = "consumer"\ntopics = ["orders"]\ngroups = ["billing*"]',
}
UNKNOWN = "the AccessKey or its secret is wrong, or the user may not come from 127.0.0.1"
ACL = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
async def signers(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a nameserver and a broker with topics, on which users have some rights."""
    (tmp_path / "password").write_text(PASSWORD)
    async with running_cluster(tmp_path) as cluster:
        cluster.server_options = ("--security", write_signers(tmp_path / "users.toml", SECRETS, RULES))
        cluster.user, cluster.parameters = "admin", f"password_file={tmp_path / 'password'}"
        await cluster.nameserver()
        await cluster.broker("broker-a", *QUICK)
        for topic in ("orders", "invoices"):
            await cluster.command("topic", "create", topic, "--queues", "4")
        yield cluster


async def test_cpp_and_node_clients_have_the_rights_of_their_user(signers: Cluster, tmp_path: Path) -> None:
    cpp = [cpp_python(tmp_path), str(PROGRAMS / "cpp" / "trial.py")]
    node = ["node", str(node_folder(tmp_path) / "trial.js")]
    for name, program, words in (("cpp", cpp, "No route info of this topic: cpp-sync"), ("node", node, f"{ACL}{UNKNOWN}")):
        for use in ("sync", "push", "compressed"):
            await signers.command("topic", "create", f"{name}-{use}", "--queues", "4")
        environment = ["env", f"HOME={tmp_path}", "ACCESS_KEY=trial"]
        arguments = [*program, signers.addresses["nameserver"], "sync", "compressed", "push"]
        results, output = await trial([*environment, f"SECRET_KEY={SECRETS['trial']}", *arguments], tmp_path)
        assert results == ["ok sync", "ok compressed", "ok push"], output
        results, output = await trial([*environment, "SECRET_KEY=wrong secret", *arguments[:-2]], tmp_path)
        assert [words in result for result in results] == [True], output


async def test_go_client_has_the_rights_of_its_user(signers: Cluster, tmp_path: Path) -> None:
    program, nameserver = go_program(tmp_path, "./signed"), signers.addresses["nameserver"]
    for token in ("", "a token"):
        results, output = await trial([program, nameserver, "shop", SECRETS["shop"], token, "send:orders", "send:invoices"], tmp_path)
        assert results[0] == "ok send:orders", output
        assert f"{ACL}user shop may not Pub topic:invoices" in results[1]
        results, output = await trial(
            [program, nameserver, "billing", SECRETS["billing"], token, f"consume:orders:billing-{token[:1]}"], tmp_path
        )
        assert results == [f"ok consume:orders:billing-{token[:1]}"], output
    results, output = await trial([program, nameserver, "shop", "wrong secret", "", "send:orders"], tmp_path)
    assert results == ["failed send:orders: the topic=orders route info not found"], output


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
async def test_java_client_has_the_rights_of_its_user(version: str, signers: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    tools = JavaTools.fetch(version, tmp_path / "tools", "Signed")
    nameserver = signers.addresses["nameserver"]

    async def results(form: str, user: str, *uses: str, secret: str = "") -> list[str]:
        arguments = (f"-Drocketmq.serialize.type={form}", *tools.options, "Signed", nameserver, user, secret or SECRETS[user], *uses)
        found, output = await trial(["java", *arguments], tmp_path)
        assert len(found) == len(uses), output
        return found

    for form in ("JSON", "ROCKETMQ"):
        sent = await results(form, "shop", "send:orders", "large:orders", "send:invoices", "pull:orders:billing", "send:payments")
        assert sent[:2] == ["ok send:orders", "ok large:orders"]
        prefix = f"CODE: 1  DESC: {ACL}" if version == "4.9.8" else "CODE: 16  DESC: "
        assert f"{prefix}user shop may not Pub topic:invoices" in sent[2]
        assert f"{prefix}user shop may not Sub group:billing" in sent[3]
        assert "No route info of this topic: payments" in sent[4]
        assert await results(form, "billing", f"consume:orders:billing-{form}") == [f"ok consume:orders:billing-{form}"]
        (wrong,) = await results(form, "shop", "send:orders", secret="wrong secret")
        assert "No route info" in wrong
    tools_yml = tools.folder / "conf" / "tools.yml"
    tools_yml.write_text(f"accessKey: admin\nsecretKey: {SECRETS['admin']}\n")
    assert "orders" in await tools.mqadmin(nameserver, "topicList")
    listing = "listUser" if version == "5.3.3" else "clusterAclConfigVersion"
    refused = await tools.mqadmin(nameserver, listing, "-b", signers.addresses["broker-a"])
    assert "is not supported by this server: users and what they may do are in the file of --security" in refused
    tools_yml.write_text("accessKey: admin\nsecretKey: wrong secret\n")
    assert UNKNOWN in await tools.mqadmin(nameserver, "topicList")
