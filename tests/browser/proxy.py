"""A proxy that serves a dashboard below a path, as those before it in production do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextmanager
def below(prefix: str, address: str) -> Iterator[str]:
    """Serve what is at the address below a path. Yield where it is then. Other paths are 404."""
    target = urlsplit(address).netloc

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            connection = HTTPConnection(target)
            connection.request(self.command, self.path.removeprefix(prefix), sent, dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            connection.close()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("connection", "content-length"):
                    self.send_header(name, value)
            if response.status != 304:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
