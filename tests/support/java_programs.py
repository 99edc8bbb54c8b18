"""Programs of tests/interop/java, compiled against a version of RocketMQ's client from Maven Central."""

import shutil
import subprocess
from pathlib import Path

import pytest

JAVA = Path(__file__).resolve().parents[1] / "interop" / "java"
TOOLS = ("java", "javac", "mvn")
FETCH_S = 600


def compiled(version: str, folder: Path, *programs: str) -> str:
    """Compile the programs into `folder`. Return their class path. Skip the test if the tools are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: RocketMQ's Java clients need a JDK and Maven")
    libraries = folder / "lib"
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), f"-Drocketmq.version={version}", "dependency:copy-dependencies"]
    subprocess.run([*fetch, f"-DoutputDirectory={libraries}"], check=True, timeout=FETCH_S)
    sources = [str(JAVA / f"{program}.java") for program in programs]
    subprocess.run(["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(folder), *sources], check=True, timeout=FETCH_S)
    return f"{folder}:{libraries}/*"
