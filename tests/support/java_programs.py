"""Programs of tests/interop/java, compiled against libraries of RocketMQ from Maven Central."""

from pathlib import Path

from support.interop import PROGRAMS, require, run

JAVA = PROGRAMS / "java"


def compiled(version: str | None, folder: Path, *programs: str, pom: str = "pom.xml") -> str:
    """Fetch the libraries of a pom and compile the programs into `folder`. Return their class path. Skip the test if the tools are missing.

    `version`: that of RocketMQ, None for the pom's own.
    """
    require("java", "javac", "mvn", of="a test with RocketMQ's own programs")
    libraries = folder / "lib"
    chosen = [] if version is None else [f"-Drocketmq.version={version}"]
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA / pom), *chosen, "dependency:copy-dependencies", f"-DoutputDirectory={libraries}"]
    run(*fetch, cwd=folder)
    if programs:
        run("javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(folder), *(str(JAVA / f"{name}.java") for name in programs), cwd=folder)
    return f"{folder}:{libraries}/*"
