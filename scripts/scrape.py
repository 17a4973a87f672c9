#!/usr/bin/env python3
"""What scraping costs under load: `scripts/scrape.py BINARY [--rate 20] [--streams 64] [--seconds 10] [--rounds 6]`.

Streams run without a pause. In turns the page of metrics is left alone and scraped so many times a second, with gzip as Prometheus asks for
it. Prints the times of the scrapes beside how late the scraper itself woke, which is what the machine makes any thread wait, and the ratio of
the tokens per second with and without scrapes, its mean with twice the standard error. Last, without streams, the processor time of the server for a scrape: that share of all cores
is what scraping takes from the streams, and it can be told where the ratio moves by more.
"""

import argparse
import asyncio
import http.client
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "soak")]

from server import Server
from wire import Pool

COUNTER = "perigee_generation_tokens_total"
QUIET_SCRAPES = 1000
# Tokens of a reply. Streams that began together would all be as deep at once, and their speed would follow their depth.
REPLY_TOKENS = 256


def stream(port, streams):
    """Streams until it is killed."""
    os.nice(5)

    async def one(number):
        pool = Pool("127.0.0.1", port)
        tokens = REPLY_TOKENS * (number + 1) // streams
        while True:
            prompt = [10 + (number * 31 + i * 7) % 900 for i in range(16)]
            body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "stream": True, "repetition_guard": "off"}
            outcome = await pool.send("/v1/completions", json.dumps(body).encode(), "none", 600)
            assert outcome.status == 200 and not outcome.fault, (outcome.status, outcome.fault, outcome.body[-200:])
            tokens = REPLY_TOKENS

    async def all_of_them():
        await asyncio.gather(*(one(number) for number in range(streams)))

    asyncio.run(all_of_them())


def value(server, name):
    """The value of a metric without labels."""
    return next(float(line.rsplit(" ", 1)[1]) for line in server.get("/metrics").splitlines() if line.startswith(name + " "))


def scrape(connection):
    """One scrape; the bytes of its body as sent."""
    connection.request("GET", "/metrics", headers={"accept-encoding": "gzip"})
    answer = connection.getresponse()
    page = answer.read()
    assert (answer.status, answer.getheader("content-encoding")) == (200, "gzip")
    return len(page)


def processor_seconds(server):
    """Processor time of all threads of the server, seconds."""
    threads = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def window(server, connection, seconds, rate, times):
    """Tokens per second over some seconds, with `rate` scrapes a second."""
    begun, first = time.perf_counter(), value(server, COUNTER)
    due, end = begun, begun + seconds
    while rate and due < end:
        time.sleep(max(0, due - time.perf_counter()))
        before = time.perf_counter()
        size = scrape(connection)
        times.append((time.perf_counter() - before, max(0, before - due), size))
        due += 1 / rate
    time.sleep(max(0, end - time.perf_counter()))
    took, last = time.perf_counter() - begun, value(server, COUNTER)
    return (last - first) / took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--rate", type=float, default=20, help="scrapes a second")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10, help="of a window")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of windows")
    args = parser.parse_args()
    with Server(args.binary, f"scheduler.max_num_seqs={args.streams}", "telemetry.log_level=warn,perigee::boot=info") as server:
        host, port = server.url.removeprefix("http://").rsplit(":", 1)
        load = multiprocessing.Process(target=stream, args=(int(port), args.streams), daemon=True)
        load.start()
        server.until(lambda: value(server, "perigee_running_sequences") == args.streams, "every stream runs")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        times, ratios = [], []
        for number in range(args.rounds):
            # The order changes from round to round, so that a drift of the machine falls on both.
            order = (0, args.rate) if number % 2 == 0 else (args.rate, 0)
            found = {rate: window(server, connection, args.seconds, rate, times) for rate in order}
            ratios.append(found[args.rate] / found[0])
            print(f"{found[0]:8.0f} tokens/s without, {found[args.rate]:8.0f} with {args.rate:g} scrapes a second: {ratios[-1]:.3f}", flush=True)
            assert load.is_alive(), "the streams ended"
        load.kill()
        server.until(lambda: value(server, "perigee_running_sequences") == 0, "no stream runs")
        before = processor_seconds(server)
        for _ in range(QUIET_SCRAPES):
            scrape(connection)
        each = (processor_seconds(server) - before) / QUIET_SCRAPES
    took, late, sizes = (sorted(figures) for figures in zip(*times))
    at = lambda ranked, share: ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1e3
    print(f"{len(times)} scrapes of {statistics.mean(sizes) / 1024:.1f} KiB: p50 {at(took, 0.5):.2f}, p99 {at(took, 0.99):.2f}, most {at(took, 1):.2f} ms")
    print(f"the scraper's own waking was late by p50 {at(late, 0.5):.2f}, p99 {at(late, 0.99):.2f}, most {at(late, 1):.2f} ms")
    print(f"processor time of a scrape {each * 1e6:.0f} us: {args.rate * each / os.cpu_count():.2%} of {os.cpu_count()} cores at {args.rate:g} scrapes a second")
    logs = [math.log(ratio) for ratio in ratios]
    error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    mean = math.exp(statistics.mean(logs))
    print(f"throughput with scrapes to without: mean {mean:.4f} +- {mean * error:.4f}, median {statistics.median(ratios):.4f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
