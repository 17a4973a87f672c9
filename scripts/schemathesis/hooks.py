"""What is done to bodies made from the document, which knows neither the model's name nor which fields go together.

Two of three bodies with every field of the document at once would be refused for the first pair that does not; they keep a few fields each. The
third stays as it was made.
"""

import os
import zlib

import schemathesis

MODEL, VOCABULARY = os.environ["CHECK_MODEL"], int(os.environ["CHECK_VOCABULARY"])
NEEDED = {"messages", "prompt", "input", "max_tokens", "tokens"}
KEPT = 4
# What `/tokenize` takes only beside messages.
OF_MESSAGES = ["messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"]


def rank(text, salt):
    return zlib.crc32(f"{salt} {text}".encode(errors="replace"))


def within(value):
    """Token ids of the vocabulary, in lists of them."""
    if isinstance(value, list):
        return [within(item) for item in value]
    return value % VOCABULARY if isinstance(value, int) and not isinstance(value, bool) else value


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    salt = rank(repr(body), 0)
    if salt % 3 == 0:
        return body
    others = sorted((key for key in body if key not in NEEDED), key=lambda key: rank(key, salt))
    kept = {key: value for key, value in body.items() if key in NEEDED or key in others[:KEPT]}
    if isinstance(kept.get("model"), str):
        kept["model"] = MODEL
    for key in ["prompt", "tokens", "stop_token_ids"]:
        if key in kept:
            kept[key] = within(kept[key])
    if kept.get("prompt") is not None:
        for key in OF_MESSAGES:
            kept.pop(key, None)
    if isinstance(kept.get("max_tokens"), int):
        kept["max_tokens"] = 1 + kept["max_tokens"] % 64
    return kept
