"""The build hook: with a cargo the wheel has the kernels, without one it is pure Python; LOCKSTEP_NATIVE may require or prevent them."""

import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "protocol/lockstep/protocol/_native.abi3.so"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernels are built on Linux")


class App:
    """Takes what the hook displays."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.display_warning = self.display_info = self.lines.append


class Project:
    """A project folder whose builds call `cargo`, a shell script."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.app = App()
        self.bin = root / "bin"
        for folder in (self.bin, root / "native", (root / SOURCES).parent):
            folder.mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{self.bin}")
        monkeypatch.delenv("LOCKSTEP_NATIVE", raising=False)

    def cargo(self, script: str) -> None:
        path = self.bin / "cargo"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def good_cargo(self) -> Path:
        """Let cargo report a library, and return its path."""
        library = self.root / "liblockstep_native.so"
        library.write_bytes(b"library")
        message = {"reason": "compiler-artifact", "target": {"name": "lockstep_native"}, "filenames": [str(library)]}
        self.cargo(f"echo '{json.dumps({'reason': 'other'})}'; echo '{json.dumps(message)}'")
        return library

    def run(self, version: str = "standard") -> dict[str, Any]:
        spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        data: dict[str, Any] = {"force_include": {}, "pure_python": True}
        app: Any = self.app
        module.NativeKernels(str(self.root), {}, None, None, "", "wheel", app).initialize(version, data)
        return data


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


PURE = {"force_include": {}, "pure_python": True}


def test_wheel_has_the_library_and_the_tag_of_a_compiled_one(project: Project) -> None:
    library = project.good_cargo()
    data = project.run()
    assert data["force_include"] == {str(library): "lockstep/protocol/_native.abi3.so"}
    assert not data["pure_python"]
    assert data["tag"].startswith("cp311-abi3-linux_")
    assert not (project.root / SOURCES).exists()


def test_editable_installation_has_the_library_among_the_sources(project: Project) -> None:
    project.good_cargo()
    assert project.run("editable") == PURE
    assert (project.root / SOURCES).read_bytes() == b"library"


def test_without_cargo_the_wheel_is_pure_and_a_line_says_so(project: Project) -> None:
    assert project.run() == PURE
    (line,) = project.app.lines
    assert line.startswith("lockstep-mq is installed as pure Python, without its native kernels: there is no cargo")
    assert "\n" not in line


@pytest.mark.parametrize("script", ["echo 'error: rustc 1.63 is too old' >&2; exit 101", "echo '{}'"])
def test_failed_build_leaves_the_wheel_pure_and_gives_the_reason(project: Project, script: str) -> None:
    project.cargo(script)
    assert project.run() == PURE
    assert ("rustc 1.63 is too old" if "exit" in script else "cargo reported no library") in project.app.lines[0]


def test_failed_build_removes_the_library_of_older_sources(project: Project) -> None:
    (project.root / SOURCES).write_bytes(b"old")
    assert project.run("editable") == PURE
    assert not (project.root / SOURCES).exists()


@pytest.mark.parametrize("script", [None, "echo 'error: no network' >&2; exit 101"])
def test_required_kernels_that_are_not_built_are_an_error(project: Project, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    monkeypatch.setenv("LOCKSTEP_NATIVE", "require")
    if script:
        project.cargo(script)
    with pytest.raises(RuntimeError, match="no network" if script else "no cargo"):
        project.run()


def test_zero_does_not_call_cargo(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_NATIVE", "0")
    project.cargo(f"touch {project.root}/called")
    assert project.run() == PURE
    assert not os.path.exists(f"{project.root}/called")
