"""Starts programs by fork from a process that has imported them, because imports take most of a short program's time.

`forking()` replaces subprocess.Popen: `python -m lockstep…`, `python -m support…` and `python FILE.py` are forked by the server, other
programs are executed as usual. The processes have their own pid, signals, descriptors and environment. They are children of the caller,
which is their subreaper while the server forks twice. The slow run does not use this, or, in CI, a third of its files.
"""

import atexit
import ctypes
import gc
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

TESTS = Path(__file__).resolve().parents[1]
PRELOADED = (
    "support.commands",
    "lockstep.broker.app",
    "lockstep.client.producer.producer",
    "lockstep.client.consumer.pull_consumer",
    "lockstep.client.consumer.push_consumer",
    "lockstep.nameserver.app",
    "lockstep.runtime.server_main",
    "prometheus_client",
    "rich.table",
    "uvloop",
)
REQUEST_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
INTERPRETER = ("PYTHON", "LC_", "LANG", "MALLOC_")
"""Variables that the interpreter reads at its start. A program with other values than this process is executed."""
EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class ForkServer:
    """The caller's end of the fork server, with one request at a time. `preloaded`: the modules that the server imports first."""

    def __init__(self, preloaded: Sequence[str] = PRELOADED) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "support.fork_server", str(theirs.fileno()), *preloaded]
            path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
            )
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        """Return the pid of the new process, a child of this one."""
        with self._lock:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                data = json.dumps(request).encode("utf-8", "surrogateescape")
                assert len(data) < REQUEST_BYTES_MAX
                socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], streams)
                self._socket.sendall(data)
                response = self._socket.recv(4)
                if len(response) < 4:
                    raise OSError("the fork server has ended")
                return int.from_bytes(response, "big")
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def request_of(call: dict[str, Any]) -> dict[str, Any] | None:
    """Return the request for the server, or None if the program has to be executed."""
    args, environment = call["args"], os.environ if call["env"] is None else call["env"]
    if call["shell"] or call["executable"] or call["preexec_fn"] or call["pass_fds"] or not isinstance(args, list | tuple):
        return None
    words = [os.fspath(word) for word in args]
    if not all(isinstance(word, str) for word in words) or words[0] != sys.executable:
        return None
    match words[1:]:
        case ["-m", module, *_] if module.startswith(("lockstep.", "support.")):
            program = words[2:]
        case [path, *_] if path.endswith(".py"):
            program = words[1:]
        case _:
            return None
    for name in {*environment, *os.environ}:
        if name.startswith(INTERPRETER) and name != "PYTHONPATH" and environment.get(name) != os.environ.get(name):
            return None
    cwd = os.fspath(call["cwd"] or os.getcwd())
    return {"words": program, "environment": dict(environment), "cwd": cwd, "session": bool(call["start_new_session"])}


@contextmanager
def forking(server: ForkServer | None) -> Iterator[None]:
    """Start programs by fork if this makes no difference to them. Without a server all are executed."""
    plain = subprocess.Popen
    if server is None:
        yield
        return
    start = server.start

    class ForkedPopen(plain):  # type: ignore[valid-type, misc]
        def _execute_child(self, *args: Any, **more: Any) -> None:
            call = EXECUTE.bind(self, *args, **more).arguments
            request = request_of(call)
            if request is None:
                super()._execute_child(*args, **more)
                return
            streams = [call[name] if call[name] != -1 else number for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))]
            try:
                self.pid = start(request, streams)
                self._child_created = True
            finally:
                self._close_pipe_fds(*(call[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))

    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = plain  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------------------------- the server


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return a request and its three streams, or None if the caller has ended."""
    head, streams, _, _ = socket.recv_fds(control, 4, 3)
    if not head:
        return None
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        data += control.recv(size - len(data))
    return json.loads(data.decode("utf-8", "surrogateescape")), streams


def serve(control: socket.socket) -> None:
    gc.collect()
    gc.freeze()
    while (received := receive(control)) is not None:
        request, streams = received
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            # The grandchild is the program. Its parent ends at once, so the subreaper, the caller, becomes its parent.
            pid = os.fork()
            if pid == 0:
                for descriptor in (read, write, control.fileno()):
                    os.close(descriptor)
                become(request, streams)
            os.write(write, pid.to_bytes(4, "big"))
            os._exit(0)
        os.waitpid(middle, 0)
        control.sendall(os.read(read, 4))
        for descriptor in (read, write, *streams):
            os.close(descriptor)


def become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run the program as `python -m MODULE` or `python FILE.py` does, and exit."""
    code = 1
    try:
        if request["session"]:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r")), sys.stdin.encoding)
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), sys.stdout.encoding, sys.stdout.errors)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), sys.stderr.encoding, "backslashreplace", write_through=True)
        vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
        sys.argv = request["words"]
        code = run(sys.argv[0])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # notices: the process ends
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def run(program: str) -> int:
    """Return the exit code with which Python would exit."""
    is_file = program.endswith(".py")
    sys.path.insert(0, str(Path(program).absolute().parent) if is_file else os.getcwd())
    try:
        if is_file:
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:  # notices: Python prints it and ends with 1
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main() -> None:
    for name in sys.argv[2:]:
        __import__(name)
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
