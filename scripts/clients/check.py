"""Drives a server of this repository with the official `openai` and `anthropic` packages: check.py BINARY [NAME...]."""

import inspect
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import chat
import images
import messages
import responses
from server import Server


def main():
    binary, *wanted = sys.argv[1:]
    served = lambda *settings, **more: Server(binary, *settings, **more)
    failed = count = 0
    begun = time.monotonic()
    with served() as server:
        for module in (chat, responses, messages, images):
            for name, check in list(vars(module).items()):
                title = f"{module.__name__}.{name.removeprefix('check_')}"
                if not name.startswith("check_") or wanted and not any(part in title for part in wanted):
                    continue
                count += 1
                # Those that need settings of their own start their own servers.
                argument = server if "server" in inspect.signature(check).parameters else served
                try:
                    check(argument)
                    print(f"ok      {title}", flush=True)
                except Exception:
                    failed += 1
                    print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
        code = server.stop()
    assert count, f"no check has {wanted} in its name"
    print(f"{count - failed} of {count} checks passed in {time.monotonic() - begun:.0f} s")
    if code != 0:
        print(f"the server ended with code {code}")
    sys.exit(bool(failed or code))


if __name__ == "__main__":
    main()
