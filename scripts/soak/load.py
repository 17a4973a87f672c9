"""The greedy clients, in a process of their own: load.py PARAMETERS, a JSON object. Prints a JSON object a second, and one at the end."""

import asyncio
import collections
import json
import random
import sys
import time

from mix import Mix
from wire import Pool, classify


class Load:
    """`rate`: requests a second over all keys, arriving whether or not earlier ones were answered; 0 = `loops` at a time instead."""

    def __init__(self, port, keys, seconds, seed, context, sees, bound_s, rate=0, loops=0):
        self.keys, self.rate, self.loops, self.bound_s = keys, rate, loops, bound_s
        self.rng = random.Random(seed)
        self.mix = Mix(self.rng, context, sees)
        self.pools = {key: Pool("127.0.0.1", port) for key in keys}
        self.until = time.monotonic() + seconds
        self.sent = 0
        self.ended = collections.Counter()
        # By key: [class, status], with counts; and seconds to the first token and to the end of results.
        self.statuses = {key: collections.Counter() for key in keys}
        self.first_s = {key: [] for key in keys}
        self.total_s = {key: [] for key in keys}
        self.kinds = collections.Counter()
        self.faults = []

    async def run(self):
        ticker = asyncio.create_task(self.tick())
        await (self.arrivals() if self.rate else self.closed_loops())
        ticker.cancel()
        print(json.dumps({
            "sent": self.sent, "ended": self.ended, "kinds": self.kinds, "faults": self.faults[:20], "num_faults": len(self.faults),
            "statuses": {key: [[*names, count] for names, count in counts.items()] for key, counts in self.statuses.items()},
            "first_s": self.first_s, "total_s": self.total_s, "done": True,
        }), flush=True)

    async def tick(self):
        while True:
            await asyncio.sleep(1)
            print(json.dumps({"sent": self.sent, "ended": self.ended}), flush=True)

    async def arrivals(self):
        """Poisson arrivals."""
        running, due = set(), time.monotonic()
        while due < self.until:
            await asyncio.sleep(max(0, due - time.monotonic()))
            task = asyncio.create_task(self.one(self.rng.choice(self.keys)))
            running.add(task)
            task.add_done_callback(running.discard)
            due += self.rng.expovariate(self.rate)
        await asyncio.gather(*running)

    async def closed_loops(self):
        async def loop(key):
            while time.monotonic() < self.until:
                await self.one(key)
        await asyncio.gather(*(loop(self.keys[i % len(self.keys)]) for i in range(self.loops)))

    async def one(self, key):
        request = self.mix.draw()
        self.sent += 1
        outcome = await self.pools[key].send(request.path, request.body, key, self.bound_s, request.leave_after)
        try:
            kind = classify(outcome, request.expected)
        except (ValueError, KeyError, TypeError) as problem:
            kind = "fault"
            self.faults.append(f"{request.kind} {request.path} {request.body[:200]!r}: {problem}")
        self.ended[kind] += 1
        self.kinds[f"{request.kind}: {kind}"] += 1
        self.statuses[key][kind, outcome.status or 0] += 1
        if kind == "result":
            self.total_s[key].append(round(outcome.total_s, 4))
            if outcome.first_s is not None:
                self.first_s[key].append(round(outcome.first_s, 4))


if __name__ == "__main__":
    asyncio.run(Load(**json.loads(sys.argv[1])).run())
