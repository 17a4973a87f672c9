"""Checks that `chat_template.jinja` renders every kind of conversation exactly as training rendered it."""

import json
import random
import sys
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

from conversation import render
from curriculum import conversation
from declaration import typescript

TEMPLATE = Path(__file__).parents[2] / "src/nano/model/chat_template.jinja"


def tojson(value, separators=None):
    return json.dumps(value, ensure_ascii=False, separators=separators)


def as_request(rng, message):
    """The message as a client sends it; its content is text, absent, or a list of text parts."""
    content = message.content or None
    if content and rng.random() < 0.3:
        content = [{"type": "text", "text": content}]
    request = {"role": message.role, "content": content}
    if message.thought:
        request["reasoning_content"] = message.thought
    if message.calls:
        request["tool_calls"] = [{"id": id, "function": {"arguments": arguments}} for id, arguments in message.calls]
    if message.call_id:
        request["tool_call_id"] = message.call_id
    return request


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    template = environment.from_string(TEMPLATE.read_text())
    rng = random.Random(3)
    for _ in range(2000):
        made = conversation(rng)
        while made.messages[-1].role == "assistant":
            made.messages.pop()
        variables = {
            "messages": [as_request(rng, message) for message in made.messages],
            "tools": json.loads(json.dumps(list(made.tools), sort_keys=True)),
            "thinking": made.thinking,
            "add_generation_prompt": True,
        }
        if not made.json_tools:
            variables["tools_ts_str"] = typescript(made.tools)
        ours = "".join(text for text, _ in render(made, generate=True))
        theirs = template.render(**variables)
        if ours != theirs:
            sys.exit(f"differs:\n{ours!r}\n{theirs!r}")
    print("2000 conversations render alike")


if __name__ == "__main__":
    main()
