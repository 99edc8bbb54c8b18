"""`lockstep login` and `logout`: what is stored, which commands use it, and who may see it."""

import io
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli import main as cli
from lockstep.operations.client_file import ClientFile
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.tls import Tls
from support.fake_broker import FakeBroker, ThreadedCluster

SECRET = "correct horse"
GONE = "127.0.0.1:1"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class World:
    """A file of logins, and commands that find it by the environment."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = ClientFile(file)
        self.monkeypatch = monkeypatch
        self.stdin: type[io.StringIO] = io.StringIO
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command. Return its output, or its error for a non-zero exit code. Neither has the password."""
        self.monkeypatch.setattr("sys.stdin", self.stdin(f"{SECRET}\n"))
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, error = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, error
        assert SECRET not in out + error
        return out if code == 0 else error


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    for name in ("LOCKSTEP_URL", "LOCKSTEP_NAMESERVER", "LOCKSTEP_LOGIN", "LOCKSTEP_USER", "LOCKSTEP_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "home" / "client.toml"
    monkeypatch.setenv("LOCKSTEP_CLIENT_FILE", str(file))
    return World(file, monkeypatch, capsys)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
FILES = st.none() | TEXTS
TLS = st.none() | st.builds(lambda ca, pair, name: Tls(ca=ca, cert=pair, key=pair, server_name=name), FILES, FILES, FILES)
ADDRESSES = st.builds(
    lambda tls, user, password: ClusterAddress(("h:1", "[::1]:2"), tls, user, password=password),
    *(TLS, st.none() | st.sampled_from(["billing", "日"]), st.none() | TEXTS),
)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), ADDRESSES))
def test_file_has_any_login_and_only_its_owner_may_read_it(
    tmp_path_factory: pytest.TempPathFactory, logins: dict[str, ClusterAddress]
) -> None:
    file = ClientFile(tmp_path_factory.mktemp("logins") / "new" / "client.toml")
    for name, address in logins.items():
        file.store(name, address)
    assert file.read() == logins
    for name in logins:
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
        file.remove(name)
    assert file.read() == {}


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("", 0o640, "others than its owner may read it: chmod 600"),
        ("", 0o604, "others than its owner may read it: chmod 600"),
        ("", 0o620, "others than its owner may write it: chmod 600"),
        ("password = 'correct horse", 0o600, "it is not TOML"),
        ("other = 1", 0o600, r"expected tables \[cluster.NAME\] and nothing else"),
        ("[cluster]\na = 'correct horse'", 0o600, "cluster.a: expected a table"),
        ("[cluster.a]\npasword = 'correct horse'", 0o600, "cluster.a: unknown key 'pasword': expected nameserver, user, password"),
        ("[cluster.a]\npassword = ['correct horse']", 0o600, "cluster.a: password: expected a text"),
        ("[cluster.a]\npassword = 'correct horse'", 0o600, "cluster.a: no nameserver address"),
        ("[cluster.a]\nnameserver = 'u:correct horse@h:1'", 0o600, "cluster.a: nameserver address with @"),
        ("[cluster.a]\nnameserver = 'h:1'\ntls = 'on'", 0o600, "cluster.a: tls: expected true or false"),
        ("[cluster.a]\nnameserver = 'h:1'\ntls_key = 'k'", 0o600, "cluster.a: .*: a certificate needs its key"),
        ("[cluster.a]\nnameserver = 'h:1'\nuser = 'a b'", 0o600, "cluster.a: 'a b' is not the name of a user"),
    ],
)
def test_unusable_file_is_refused_and_nothing_of_it_is_shown(tmp_path: Path, content: str, mode: int, words: str) -> None:
    file = ClientFile(tmp_path / "client.toml")
    file.path.write_text(content)
    file.path.chmod(mode)
    with pytest.raises(ConfigError, match=words) as caught:
        file.read()
    assert str(caught.value).startswith(str(file.path))
    assert SECRET not in str(caught.value)


def test_file_is_in_the_home_directory_and_without_one_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert ClientFile.of_environment({}).path == Path("/home/somebody/.lockstep/client.toml")
    assert ClientFile.of_environment({"LOCKSTEP_CLIENT_FILE": "x"}).path == Path("x")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert ClientFile.of_environment({}).read() == {}
    with pytest.raises(ConfigError, match="there is no home directory: name a file for logins by LOCKSTEP_CLIENT_FILE"):
        ClientFile.of_environment({}).store("a", ClusterAddress(("h:1",)))


def test_command_uses_the_cluster_that_is_named_nearest(world: World) -> None:
    with ThreadedCluster(FakeBroker("broker-a")) as cluster:
        here = ClusterAddress.parse(cluster.nameserver)
        gone = ClusterAddress((GONE,))
        world.file.store("default", here)
        world.file.store("gone", gone)
        assert "broker-a" in world.run("cluster")
        from_where = f"the address is that of the login gone in {world.file.path}, whose user is not given"
        assert from_where in world.run("cluster", "--nameserver", "gone", code=1)
        assert "login" not in world.run("cluster", "--nameserver", GONE, code=1)
        world.monkeypatch.setenv("LOCKSTEP_LOGIN", "gone")
        assert from_where in world.run("cluster", code=1)
        assert "broker-a" in world.run("cluster", "--nameserver", "default")
        assert "broker-a" in world.run("cluster", "--nameserver", cluster.nameserver)
        world.monkeypatch.setenv("LOCKSTEP_URL", f"lockstep://{GONE}")
        assert f"LOCKSTEP_LOGIN (gone) and an address ({GONE}) are both" in world.run("cluster", code=2)
        world.monkeypatch.delenv("LOCKSTEP_LOGIN")
        assert "login" not in world.run("cluster", code=1)
        world.monkeypatch.setenv("LOCKSTEP_NAMESERVER", cluster.nameserver)
        differ = f"LOCKSTEP_URL ({GONE}) and LOCKSTEP_NAMESERVER ({cluster.nameserver}) differ"
        assert differ in world.run("cluster", code=2)
        assert "broker-a" in world.run("cluster", "--nameserver", "default")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cluster", "--nameserver", "nowhere"), "'nowhere' is not HOST:PORT, and there is no login 'nowhere' in"),
        (("logout",), "there is no login 'default' in"),
        (("cluster", "--nameserver", f"lockstep://a:{SECRET}@{GONE}"), "others may see a password that it has"),
        (("login", "--nameserver", GONE), "a login needs a user: give --user NAME"),
        (("cluster", "--nameserver", "moved"), "login moved in"),
    ],
)
def test_invalid_choice_of_a_login_is_explained(world: World, arguments: tuple[str, ...], words: str) -> None:
    world.file.store("moved", ClusterAddress((GONE,), Tls(ca="/nowhere/ca.pem")))
    assert words in world.run(*arguments, code=2)


def test_password_is_typed_once_and_nothing_is_stored_by_a_login_that_fails(world: World) -> None:
    asked = iter([SECRET])
    world.monkeypatch.setattr("getpass.getpass", lambda prompt: next(asked))
    with ThreadedCluster(FakeBroker("broker-a")) as cluster:
        assert "connection refused" in world.run("login", "--nameserver", GONE, "--user", "billing", code=1)
        world.stdin = Terminal
        assert "the server asks for no login" in world.run("login", "--nameserver", cluster.nameserver, "--user", "billing", code=1)
        assert next(asked, None) is None
        assert world.file.read() == {}
        assert world.run("login", "--list") == "no login is stored\n"


def test_name_of_a_login_that_would_be_an_address_is_refused_before_the_password(world: World) -> None:
    assert "'h:1' is not the name of a login" in world.run("login", "h:1", "--nameserver", GONE, "--user", "billing", code=2)
