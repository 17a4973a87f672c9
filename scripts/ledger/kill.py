#!/usr/bin/env python3
"""kill -9 of a server in the middle of requests, then a restart: the ledger must say what clients were told.

    kill.py BINARY [--requests 10000] [--kills 5] [--seed 1]

Requests, streamed and not, of two keys run on 32 connections. At random moments the server is killed and started anew on the same folder. Every
usage that a client has read must be in the ledger with the same counts. A request without one may be there as cut, or with an end that its client
did not live to read, at most one for each connection and kill. Exit code 0 if that holds.
"""
import argparse
import asyncio
import json
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server import Server  # noqa: E402

CONNECTIONS = 32
COUNTS = ("prompt_tokens", "completion_tokens")


class Told:
    """What clients have read, by request id."""

    def __init__(self):
        self.usage, self.begun, self.next = {}, 0, 0


async def ask(reader, writer, port, rng, told):
    """One request; `None` where the server went in the middle of it."""
    told.next += 1
    request_id, stream, client = f"r{told.next}", rng.random() < 0.5, rng.choice(["a", "b"])
    body = {"prompt": list(range(1, rng.randint(2, 9))), "max_tokens": rng.randint(1, 6), "stream": stream, "ignore_eos": True}
    if stream:
        body["stream_options"] = {"include_usage": True}
    payload = json.dumps(body).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer key-{client}\r\nx-request-id: {request_id}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n")
    writer.write(head.encode() + payload)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert " 200 " in head.split("\r\n")[0], head
    usage = None
    if "content-length:" in head:
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        usage = json.loads(await reader.readexactly(length))["usage"]
        told.usage[request_id] = (client, *(usage[name] for name in COUNTS))
        return
    while True:
        size = int(await reader.readline(), 16)
        chunk = await reader.readexactly(size + 2)
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
        if usage is not None:
            # Told with the event that has it, whatever becomes of the rest.
            told.usage[request_id] = (client, *(usage[name] for name in COUNTS))
        if size == 0:
            return


async def connection(port, rng, told, limit):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    try:
        while told.next < limit:
            await ask(reader, writer, port, rng, told)
    except (OSError, asyncio.IncompleteReadError, ValueError):
        pass
    finally:
        writer.close()


async def load(server, rng, told, limit, kill_at):
    port = int(server.url.rsplit(":", 1)[1])
    clients = asyncio.gather(*(connection(port, rng, told, limit) for _ in range(CONNECTIONS)))
    if kill_at is None:
        return await clients
    while told.next < kill_at:
        await asyncio.sleep(rng.uniform(0, 0.002))
    server.process.kill()
    await clients


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, told, begun = random.Random(args.seed), Told(), time.monotonic()
    kills = sorted(rng.sample(range(args.requests // 20, args.requests), args.kills))
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"usage.directory={folder}", "usage.file_bytes=1000000", "server.api_keys=[\"{ name = 'a', key = 'key-a' }\", \"{ name = 'b', key = 'key-b' }\"]",
                    "server.admin_key=root"]
        for kill_at in [*kills, None]:
            server = Server(args.binary, *settings)
            asyncio.run(load(server, rng, told, args.requests, kill_at))
            if kill_at is not None:
                server.process.wait()
        server.stop()
        # The lines of the last life, and a start that marks nothing more.
        lines = [json.loads(line) for path in sorted(pathlib.Path(folder).glob("usage-*.jsonl")) for line in path.open()]
    ends = {line["id"]: line for line in lines if line["event"] == "end"}
    cut = [line for line in lines if line["event"] == "cut"]
    opened = sum(line["event"] == "open" for line in lines)
    wrong = [(request_id, told_counts) for request_id, told_counts in told.usage.items()
             if request_id not in ends or (ends[request_id]["client"], *(ends[request_id][name] for name in COUNTS)) != told_counts]
    untold = [request_id for request_id in ends if request_id not in told.usage]
    print(f"{told.next} requests, {len(told.usage)} told, {args.kills} kills, {time.monotonic() - begun:.1f} s")
    print(f"ledger: {opened} begun, {len(ends)} ended, {len(cut)} cut, {len(untold)} ended that nobody read")
    failed = []
    if wrong:
        failed.append(f"{len(wrong)} usages that clients read are not in the ledger, such as {wrong[:3]}")
    if opened != len(ends) + len(cut):
        failed.append(f"{opened} requests begun are not {len(ends)} ended and {len(cut)} cut")
    if len(cut) + len(untold) > CONNECTIONS * args.kills:
        failed.append(f"more than {CONNECTIONS} requests a kill without an end that was read")
    print("\n".join(failed) or "what clients were told is what the ledger says")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
