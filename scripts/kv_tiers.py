#!/usr/bin/env python3
"""What a long prompt costs that left the cache: `scripts/kv_tiers.py BINARY [--model FOLDER] [--tokens 4000] [--prompts 3]`.

Each prompt is asked for when it is new, after others have displaced it (from host memory), and after a restart (from disk). Prints the
seconds to the first token, the median ratios, and whether the replies are the same, logprobs included.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from server import Server

BLOCK_TOKENS = 32


def ask(server, prompt):
    """Seconds of a request for one token, what it says, and how much of its prompt was cached."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5}
    began = time.monotonic()
    answer = server.post("/v1/completions", body)
    seconds = time.monotonic() - began
    usage = answer["usage"]
    return seconds, json.dumps(answer["choices"][0]), usage["prompt_tokens_details"]["cached_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--model", help="a folder; the embedded model without one")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=3)
    args = parser.parse_args()
    draw = random.Random(1)
    prompts = [[draw.randrange(300, 1000) for _ in range(args.tokens)] for _ in range(args.prompts)]
    # Room for one prompt and its reply: each displaces the one before.
    blocks = -(-args.tokens // BLOCK_TOKENS) + 4
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            "model.served_name=m", f"kv_cache.block_size={BLOCK_TOKENS}", f"kv_cache.num_blocks={blocks}",
            f"scheduler.max_model_len={blocks * BLOCK_TOKENS}", "kv_cache.host_bytes=2GiB", f"kv_cache.disk_path={folder}",
            "kv_cache.disk_flush_s=60",
        ]
        rounds = {}
        with Server(args.binary, *settings, model=args.model) as server:
            rounds["new"] = [ask(server, prompt) for prompt in prompts]
            rounds["from memory"] = [ask(server, prompt) for prompt in prompts]
        with Server(args.binary, *settings, model=args.model) as server:
            need = args.prompts * (args.tokens // BLOCK_TOKENS - 1)
            server.until(lambda: on_disk(server) >= need, "the folder's blocks")
            rounds["from disk"] = [ask(server, prompt) for prompt in prompts]
    print(f"{args.prompts} prompts of {args.tokens} tokens: seconds to the one token of the reply, over HTTP")
    new = rounds["new"]
    wrong = 0
    for name, asked in rounds.items():
        ratios = [before[0] / now[0] for before, now in zip(new, asked)]
        same = all(before[1] == now[1] for before, now in zip(new, asked))
        wrong += not same
        seconds = " ".join(f"{now[0]:.3f}" for now in asked)
        cached = sorted({now[2] for now in asked})
        print(f"{name:12}  {seconds} s   {statistics.median(ratios):6.1f}x   cached tokens {cached}   {'same bits' if same else 'OTHER REPLY'}")
    sys.exit(1 if wrong else 0)


def on_disk(server):
    lines = server.get("/metrics").splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith('perigee_kv_tier_blocks{tier="disk"}'))


if __name__ == "__main__":
    main()
