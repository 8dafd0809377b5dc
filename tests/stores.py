"""An S3 server on loopback, and a proxy before it that fails on request: for the tests of object stores."""

import http.client
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from piecemill.objects import ObjectPlace

_numbers = itertools.count()


class Server:
    """moto's S3 server in this process, on a free port."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self.host, self.port = self._moto.get_host_and_port()

    def stop(self) -> None:
        self._moto.stop()

    def options(self, port: int | None = None) -> dict:
        return {
            "endpoint": f"http://127.0.0.1:{port or self.port}",
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 5},
        }

    def bucket(self, name: str = "") -> str:
        """A new bucket."""
        name = name or f"bucket-{next(_numbers)}"
        asked = http.client.HTTPConnection(self.host, self.port)
        asked.request("PUT", f"/{name}")
        assert asked.getresponse().status == 200
        asked.close()
        return name

    def place(self, folder: str = "run", **more) -> ObjectPlace:
        """A folder in a new bucket."""
        return ObjectPlace(f"s3://{self.bucket()}/{folder}", self.options(), **more)


class Faults:
    """What a proxy does wrong: each fault is used for one request whose method and path match, in order."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, str, str | int]] = []
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def add(self, method: str, path: str, *faults: str | int) -> None:
        """A status to answer with; "cut" before the server sees it; "lost": it does, but the answer is cut; "half"."""
        self.planned += [(method, path, fault) for fault in faults]

    def next(self, method: str, path: str) -> str | int | None:
        with self._lock:
            self.requests.append((method, path))
            for number, (wanted, pattern, fault) in enumerate(self.planned):
                if wanted == method and re.search(pattern, path):
                    del self.planned[number]
                    return fault
        return None


@contextmanager
def proxied(server: Server) -> Iterator[tuple[int, Faults]]:
    """The port of a proxy to the server, and its faults."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.next(self.command, self.path)
            if fault == "cut":
                self.close_connection = True
                return
            if isinstance(fault, int):
                said = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
                self.reply(fault, [], said if fault in (429, 503) else b"")
                return
            asked = http.client.HTTPConnection(server.host, server.port)
            asked.request(self.command, self.path, body, dict(self.headers.items()))
            answer = asked.getresponse()
            content, headers = answer.read(), answer.getheaders()
            asked.close()
            if fault == "lost":
                self.close_connection = True
                return
            self.reply(answer.status, headers, content, len(content) // 2 if fault == "half" else None)

        def reply(self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None) -> None:
            self.send_response(status)
            own = ("content-length", "connection", "date", "server", "transfer-encoding")
            for name, value in headers:
                if name.lower() not in own:
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length", str(len(body)))
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent])
            self.close_connection = sent is not None

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy.server_port, faults
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
