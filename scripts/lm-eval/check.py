"""Runs lm-evaluation-harness against the served embedded model, and holds its log-likelihoods to a direct computation."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
# Against the same backend, and against the one that adds in another order: a sum of float32 logits, softmax and all.
TOLERANCE, REFERENCE_TOLERANCE = 1e-5, 1e-4

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


class Server:
    """A running server on a free port."""

    def __init__(self, binary, *settings):
        command = [binary, "serve", "--host", "127.0.0.1", "--port", "0", "--set", "telemetry.log_format=json"]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.url = None
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry.get("message") == "ready":
                self.url = entry["url"]
                break
        if self.url is None:
            raise SystemExit("the server did not start")
        # Its log must not fill the pipe.
        import threading

        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def stop(self):
        self.process.terminate()
        self.process.wait()


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
    """(context, continuation) -> (log-likelihood, greedy) of everything that was scored."""
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
    return scored


def direct(server, context, continuation):
    """As the harness cuts it: trailing spaces of the context belong to the continuation, both are tokenized together."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation, context = context[-spaces:] + continuation, context[:-spaces]
    ids = lambda text: server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    whole, begin = ids(context + continuation), len(ids(context))
    answer = server.post("/v1/completions", {"prompt": whole, "max_tokens": 0, "echo": True, "prompt_logprobs": 1})
    entries = answer["choices"][0]["prompt_logprobs"][begin:]
    own = [entry[str(token)] for entry, token in zip(entries, whole[begin:])]
    return sum(entry["logprob"] for entry in own), all(entry["rank"] == 1 for entry in own)


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_tasks(folder)
        served, alone = Server(binary), Server(binary, "kv_cache.prefix_caching=false", "scheduler.max_num_seqs=1")
        reference = Server(binary, "device.backend=reference")
        try:
            tasks = ["perigee_facts", "perigee_endings", "perigee_sums", "perigee_perplexity"]
            one = harness("local-completions", served.url, "/v1/completions", tasks, folder, folder / "one", 1)
            eight = harness("local-completions", served.url, "/v1/completions", tasks, folder, folder / "eight", 8)
            chat = harness("local-chat-completions", served.url, "/v1/chat/completions", ["perigee_sums"], folder,
                           folder / "chat", 1, "--apply_chat_template")
            scored = likelihoods(one)
            assert len(scored) > 50, f"only {len(scored)} log-likelihoods were recorded"
            assert scored == likelihoods(eight), "eight requests at a time give other floats than one"
            worst = [0.0, 0.0]
            for (context, continuation), (value, greedy) in scored.items():
                for place, (server, tolerance) in enumerate([(alone, TOLERANCE), (reference, REFERENCE_TOLERANCE)]):
                    expected, expected_greedy = direct(server, context, continuation)
                    worst[place] = max(worst[place], abs(value - expected))
                    assert abs(value - expected) <= tolerance, (context, continuation, value, expected)
                    assert greedy == expected_greedy, (context, continuation)
            replies = [reply for task in (one, chat) for sample in task["perigee_sums"] for reply in sample["resps"][0]]
            assert len(replies) == 2 * len(SUMS) and all(isinstance(reply, str) and reply for reply in replies), replies
            print(f"{len(scored)} log-likelihoods; largest difference to a direct computation {worst[0]:.1e}, on the reference backend "
                  f"{worst[1]:.1e}; {len(replies)} replies")
        finally:
            for server in (served, alone, reference):
                server.stop()


if __name__ == "__main__":
    main()
