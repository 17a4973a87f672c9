"""A server of this repository for the checks that look at it from outside."""

import json
import os
import subprocess
import threading
import time
import urllib.request


class Server:
    """`perigee serve` on a free port, or on `port`; a context manager. It ends when its process does, or with the block."""

    def __init__(self, binary, *settings, model=None, port=0):
        command = [binary, "serve", "--host", "127.0.0.1", "--port", str(port), "--set", "telemetry.log_format=json"]
        if model is not None:
            command += ["--model", str(model)]
        for setting in settings:
            command += ["--set", setting]
        # Settings of the shell it runs in are not those of the check.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PERIGEE_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
        self.url = None
        begun = []
        for line in self.process.stderr:
            begun.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("message") == "ready":
                self.url = entry["url"]
                break
        if self.url is None:
            raise SystemExit(f"the server did not start (exit code {self.process.wait()}):\n{''.join(begun[-20:])}")
        # Its log must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def gauge(self, name):
        """The value of a metric that has one line."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name + "{")]
        assert len(lines) == 1, f"{name}: {lines}"
        return float(lines[0].rsplit(" ", 1)[1])

    def until(self, condition, what):
        """Looks until the condition holds; a minute is too long."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within a minute"
            time.sleep(0.005)

    def stop(self):
        """Asks it to end; the exit code."""
        self.process.terminate()
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
