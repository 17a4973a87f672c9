#!/usr/bin/env python3
"""Kimi CLI against a server: one question in its print mode, with a tool call on the way.

    python3.13 -m venv VENV && VENV/bin/pip install kimi-cli==1.40.0
    python3 scripts/clients/kimi_cli_run.py target/release/perigee VENV/bin/kimi

Its prompt has 24,000 tokens, which the embedded model was not taught to read: a copy of it with a longer context is served, and what it cannot decide is
decided between the two. The first request must call ReadFile (`tool_choice`), later ones must not call. Everything else is as the client sends it and as
the server answers: the prompt with all its tools, the constrained call, streams, the tool's result. `output/kimi-cli.txt` has what it printed last.
"""
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTEXT = 65536


class Between(http.server.BaseHTTPRequestHandler):
    """Passes requests on, with the choice of a tool."""

    protocol_version = "HTTP/1.1"
    server_address, seen = None, []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        names = [tool["function"]["name"] for tool in body.get("tools", [])]
        results = [message for message in body["messages"] if message["role"] == "tool"]
        if names:
            body["tool_choice"] = "none" if results else {"type": "function", "function": {"name": "ReadFile"}}
        body["max_tokens"] = 64
        body.pop("max_completion_tokens", None)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length", "accept-encoding")}
        to = http.client.HTTPConnection(*self.server_address, timeout=120)
        to.request("POST", self.path, json.dumps(body), headers)
        answer = to.getresponse()
        self.seen.append((self.path, len(body["messages"]), len(names), bool(results), answer.status))
        self.send_response(answer.status)
        self.send_header("content-type", answer.getheader("content-type"))
        self.send_header("connection", "close")
        self.end_headers()
        while data := answer.read1(65536):
            self.wfile.write(data)
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_):
        pass


def main():
    binary, client = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = work / "model"
        shutil.copytree(ROOT / "src/nano/model", model)
        config = json.loads((model / "config.json").read_text())
        for part in (config, config.get("text_config", {})):
            if "max_position_embeddings" in part:
                part["max_position_embeddings"] = CONTEXT
        (model / "config.json").write_text(json.dumps(config))
        with Server(binary, "speculation.method=off", "guard.mode=off", model=model) as server:
            Between.server_address = server.url.removeprefix("http://").split(":")
            between = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
            threading.Thread(target=between.serve_forever, daemon=True).start()
            environment = {"PATH": os.environ["PATH"], "HOME": folder, "KIMI_BASE_URL": f"http://127.0.0.1:{between.server_port}/v1", "KIMI_API_KEY": "none",
                           "KIMI_MODEL_NAME": "model", "KIMI_MODEL_MAX_CONTEXT_SIZE": str(CONTEXT)}
            done = subprocess.run([client, "--print", "-p", "What is in the file notes.txt?"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=300)
    version = subprocess.run([client, "--version"], capture_output=True, text=True).stdout.strip()
    print(version)
    for path, messages, tools, results, status in Between.seen:
        print(f"{path}: {messages} messages, {tools} tools, {'with' if results else 'without'} a tool's result: {status}")
    kinds = re.findall(r"^(\w+)\(", done.stdout, re.MULTILINE)
    print("the client saw", " ".join(kinds))
    for wanted in ("ToolCall", "ToolResult", "TurnEnd"):
        if wanted not in kinds:
            sys.exit(f"no {wanted}:\n{done.stdout}\n{done.stderr}")
    print("passed")


if __name__ == "__main__":
    main()
