"""Soaks a server of this repository: greedy clients offer one and a half times what it can do, one small client goes on asking, and nothing may be
lost, hang or leak: soak.py BINARY [--minutes N] [--model DIR]."""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent

from mix import Mix
from wire import Pool, classify

GREEDY = ["greedy-a", "greedy-b", "greedy-c"]
SMALL = "small"
WEIGHTS = {"greedy-a": 1.0, "greedy-b": 1.0, "greedy-c": 2.0, SMALL: 1.0}
MAX_NUM_SEQS = 16
MAX_QUEUE_LEN = 64
# The longest that a new request waits for the step before it, as an operator of short chats would have it.
TARGET_STEP_MS = 5
OVERLOAD = 1.5
# A request that takes longer hangs.
REQUEST_TIMEOUT_S = 120
BOUND_S = REQUEST_TIMEOUT_S + 30
SAMPLE_S = 5
# Most growth of resident memory over the second half of the load. Judged in runs long enough to tell a trend from noise.
SLOPE_BOUND_MB_PER_HOUR = 60
SLOPE_MIN_MINUTES = 10
# Most of the small client's p99 time to first token, loaded to unloaded.
FAIRNESS_BAR = 2.0
STATES = ("used", "cached", "free")


class Served:
    """`perigee serve` with four keys."""

    def __init__(self, binary, model):
        keys = ", ".join(f'{{ name = "{name}", key = "{name}", weight = {weight} }}' for name, weight in WEIGHTS.items())
        settings = ["telemetry.log_format=json", "telemetry.log_level=warn,perigee::boot=info", f"server.api_keys=[{keys}]",
                    f"server.request_timeout_s={REQUEST_TIMEOUT_S}", f"scheduler.max_num_seqs={MAX_NUM_SEQS}",
                    f"scheduler.max_queue_len={MAX_QUEUE_LEN}", f"scheduler.target_step_ms={TARGET_STEP_MS}", "server.max_connections=4096"]
        command = [binary, "serve", "--host", "127.0.0.1", "--port", "0"]
        if model is None:
            # Small enough for sequences to be preempted.
            settings.append("kv_cache.memory_bytes=32MiB")
        else:
            command += ["--model", model]
        for setting in settings:
            command += ["--set", setting]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PERIGEE_") and name != "RUST_LOG"}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean,
                                        cwd=tempfile.gettempdir())
        self.warnings, begun = [], []
        for line in self.process.stderr:
            begun.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("message") == "ready":
                break
        else:
            raise SystemExit(f"the server did not start (exit code {self.process.wait()}):\n{''.join(begun[-20:])}")
        self.port = int(entry["url"].rsplit(":", 1)[1])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            if '"level":"INFO"' not in line:
                self.warnings.append(line.strip())

    def get(self, path, timeout_s=30):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"authorization": f"Bearer {SMALL}"})
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.read().decode()

    def metrics(self):
        """Lines of the metrics page: name with labels, and value."""
        lines = (line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if line.startswith("perigee_"))
        return {name: float(value) for name, value in lines}

    def sample(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        metrics = self.metrics()
        return {
            "at": time.monotonic(),
            "rss_mb": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024,
            "running": int(metrics["perigee_running_sequences"]),
            "waiting": int(metrics["perigee_queue_sequences"]),
            **{state: int(metrics[f'perigee_kv_blocks{{state="{state}"}}']) for state in STATES},
        }

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "none within 90 s"


class Small:
    """The client with one short chat at a time."""

    def __init__(self, port, seed):
        self.pool, self.mix = Pool("127.0.0.1", port), Mix(random.Random(seed), 8192, False)
        self.faults = []
        self.sent = 0
        self.refused = 0

    async def ask(self):
        """Seconds to the first token and to the end; `None` for a refusal."""
        request = self.mix.small()
        self.sent += 1
        outcome = await self.pool.send(request.path, request.body, SMALL, BOUND_S)
        try:
            if classify(outcome, 200) == "result":
                return outcome.first_s, outcome.total_s
            self.refused += 1
        except (ValueError, KeyError, TypeError) as problem:
            self.faults.append(f"small: {problem}")
        return None

    async def times(self, count, pause_s):
        found = []
        for _ in range(count):
            found.append(await self.ask())
            await asyncio.sleep(pause_s)
        return [times for times in found if times]

    async def ask_until(self, end):
        found, due = [], time.monotonic()
        while time.monotonic() < end:
            found.append(await self.ask())
            due = max(due + 1, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
        return [times for times in found if times]


class Soak:
    def __init__(self, options):
        self.options = options
        self.served = Served(options.binary, options.model)
        card = json.loads(self.served.get("/v1/models"))["data"][0]
        self.context = min(card["max_model_len"], 8192)
        self.sees = options.model is None
        self.small = Small(self.served.port, options.seed)
        self.samples = []
        self.failures = []

    def expect(self, holds, what):
        print(f"{'ok    ' if holds else 'FAILED'} {what}", flush=True)
        if not holds:
            self.failures.append(what)

    async def load(self, seconds, seed, on_tick=None, **more):
        """Runs the greedy clients to their end; what they saw."""
        parameters = {"port": self.served.port, "keys": GREEDY, "seconds": seconds, "seed": seed, "context": self.context, "sees": self.sees,
                      "bound_s": BOUND_S, **more}
        process = await asyncio.create_subprocess_exec(
            sys.executable, HERE / "load.py", json.dumps(parameters), stdout=asyncio.subprocess.PIPE, limit=1 << 26,
            # The server's own time is what is measured: its clients give way.
            preexec_fn=lambda: os.nice(5))
        last = {}
        async for line in process.stdout:
            last = json.loads(line)
            if on_tick and not last.get("done"):
                on_tick(last)
        code = await process.wait()
        if not last.get("done"):
            raise SystemExit(f"the load ended with code {code}")
        return last

    async def sample_until(self, end):
        while time.monotonic() < end:
            self.samples.append(await asyncio.to_thread(self.served.sample))
            await asyncio.sleep(SAMPLE_S)

    async def run(self):
        seconds = self.options.minutes * 60
        await self.small.times(10, 0.05)
        unloaded = await self.small.times(60, 0.25)
        print(f"unloaded: {len(unloaded)} chats of the small client, time to first token p50 {quantile_ms(unloaded, 0, 0.5)}, "
              f"p99 {quantile_ms(unloaded, 0, 0.99)} ms", flush=True)
        measuring_s = min(60, max(15, seconds / 15))
        measured = await self.load(measuring_s, self.options.seed + 1, loops=2 * MAX_NUM_SEQS)
        capacity = sum(measured["ended"].values()) / measuring_s
        rate = OVERLOAD * capacity
        print(f"capacity: {capacity:.1f} requests/s of the mix, with {2 * MAX_NUM_SEQS} at a time; offered are {rate:.1f}", flush=True)
        begun = time.monotonic()
        end = begun + seconds
        told = [begun]

        def tick(progress):
            now = time.monotonic()
            if now - told[0] >= 60 and self.samples:
                told[0] = now
                print(progress_line(now - begun, progress, self.samples[-1]), flush=True)

        result, loaded, _ = await asyncio.gather(
            self.load(seconds, self.options.seed + 2, tick, rate=rate), self.small.ask_until(end), self.sample_until(end))
        idle_s = await self.until_idle()
        self.judge(result, measured, unloaded, loaded, capacity, seconds, idle_s)
        return not self.failures

    async def until_idle(self):
        begun = time.monotonic()
        while time.monotonic() - begun < BOUND_S:
            sample = await asyncio.to_thread(self.served.sample)
            if (sample["running"], sample["waiting"], sample["used"]) == (0, 0, 0):
                break
            await asyncio.sleep(0.2)
        self.samples.append(sample)
        return time.monotonic() - begun

    def judge(self, result, measured, unloaded, loaded, capacity, seconds, idle_s):
        small_only = {SMALL: ([times[0] for times in loaded], [times[1] for times in loaded])}
        by_key = {key: (result["first_s"][key], result["total_s"][key]) for key in GREEDY} | small_only
        print(f"\n{'key':10} {'weight':>6} {'results':>8} {'per s':>6} {'refused':>8} {'TTFT p50':>9} {'p99':>8} {'total p50':>10} {'p99':>8}  (ms)")
        for key, (first, total) in by_key.items():
            refused = sum(count for kind, _, count in result["statuses"].get(key, []) if kind == "refused") if key in GREEDY else self.small.refused
            print(f"{key:10} {WEIGHTS[key]:6} {len(total):8} {len(total) / seconds:6.1f} {refused:8} {ms(first, 0.5):>9} {ms(first, 0.99):>8} "
                  f"{ms(total, 0.5):>10} {ms(total, 0.99):>8}")
        print("\nkind of request and what became of it:")
        for name, count in sorted(result["kinds"].items()):
            print(f"  {name:26} {count:7}")
        metrics = self.served.metrics()
        load_samples = self.samples[:-1]
        half = load_samples[len(load_samples) // 2:]
        slope = least_squares([s["at"] / 3600 for s in half], [s["rss_mb"] for s in half])
        rss = [sample["rss_mb"] for sample in self.samples]
        print(f"\nresident memory: {rss[0]:.0f} MB at the first sample, at most {max(rss):.0f}, {rss[-1]:.0f} at the end")
        for name in ("running", "waiting", *STATES):
            values = [sample[name] for sample in load_samples]
            print(f"  {name:8} mean {sum(values) / len(values):8.1f}, most {max(values)}")
        print(f"  preemptions {metrics['perigee_preemptions_total']:.0f}, guard events "
              f"{sum(value for name, value in metrics.items() if name.startswith('perigee_guard_events_total')):.0f}\n")

        faults = [*measured["faults"], *result["faults"], *self.small.faults]
        num_faults = measured["num_faults"] + result["num_faults"] + len(self.small.faults)
        sent = measured["sent"] + result["sent"] + self.small.sent
        for fault in faults[:20]:
            print(f"       {fault}")
        self.expect(num_faults == 0, f"{sent} requests were answered, refused with Retry-After, or left by their client; "
                                     f"{num_faults} ended in another way")
        self.expect(result["ended"].get("refused", 0) > 0, f"the overload was felt: {result['ended'].get('refused', 0)} refusals "
                                                           f"at {result['sent'] / seconds:.1f} requests/s, capacity {capacity:.1f}")
        self.expect(not (wrong := self.miscounted(metrics, [measured, result])), f"the server counted what the clients saw{wrong}")
        last = self.samples[-1]
        self.expect((last["running"], last["waiting"], last["used"]) == (0, 0, 0), f"idle {idle_s:.1f} s after the load: {last['running']} run, "
                    f"{last['waiting']} wait, {last['used']} blocks are used")
        verdict = f"memory grows by {slope:+.1f} MB/h over the second half of the load; the bound is {SLOPE_BOUND_MB_PER_HOUR}"
        if self.options.minutes < SLOPE_MIN_MINUTES:
            print(f"       {verdict} (not judged in less than {SLOPE_MIN_MINUTES} minutes)")
        else:
            self.expect(slope <= SLOPE_BOUND_MB_PER_HOUR, verdict)
        before, after = quantile([times[0] for times in unloaded], 0.99), quantile([times[0] for times in loaded], 0.99)
        self.expect(after <= FAIRNESS_BAR * before, f"the small client's p99 time to first token is {after * 1e3:.1f} ms under load, "
                    f"{before * 1e3:.1f} without: {after / before:.2f} times; the bar is {FAIRNESS_BAR}")
        print(f"       its p50 is {quantile([t[0] for t in loaded], 0.5) * 1e3:.1f} ms under load, "
              f"{quantile([t[0] for t in unloaded], 0.5) * 1e3:.1f} without; {self.small.refused} of its requests were refused")
        self.expect(self.served.process.poll() is None, "one process served all of it")
        self.expect(not self.served.warnings, f"{len(self.served.warnings)} warnings and errors in the log"
                    + "".join("\n         " + line for line in self.served.warnings[:5]))
        code = self.served.stop()
        self.expect(code == 0, f"exit code {code} after SIGTERM")

    def miscounted(self, metrics, results):
        """Where the server's counts by client and status are not those of the clients; empty if nowhere."""
        wrong = ""
        for key in GREEDY:
            counts = {}
            for kind, status, count in (entry for result in results for entry in result["statuses"][key]):
                name = kind if kind in ("left", "result") else status
                counts[name] = counts.get(name, 0) + count
            served = {int(re.search(r'status="(\d+)"', name)[1]): value for name, value in metrics.items()
                      if name.startswith("perigee_client_requests_total") and f'client="{key}"' in name}
            done = served.get(200, 0) + served.get(499, 0)
            # A client that goes may be gone before its request was read, or after it was refused.
            least, most = counts.get("result", 0), counts.get("result", 0) + counts.get("left", 0)
            if not least <= done <= most:
                wrong += f"\n         {key}: {done:.0f} answered or left by the server's count, {least} to {most} by the client's"
            for status in (400, 500, 503, 504):
                if served.get(status, 0) != counts.get(status, 0):
                    wrong += f"\n         {key}: {served.get(status, 0):.0f} of status {status} by the server's count, {counts.get(status, 0)} by the client's"
        return wrong


def progress_line(seconds, progress, sample):
    ended = progress["ended"]
    return (f"{seconds / 60:5.1f} min: sent {progress['sent']}, results {ended.get('result', 0)}, refused {ended.get('refused', 0)}, "
            f"left {ended.get('left', 0)}, invalid {ended.get('invalid', 0)}, faults {ended.get('fault', 0)}; run {sample['running']}, "
            f"wait {sample['waiting']}; blocks used {sample['used']}, cached {sample['cached']}, free {sample['free']}; {sample['rss_mb']:.0f} MB")


def quantile(values, share):
    """The smallest value that this share of all does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def quantile_ms(times, index, share):
    return ms([entry[index] for entry in times], share)


def ms(values, share):
    return f"{quantile(values, share) * 1e3:.1f}" if values else "-"


def least_squares(xs, ys):
    """Slope of the line with the least squares; 0 for fewer than two points."""
    if len(xs) < 2:
        return 0.0
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread if spread else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--minutes", type=float, default=30, help="of load; what comes before takes about one more")
    parser.add_argument("--model", metavar="DIR", help="a checkpoint in place of the embedded model")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soak = Soak(options)
    try:
        good = asyncio.run(soak.run())
    finally:
        if soak.served.process.poll() is None:
            soak.served.process.kill()
    print("nothing was lost, nothing hung, nothing leaked" if good else f"{len(soak.failures)} of the conditions do not hold")
    sys.exit(not good)


if __name__ == "__main__":
    main()
