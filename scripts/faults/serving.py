"""A `perigee serve` that things are done to, and connections that see every byte of its answers."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time

# Longest time for anything; what takes longer has failed.
BOUND_S = 60


def until(condition, what, bound_s=BOUND_S):
    """Looks until the condition holds; gives what it was."""
    deadline = time.monotonic() + bound_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {bound_s} s"
        time.sleep(0.01)
    return found


class Serving:
    """`perigee serve` on a free port of loopback, in a folder without settings; killed at the end of its block if it still runs.

    `cache`: the setting that gives the size of its KV cache. `before`: words before the command. `prepare`: called in the child before the
    binary begins. `log`: a file descriptor for its stderr, where this object is not to read it; it then needs a `port`.
    """

    def __init__(self, binary, *settings, cache="kv_cache.memory_bytes=64MiB", arguments=(), model=None, before=(), prepare=None,
                 environment=None, log=None, port=0):
        self.command = [*before, str(binary), "serve", "--host", "127.0.0.1", "--port", str(port)]
        for setting in ("telemetry.log_format=json", cache, *settings):
            self.command += ["--set", setting]
        if model is not None:
            self.command += ["--model", str(model)]
        self.command += arguments
        names = lambda name: name.startswith("PERIGEE_") or name == "RUST_LOG"
        clean = {name: value for name, value in os.environ.items() if not names(name)}
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if log is None else log,
            cwd=tempfile.gettempdir(), env=clean | (environment or {}), preexec_fn=prepare)
        self.port = port
        self.lines = []
        self._reader = None
        if log is None:
            self._reader = threading.Thread(target=self._read_log, daemon=True)
            self._reader.start()

    def _read_log(self):
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return "\n".join(self.lines)

    def entries(self, message):
        """Lines of the log whose message begins so."""
        parsed = (json.loads(line) for line in list(self.lines) if line.startswith("{"))
        return [entry for entry in parsed if entry.get("message", "").startswith(message)]

    def ready(self):
        """Waits until requests are taken; gives itself."""
        def look():
            assert self.process.poll() is None, f"the server ended with code {self.process.returncode}:\n{self.log()}"
            if self._reader is None:
                try:
                    return self.get("/health/ready").status == 200
                except OSError:
                    return False
            return self.entries("ready")
        found = until(look, "the server is ready")
        if self._reader is not None:
            self.port = int(found[0]["url"].rsplit(":", 1)[1])
        return self

    def signal(self, name):
        self.process.send_signal(getattr(signal, f"SIG{name}"))

    def ended(self, bound_s=BOUND_S):
        """Waits for its end; the exit code."""
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process does not end within {bound_s} s:\n{self.log()}") from None
        if self._reader is not None:
            self._reader.join(BOUND_S)
        return code

    def stop(self):
        """SIGTERM; the exit code."""
        self.signal("TERM")
        return self.ended()

    def close(self):
        self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()

    # ---- What it answers.

    def connect(self, **more):
        return Connection(self.port, **more)

    def get(self, path, key=None):
        with self.connect() as connection:
            return connection.ask("GET", path, key=key)

    def post(self, path, body, key=None):
        with self.connect() as connection:
            return connection.ask("POST", path, body, key)

    def stream(self, body, path="/v1/completions", **more):
        """A stream of which the first event was read."""
        connection = self.connect(**more)
        connection.send(request("POST", path, body | {"stream": True}))
        head = connection.head()
        assert head.status == 200, (head.status, connection.rest(head))
        connection.first = next(connection.events())
        return connection

    def metric(self, name):
        """The value of a line of the metrics page, labels included in its name."""
        lines = [line for line in self.get("/metrics").text().splitlines() if line.startswith(name + " ")]
        assert len(lines) == 1, f"{name}: {lines}"
        return float(lines[0].rsplit(" ", 1)[1])

    def memory_bytes(self):
        """Resident."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) << 10

    def until_idle(self):
        """Nothing runs, nothing waits, no block is held, and no other request is under way."""
        names = ["perigee_running_sequences", "perigee_queue_sequences", 'perigee_kv_blocks{state="used"}']
        until(lambda: [self.metric(name) for name in names] == [0, 0, 0], "no sequence and no used block is left")
        until(lambda: self.metric("perigee_http_requests_in_flight") == 1, "no request is left under way")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            if kind is None:
                code = self.stop()
                assert code == 0, f"the server ended with code {code} after SIGTERM:\n{self.log()}"
            self.kill()


def request(method, path, body=None, key=None, headers=()):
    """The bytes of a request."""
    body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *headers]
    if method == "POST":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Answer:
    """Head of an answer, and its body once that was read."""

    def __init__(self, status, headers):
        self.status, self.headers, self.body = status, headers, b""

    def text(self):
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def error(self):
        """Code of the error in the body."""
        return self.json()["error"]["code"]

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:600]!r}"


class Cut(Exception):
    """The connection ended before the answer did."""


class Connection:
    """One connection to the server. `window`: bytes of its receive buffer."""

    def __init__(self, port, window=None):
        self.socket = socket.socket()
        if window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.settimeout(BOUND_S)
        self.socket.connect(("127.0.0.1", port))
        self.buffer = b""
        self._events = None

    def send(self, data):
        self.socket.sendall(data)

    def ask(self, method, path, body=None, key=None, headers=()):
        """Sends a request and reads its answer."""
        self.send(request(method, path, body, key, headers))
        return self.answer()

    def answer(self):
        head = self.head()
        self.rest(head)
        return head

    def head(self):
        lines = self._through(b"\r\n\r\n").decode("latin-1").split("\r\n")
        fields = (line.split(":", 1) for line in lines[1:] if line)
        return Answer(int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, value in fields})

    def rest(self, answer):
        """Reads the body that belongs to the head."""
        if "chunked" in answer.headers.get("transfer-encoding", ""):
            answer.body = b"".join(self.chunks())
        else:
            answer.body = self._bytes(int(answer.headers.get("content-length", 0)))
        return answer.body

    def chunks(self):
        """Chunks up to the last one, which has no bytes. Raises `Cut` where it does not come."""
        while size := int(self._through(b"\r\n").split(b";")[0], 16):
            yield self._bytes(size + 2)[:-2]
        self._through(b"\r\n")

    def events(self):
        """Data of events as they come: dicts, and at last "[DONE]"."""
        if self._events is None:
            self._events = self._parse_events()
        return self._events

    def _parse_events(self):
        text = b""
        for chunk in self.chunks():
            text += chunk
            *whole, text = text.split(b"\n\n")
            for event in whole:
                if event.startswith(b"data: "):
                    data = event[6:].decode()
                    yield data if data == "[DONE]" else json.loads(data)
        assert not text, f"half an event at the end: {text[:200]}"

    def to_the_end(self):
        """All events that are left, of a stream that ends as it should."""
        events = list(self.events())
        assert events and events[-1] == "[DONE]", f"the stream does not end with [DONE]: {events[-1:]}"
        return events[:-1]

    def is_closed(self):
        """Waits until the server has closed the connection; gives what came before."""
        try:
            while self._more():
                pass
        except Cut:
            pass
        rest, self.buffer = self.buffer, b""
        return rest

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionError as error:
            raise Cut(str(error)) from None
        if not data:
            raise Cut("closed")
        self.buffer += data
        return True

    def _through(self, end):
        while end not in self.buffer:
            self._more()
        found, self.buffer = self.buffer.split(end, 1)
        return found

    def _bytes(self, count):
        while len(self.buffer) < count:
            self._more()
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def reset(self):
        """Closes as a killed process does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
