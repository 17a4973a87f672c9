"""Measures the model on held-out items at temperature 0: in PyTorch, or by way of a running server."""

import argparse
import json
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from curriculum import SKILLS
from facts import UNSEEN
from heldout import is_right, items
from network import CONFIG, Network
from vocabulary import STOPS, Vocabulary

FOLDER = Path(__file__).parents[2] / "src/nano/model"
LONGEST_ANSWER = 120
VISION_NAMES = ("vision_tower.", "mm_projector.")  # what the tensors of the picture tower begin with
STREAMS = 16  # requests at once, with --base


def load(folder):
    """The language model from an exported folder."""
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")
    state, experts = {}, defaultdict(dict)
    for name, tensor in stored.items():
        if ".mlp.experts." in name:
            prefix, index, projection, _ = name.rsplit(".", 3)
            experts[f"{prefix}.{projection}"][int(index)] = tensor.float()
        elif not name.startswith(VISION_NAMES):
            state[name] = tensor.float()
    for name, parts in experts.items():
        state[name] = torch.stack([parts[index] for index in sorted(parts)])
    network = Network(CONFIG)
    network.load_state_dict(state)
    return network.eval()


@torch.no_grad()
def complete(network, prompt, likely, longest=LONGEST_ANSWER):
    """The greedy continuation of a prompt. One pass over a likely answer settles the tokens on which it is right."""
    positions = torch.arange(len(prompt) - 1, len(prompt) + len(likely) - 1)
    chosen = network(torch.tensor([prompt + likely]), positions).argmax(-1).tolist()
    agreed = next((i for i, (a, b) in enumerate(zip(chosen, likely)) if a != b), len(likely))
    answer = chosen[: agreed + 1]
    while answer[-1] not in STOPS and len(answer) < longest:
        ids = prompt + answer
        answer.append(network(torch.tensor([ids]), torch.tensor([len(ids) - 1])).argmax().item())
    return answer


def by_network(network, vocabulary, wanted):
    texts = []
    for item in wanted:
        answer = complete(network, vocabulary.encode_rendered(item["prompt_text"]), vocabulary.encode_rendered(item["answer"]))
        texts.append(vocabulary.decode([id for id in answer if id not in STOPS]))
    return texts


def post(base, path, body):
    request = urllib.request.Request(base.rstrip("/") + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def by_completions(base, model, vocabulary, wanted):
    """The texts for the items over /v1/completions, prompts and answers as token ids."""
    def text(item):
        body = {"model": model, "prompt": vocabulary.encode_rendered(item["prompt_text"]), "max_tokens": LONGEST_ANSWER, "temperature": 0, "return_token_ids": True}
        choice = post(base, "/v1/completions", body)["choices"][0]
        ids = choice.get("token_ids")
        return vocabulary.decode([id for id in ids if id not in STOPS]) if ids is not None else choice["text"]

    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(text, wanted))


def by_chat(base, model, wanted):
    """The texts for the items over /v1/chat/completions; the reasoning is put back before `</think>`."""
    def text(item):
        thinking = item["mode"] == "thinking"
        body = {"model": model, "messages": item["messages"], "max_tokens": LONGEST_ANSWER, "temperature": 0, "chat_template_kwargs": {"thinking": thinking}}
        message = post(base, "/v1/chat/completions", body)["choices"][0]["message"]
        content = message.get("content") or ""
        thought = message.get("reasoning_content") or message.get("reasoning")
        return f"{thought}</think>{content}" if thinking and thought is not None else content

    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(text, wanted))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=str(FOLDER))
    parser.add_argument("--count", type=int, default=200, help="items per skill and mode")
    parser.add_argument("--base", help="a running server's address, for example http://127.0.0.1:8000")
    parser.add_argument("--model", default="perigee-nano")
    parser.add_argument("--chat", action="store_true", help="with --base: the chat endpoint (all skills but tools)")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers per skill")
    parser.add_argument("--skills", nargs="*", default=[*SKILLS, "perigee-unseen"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(arguments.folder)
    vocabulary = Vocabulary.load(folder / "tiktoken.model")
    network = None if arguments.base else load(folder)
    print("| skill | mode | right | of | rate |\n|---|---|---|---|---|")
    for skill in arguments.skills:
        if arguments.chat and skill == "tool":
            continue
        for mode in ("instant", "thinking"):
            wanted = items(skill, mode, min(arguments.count, len(UNSEEN)) if skill == "perigee-unseen" else arguments.count)
            if network:
                texts = by_network(network, vocabulary, wanted)
            elif arguments.chat:
                texts = by_chat(arguments.base, arguments.model, wanted)
            else:
                texts = by_completions(arguments.base, arguments.model, vocabulary, wanted)
            wrong = [(item, text) for item, text in zip(wanted, texts) if not is_right(item, text)]
            right = len(wanted) - len(wrong)
            print(f"| {skill} | {mode} | {right} | {len(wanted)} | {100 * right / len(wanted):.1f} % |", flush=True)
            for item, text in wrong[: arguments.show]:
                print("   ", repr(item["prompt_text"][-160:]), "->", repr(text), "wanted", repr(item["expect"]))


if __name__ == "__main__":
    main()
