"""Runs schemathesis against the served embedded model: check.py BINARY [SECONDS]."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from server import Server

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "unsupported_method", "allow_header_conformance"]
SLOWEST_S = 30


def main():
    binary, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "600"
    command = [pathlib.Path(sys.executable).with_name("schemathesis"), "run", "--max-time", seconds, "--checks", ",".join(CHECKS),
               "--request-timeout", str(SLOWEST_S), "--workers", "16", "--continue-on-failure", "--suppress-health-check", "all",
               "--generation-database", "none"]
    # A reply without a limit would be as long as the context, and a third of the bodies are left as they are made: some ask for
    # all of it, which on a busy machine takes longer than SLOWEST_S.
    # It leaves notes of its own in the folder it runs in.
    with Server(binary, "sampling.max_tokens=64", "scheduler.max_model_len=1024") as server, tempfile.TemporaryDirectory() as folder:
        model = json.loads(server.get("/v1/models"))["data"][0]["id"]
        vocabulary = json.loads(server.get("/tokenizer_info"))["vocab_size"]
        environment = dict(os.environ, SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(HERE), CHECK_MODEL=model, CHECK_VOCABULARY=str(vocabulary))
        status = subprocess.run([*command, f"{server.url}/openapi.json"], env=environment, cwd=folder).returncode
        server.until(lambda: server.gauge("vllm:num_requests_running") == 0, "the end of every sequence")
        health = json.loads(server.get("/health"))
        assert health["status"] == "ok", health
        code = server.stop()
    print(f"schemathesis ended with code {status}, the server with code {code}")
    sys.exit(bool(status or code))


if __name__ == "__main__":
    main()
