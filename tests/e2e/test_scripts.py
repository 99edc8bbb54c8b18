"""scripts/ in a new checkout; if something is missing, it is named, the exit code is 1, and the next run starts afresh."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import LIMIT_S, clean_environment

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
REAL = sys.executable

OLD = f"""
case "$*" in --version) echo "Python 3.9.2"; exit 0;; *version_info*) exit 1;; esac
exec {REAL} "$@"
"""
WITHOUT_VENV = f"""
case "$*" in *"import venv, ensurepip"*|"-m venv"*) exit 1;; esac
exec {REAL} "$@"
"""
VENV_FAILS = f"""
case "$*" in "-m venv"*) mkdir -p "${{@: -1}}/bin"; touch "${{@: -1}}/bin/python"; exit 1;; esac
exec {REAL} "$@"
"""
"""Create a folder without pip, as Debian does if ensurepip finds no wheels."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the scripts and the files they read, and make a folder `bin` for the PATH with the programs they call."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "bin").mkdir()
    for name in ("bash", "env", "dirname", "mkdir", "touch"):
        found = shutil.which(name)
        assert found is not None
        (folder / "bin" / name).symlink_to(found)
    return folder


def python3(checkout: Path, program: str) -> None:
    path = checkout / "bin" / "python3"
    path.write_text(f"#!{checkout}/bin/bash{program}")
    path.chmod(0o755)


def run(checkout: Path, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": str(checkout / "bin"), "HOME": str(checkout), **variables}
    return subprocess.run(
        [str(checkout / "scripts" / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("script", ["demo", "test", "check", "wheel"])
@pytest.mark.parametrize(
    ("program", "named"),
    [
        pytest.param(None, "install the package python3 (3.11 or newer)", id="no Python"),
        pytest.param(OLD, "Python 3.9.2 is too old: lockstep needs Python 3.11 or newer", id="an old Python"),
        pytest.param(WITHOUT_VENV, "install the package python3-venv", id="no python3-venv"),
        pytest.param(VENV_FAILS, "install the package python3-venv", id="venv fails"),
    ],
)
def test_missing_program_is_named_with_exit_code_1(checkout: Path, script: str, program: str | None, named: str) -> None:
    if program is not None:
        python3(checkout, program)
    for _ in range(2):
        done = run(checkout, script)
        assert (done.returncode, done.stdout) == (1, "")
        assert named in done.stderr


def test_interpreter_that_is_named_gets_an_environment_of_its_version(checkout: Path) -> None:
    """If .venv has the same version, or was made by python3, whatever that is now, it is used."""
    python3(checkout, VENV_FAILS)
    mine = "{}.{}".format(*sys.version_info)
    for version, named, environment in (("3.9", True, f".venv-{mine}"), ("3.9", False, ".venv"), (mine, True, ".venv")):
        other = checkout / ".venv" / "bin" / "python"
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text(f"#!{checkout}/bin/bash\necho {version}\n")
        other.chmod(0o755)
        done = run(checkout, "test", PYTHON="python3" if named else "")
        assert f"making {checkout / environment} …" in done.stderr
        assert done.returncode == 1


def test_tests_in_a_browser_name_what_they_lack(checkout: Path) -> None:
    python3(checkout, f'\nexec {REAL} "$@"\n')
    (checkout / "bin" / "id").write_text(f"#!{checkout}/bin/bash\necho 1000\n")
    (checkout / "bin" / "id").chmod(0o755)
    for program, lack in {"chromium": "there is no Chromium: install the package chromium.", "npm": "there is no npm"}.items():
        for arguments in ([], ["--possible"]):
            done = run(checkout, "browser", *arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(lack)
            assert done.stderr.count("\n") == 1
        (checkout / "bin" / program).symlink_to("/bin/true")
    done = run(checkout, "browser", "--possible")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_first_command_of_the_readme_works_in_a_new_checkout(tmp_path: Path) -> None:
    """It creates its own virtual environment and runs a small demo with its proof; the second run installs nothing."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "dist", "target"))
    (command,) = re.findall(r"## In one minute\n.*?\n\$ (.*?)\n", (ROOT / "README.md").read_text(), re.DOTALL)
    for again in (False, True):
        done = subprocess.run(
            ["bash", "-c", f"{command} --orders 100 --seconds 4"],
            cwd=checkout,
            env=clean_environment(COLUMNS="140"),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "proved: 1,000 events, every order's in order, none lost" in done.stdout
        assert ("installing" not in done.stderr) == again
