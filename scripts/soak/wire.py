"""One request over a raw connection: what came back, when its first token came, and whether the answer was whole."""

import asyncio
import json
import time


class Outcome:
    """What became of a request. `first_s` and `total_s` are seconds from the moment it was sent."""

    def __init__(self):
        self.status = None
        self.headers = {}
        self.body = b""
        self.first_s = None
        self.total_s = None
        # The client closed the connection in the midst of the answer, as it meant to.
        self.left = False
        self.fault = None


class Pool:
    """Connections to one server, used again as long as both sides keep them."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.idle = []

    async def send(self, path, body, key, bound_s, leave_after=None):
        """Posts a body (bytes). `leave_after`: bytes of the answer after which the connection is cut; 0 = before any came."""
        outcome = Outcome()
        try:
            await asyncio.wait_for(self._send(outcome, path, body, key, leave_after), bound_s)
        except TimeoutError:
            outcome.fault = f"no whole answer within {bound_s} s"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            outcome.fault = f"{type(error).__name__}: {error}"
        return outcome

    async def _send(self, outcome, path, body, key, leave_after):
        reader, writer = await self._connection()
        keep = False
        try:
            began = time.perf_counter()
            writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
                         f"content-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            if leave_after == 0:
                outcome.left = True
                return
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            outcome.status = int(head[0].split(" ")[1])
            outcome.headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in head[1:] if line)}
            if "transfer-encoding" in outcome.headers:
                await self._chunks(outcome, reader, began, leave_after)
            else:
                outcome.body = await reader.readexactly(int(outcome.headers["content-length"]))
            outcome.total_s = time.perf_counter() - began
            keep = not outcome.left and outcome.headers.get("connection") != "close"
        finally:
            if keep:
                self.idle.append((reader, writer))
            else:
                writer.transport.abort()

    async def _chunks(self, outcome, reader, began, leave_after):
        parts, seen = [], 0
        while size := int((await reader.readuntil(b"\r\n")), 16):
            data = (await reader.readexactly(size + 2))[:-2]
            if outcome.first_s is None and not data.startswith(b":"):
                outcome.first_s = time.perf_counter() - began
            parts.append(data)
            seen += size
            if leave_after is not None and seen >= leave_after:
                outcome.left = True
                return
        await reader.readexactly(2)
        outcome.body = b"".join(parts)

    async def _connection(self):
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(*self.address, limit=1 << 20)

    def close(self):
        for _, writer in self.idle:
            writer.transport.abort()
        self.idle.clear()


def classify(outcome, expected):
    """"result", "refused", "left" or "invalid", as an answer may be; raises `ValueError` with what is wrong with any other."""
    if outcome.left:
        return "left"
    if outcome.fault:
        raise ValueError(outcome.fault)
    status, headers, body = outcome.status, outcome.headers, outcome.body
    shown = f"{status} {body[-300:]!r}"
    if status in (429, 503):
        seconds = headers.get("retry-after", "")
        if not seconds.isdigit() or int(seconds) < 1:
            raise ValueError(f"refused without Retry-After: {shown}")
        json.loads(body)["error"]["message"]
        return "refused"
    if expected != 200:
        if status != expected:
            raise ValueError(f"{expected} was due: {shown}")
        json.loads(body)["error"]["message"]
        return "invalid"
    if status != 200:
        raise ValueError(f"200 was due: {shown}")
    if "transfer-encoding" in headers:
        if b'"error":{' in body[-2000:]:
            raise ValueError(f"an error in a stream: {shown}")
        endings = (b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n')
        if not body.endswith(endings) and not any(end in body[-100_000:] for end in (b"event: response.completed", b"event: response.incomplete")):
            raise ValueError(f"a stream without its end: {shown}")
    else:
        json.loads(body)
    return "result"
