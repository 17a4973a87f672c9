#!/usr/bin/env python3
"""LiteLLM in front of a server: a conversation with a tool call, by its library and through its proxy, streamed and whole.

    python3 -m venv VENV && VENV/bin/pip install 'litellm[proxy]' openai
    VENV/bin/python scripts/clients/litellm_run.py target/release/perigee

Not one of the checks of every commit: LiteLLM brings some hundred packages. `output/litellm.txt` has what it printed last.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from asked import ARGUMENTS, MEAL, MODEL, RESULT, TOOLS  # noqa: E402
from server import Server  # noqa: E402

# Prices are not looked up.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402
import openai  # noqa: E402

FUNCTIONS = [{"type": "function", "function": {"name": name, "description": about, "parameters": arguments.model_json_schema()}}
             for name, about, arguments in TOOLS]
# Of the proxy, which starts with none.
KEY = "sk-of-the-proxy"


def conversation(ask, stream):
    """Question, call, result, answer; `ask` takes messages and gives a message."""
    messages = [*MEAL]
    said = ask(messages, stream)
    call = said["tool_calls"][0]
    print(f"  calls {call['function']['name']}({call['function']['arguments']})")
    ARGUMENTS[call["function"]["name"]].model_validate_json(call["function"]["arguments"])
    messages += [{"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]},
                 {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
    said = ask(messages, stream)
    assert said["content"] and not said["tool_calls"], said
    print(f"  says {said['content']!r}")


def message(answer, stream):
    """The message of an answer, or of the chunks that add up to one."""
    if not stream:
        said = answer.choices[0].message
        return {"content": said.content, "tool_calls": [call.model_dump() for call in said.tool_calls or []]}
    content, calls = "", []
    for chunk in answer:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                calls[-1]["function"]["arguments"] += part.function.arguments or ""
    return {"content": content, "tool_calls": calls}


def by_library(url):
    def ask(messages, stream):
        answer = litellm.completion(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key="none", messages=messages, tools=FUNCTIONS,
                                    temperature=0, max_tokens=120, stream=stream)
        return message(answer, stream)
    return ask


def by_proxy(url):
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)

    def ask(messages, stream):
        answer = client.chat.completions.create(model="kimi", messages=messages, tools=FUNCTIONS, temperature=0, max_tokens=120, stream=stream)
        return message(answer, stream)
    return ask


def proxy(server, folder):
    """LiteLLM's proxy on a free port, once it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {"model_list": [{"model_name": "kimi", "litellm_params":
                {"model": f"openai/{MODEL}", "api_base": f"{server.url}/v1", "api_key": "none"}}]}
    path = pathlib.Path(folder) / "proxy.yaml"
    path.write_text(json.dumps(settings))
    command = [str(pathlib.Path(sys.executable).parent / "litellm"), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "LITELLM_MASTER_KEY": KEY})
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).read()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the proxy does not answer"
            time.sleep(0.2)


def main():
    print(f"litellm {version('litellm')}, openai {version('openai')}")
    with Server(sys.argv[1]) as server, tempfile.TemporaryDirectory() as folder:
        for stream in (False, True):
            print(f"library, {'streamed' if stream else 'whole'}")
            conversation(by_library(server.url), stream)
        process, url = proxy(server, folder)
        try:
            for stream in (False, True):
                print(f"proxy, {'streamed' if stream else 'whole'}")
                conversation(by_proxy(url), stream)
        finally:
            process.terminate()
            process.wait()
    print("passed")


if __name__ == "__main__":
    main()
