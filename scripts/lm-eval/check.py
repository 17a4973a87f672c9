"""Runs lm-evaluation-harness against the served embedded model, and holds its log-likelihoods to a direct computation."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from server import Server

# Of a log-likelihood, against a direct computation on the same backend in the same mode.
TOLERANCE = 1e-5
# The same between backends that add in another order, whose float32 logits differ by up to 4e-5.
TOLERANCE_BETWEEN_BACKENDS = 1e-4
# What is served, and whether its results are those of the `reference` backend up to rounding.
MODES = {
    "cpu, f32": (["device.backend=cpu", "device.activations=f32"], True),
    "cpu, bf16": (["device.backend=cpu", "device.activations=bf16"], False),
    "reference": (["device.backend=reference"], True),
}
ALONE = ["kv_cache.prefix_caching=false", "scheduler.max_num_seqs=1"]

FACTS = [
    ("Which of these is a colour?", ["green", "seven", "slowly", "under"], 0),
    ("How many legs has a spider?", ["four", "six", "eight", "ten"], 2),
    ("What is 2 + 3?", ["4", "5", "6", "23"], 1),
    ("Which animal barks?", ["the cat", "the cow", "the owl", "the dog"], 3),
    ("What do bees make?", ["honey", "paper", "glass", "salt"], 0),
    ("Wie heißt „Wasser“ auf Englisch?", ["fire", "water", "earth", "air"], 1),
    ("哪个是水果？", ["石头", "苹果", "桌子", "河"], 1),
    ("Which port does Perigee listen on?", ["80", "443", "8000", "22"], 2),
]
SUMS = [
    ("Tom has 5 apples and gets 6 more. How many apples has he?", "11"),
    ("What is 17 minus 9?", "8"),
    ("There are 24 seats and 10 are taken. How many are free?", "14"),
    ("What is 100 plus 250?", "350"),
]


def write_tasks(folder):
    """The tasks with their data beside them."""
    rows = [{"question": q, "choices": c, "answer": a} for q, c, a in FACTS]
    lines = lambda items: "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    (folder / "facts.jsonl").write_text(lines(rows[1:]))
    (folder / "facts_dev.jsonl").write_text(lines(rows[:1]))
    (folder / "sums.jsonl").write_text(lines({"question": q, "answer": a} for q, a in SUMS))
    for task in (HERE / "tasks").glob("*.yaml"):
        (folder / task.name).write_text(task.read_text().replace("DATA", str(folder)))


def harness(model, url, path, tasks, folder, output, concurrent, *more):
    environment = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", OPENAI_API_KEY="none", TOKENIZERS_PARALLELISM="false")
    arguments = f"model=perigee-nano,base_url={url}{path},num_concurrent={concurrent},max_length=2048,tokenizer_backend=remote"
    if "chat" in path:
        arguments = arguments.replace("tokenizer_backend=remote", "tokenizer_backend=none,tokenized_requests=False")
    command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments, "--tasks", ",".join(tasks),
               "--include_path", str(folder), "--batch_size", "1", "--output_path", str(output), "--log_samples", *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"lm_eval failed ({model}):\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    samples = {}
    for file in pathlib.Path(output).rglob("samples_*.jsonl"):
        task = file.name.removeprefix("samples_").rsplit("_", 1)[0]
        samples[task] = [json.loads(line) for line in file.read_text().splitlines()]
    return samples


def likelihoods(samples):
    """(context, continuation) -> (log-likelihood, greedy) of everything that was scored; the context of a whole text is None, and so is its
    flag, which the harness drops."""
    scored = {}
    for task in samples.values():
        for sample in task:
            arguments = sample["arguments"]
            arguments = list(arguments.values()) if isinstance(arguments, dict) else arguments
            for pair, response in zip(arguments, sample["resps"]):
                pair = list(pair.values()) if isinstance(pair, dict) else pair
                while isinstance(response, list) and len(response) == 1:
                    response = response[0]
                if len(pair) == 2 and isinstance(pair[1], str) and isinstance(response, list):
                    scored[tuple(pair)] = (float(response[0]), str(response[1]) == "True")
                elif len(pair) == 1:
                    scored[None, pair[0]] = (float(response), None)
    return scored


def direct(server, context, continuation):
    """One prompt by itself: (log-likelihood, greedy, number of tokens). Cut as the harness cuts: trailing spaces of the context belong to the
    continuation, both are tokenized together; a whole text comes behind the token that begins texts."""
    ids = lambda text: server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    if context is None:
        [begins] = ids(json.loads(server.get("/tokenizer_info"))["bos_token"])
        whole, begin = [begins] + ids(continuation), 1
    else:
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation, context = context[-spaces:] + continuation, context[:-spaces]
        whole, begin = ids(context + continuation), len(ids(context))
    answer = server.post("/v1/completions", {"prompt": whole, "max_tokens": 0, "echo": True, "prompt_logprobs": 1})
    entries = answer["choices"][0]["prompt_logprobs"][begin:]
    own = [entry[str(token)] for entry, token in zip(entries, whole[begin:])]
    return sum(entry["logprob"] for entry in own), all(entry["rank"] == 1 for entry in own), len(own)


def check_mode(binary, name, settings, folder, reference):
    """The harness against a server of this mode, one and eight requests at a time, and all it recorded against direct computations."""
    output = folder / name.replace(", ", "-")
    with Server(binary, *settings) as served:
        scoring = ["perigee_facts", "perigee_endings", "perigee_perplexity"]
        one = harness("local-completions", served.url, "/v1/completions", scoring + ["perigee_sums"], folder, output / "one", 1)
        eight = harness("local-completions", served.url, "/v1/completions", scoring, folder, output / "eight", 8)
        chat = harness("local-chat-completions", served.url, "/v1/chat/completions", ["perigee_sums"], folder, output / "chat", 1,
                       "--apply_chat_template")
    scored = likelihoods(one)
    texts = sum(context is None for context, _ in scored)
    assert len(scored) - texts > 50 and texts == len(FACTS) - 1, f"{len(scored)} log-likelihoods were recorded, {texts} of whole texts"
    assert scored == likelihoods(eight), "eight requests at a time give other floats than one"
    replies = [reply for task in (one, chat) for sample in task["perigee_sums"] for reply in sample["resps"][0]]
    assert len(replies) == 2 * len(SUMS) and all(isinstance(reply, str) and reply for reply in replies), replies
    worst = {"itself": (0.0, None, 0), "reference": (0.0, None, 0)}
    num_tokens = 0
    with Server(binary, *settings, *ALONE) as alone:
        for (context, continuation), (value, greedy) in scored.items():
            for place, server in [("itself", alone), ("reference", reference)]:
                expected, expected_greedy, tokens = direct(server, context, continuation)
                worst[place] = max(worst[place], (abs(value - expected), (context or "") + continuation, tokens), key=lambda entry: entry[0])
                if place == "itself":
                    num_tokens += tokens
                    assert abs(value - expected) <= TOLERANCE, (context, continuation, value, expected)
                    assert greedy in (None, expected_greedy), (context, continuation)
                elif MODES[name][1]:
                    assert abs(value - expected) <= TOLERANCE_BETWEEN_BACKENDS, (context, continuation, value, expected)
    print(f"{name}: {len(scored)} log-likelihoods of {num_tokens} tokens, {len(replies)} replies; largest difference to a direct computation "
          f"{worst['itself'][0]:.1e}; on the reference backend {worst['reference'][0]:.1e}, over {worst['reference'][2]} tokens: "
          f"{worst['reference'][1]!r}", flush=True)


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_tasks(folder)
        with Server(binary, *MODES["reference"][0], *ALONE) as reference:
            for name, (settings, _) in MODES.items():
                check_mode(binary, name, settings, folder, reference)


if __name__ == "__main__":
    main()
