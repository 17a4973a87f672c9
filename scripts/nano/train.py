"""Trains the network on the curriculum. Every batch is a function of (seed, step), so a run can stop and resume anywhere.

Each worker is a process with one thread and a share of every batch's rows; gradients are summed once per step.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import curriculum
import tools
from conversation import Conversation, Message, render
from evaluate import load as exported
from muon import Muon
from network import CONFIG, Network
from vocabulary import PAD, Vocabulary

SEED = 20260
POOL = 24  # batches drawn together and cut by length


def encode(vocabulary, conversation):
    ids, learned = [], []
    for text, learn in render(conversation):
        piece = vocabulary.encode_rendered(text)
        ids += piece
        learned += [learn] * len(piece)
    return ids, learned


def batches(vocabulary, pool, arguments, early):
    """The batches of one pool: rows of like length, so that little is padding."""
    rng = random.Random(arguments.seed * 1_000_003 + pool)
    mix = curriculum.EARLY if early else {**curriculum.WEIGHTS, **arguments.mix}
    tool_share = 0.05 if early else arguments.tool_share
    tokens, rows, total = arguments.tokens, [], 0
    while total < tokens * POOL:
        ids, learned = encode(vocabulary, curriculum.conversation(rng, mix, tool_share, arguments.thinking_share))
        if len(ids) <= arguments.longest and any(learned):
            rows.append((ids, learned))
            total += len(ids)
    rows.sort(key=lambda row: len(row[0]))
    result = []
    target = total / POOL
    batch, size = [], 0
    for row in rows:
        batch.append(row)
        size += len(row[0])
        if size >= target:
            result.append(batch)
            batch, size = [], 0
    if batch:
        result.append(batch)
    rng.shuffle(result)
    return result


def collate(rows):
    length = max(len(ids) for ids, _ in rows) - 1
    inputs = torch.full((len(rows), length), PAD)
    targets = torch.full((len(rows), length), -100)
    for i, (ids, learned) in enumerate(rows):
        inputs[i, : len(ids) - 1] = torch.tensor(ids[:-1])
        wanted = torch.tensor(ids[1:])
        wanted[~torch.tensor(learned[1:])] = -100
        targets[i, : len(ids) - 1] = wanted
    return inputs, targets


def held_out_rows(vocabulary, per_skill, thinking):
    """Held-out conversations of each skill, with a loss mask on the last turn only."""
    rng = random.Random(99 + thinking)
    rows = {}
    for skill in curriculum.SKILLS:
        rows[skill] = []
        for _ in range(per_skill):
            if skill == "tool":
                world = tools.world(rng, "heldout")
                request = tools.request(rng, world, "heldout")
                call = [(f"functions.{request.name}:0", json.dumps(request.arguments, ensure_ascii=False))]
                conversation = Conversation([Message("user", request.user), Message("assistant", calls=call, thought=f"Use {request.name}.")], world, thinking=thinking)
            else:
                messages = []
                task = curriculum.MAKERS[skill](rng, "heldout")
                curriculum.add_task(messages, task)
                for message in messages[:-1]:
                    message.learn = False
                conversation = Conversation(messages, thinking=thinking)
            rows[skill].append(encode(vocabulary, conversation))
    return rows


@torch.no_grad()
def exact_rate(network, rows):
    """The share of rows whose every learned token is the network's first choice: what greedy decoding would write."""
    right = 0
    rows = sorted(rows, key=lambda row: len(row[0]))
    for start in range(0, len(rows), 20):
        inputs, targets = collate(rows[start : start + 20])
        guesses = network(inputs).argmax(-1)
        right += ((guesses == targets) | (targets == -100)).all(-1).sum().item()
    return right / len(rows)


def evaluate(network, sets):
    network.eval()
    rates = {f"{skill}{'/think' if thinking else ''}": exact_rate(network, rows) for thinking, rows_of in sets.items() for skill, rows in rows_of.items()}
    network.train()
    return rates


def sum_over_workers(tensors):
    """Sums the tensors over all workers in place, in one message."""
    flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view_as(tensor))


def work(rank, arguments):
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(arguments.out).resolve()}/rendezvous", rank=rank, world_size=arguments.workers)
    out = Path(arguments.out)
    first = rank == 0
    vocabulary = Vocabulary.load(arguments.vocabulary)
    network = exported(Path(arguments.start)).train() if arguments.start else Network(CONFIG)
    names = dict(network.named_parameters())
    matrices = [p for name, p in names.items() if p.ndim >= 2 and "embed" not in name and "lm_head" not in name and "mlp.gate.weight" not in name]
    others = [p for p in names.values() if not any(p is m for m in matrices)]
    optimizers = [Muon(matrices, arguments.muon_lr, weight_decay=0.02), torch.optim.AdamW(others, arguments.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
    peaks = [arguments.muon_lr, arguments.adam_lr]
    step, seconds, tokens = 0, 0.0, 0
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        network.load_state_dict(state["network"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        step, seconds, tokens = state["step"], state["seconds"], state["tokens"]
    if first:
        print(f"{sum(p.numel() for p in names.values())} parameters, from step {step}", flush=True)
        sets = {thinking: held_out_rows(vocabulary, 30 if thinking else 50, thinking) for thinking in (False, True)}
    recent = 0.0
    pool, queue = -1, []
    while step < arguments.steps:
        started = time.time()
        if step // POOL != pool or not queue:
            pool = step // POOL
            queue = batches(vocabulary, pool, arguments, step < arguments.early)
        rows = queue[step % POOL % len(queue)]
        inputs, targets = collate(rows[rank :: arguments.workers])
        factor = min(1.0, (step + 1) / arguments.warmup, (arguments.steps - step) / max(arguments.decay, 1))
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
        flat = targets.reshape(-1)
        keep = (flat != -100).nonzero()[:, 0]
        learned = sum(sum(row[1][1:]) for row in rows)
        loss = F.cross_entropy(network(inputs, keep), flat[keep], reduction="sum") / learned
        loss.backward()
        for p in names.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        total = loss.detach().clone()
        sum_over_workers([p.grad for p in names.values()] + [m.load for m in network.mixtures()] + [total])
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for mixture in network.mixtures():
            mixture.balance(1e-2 * factor)
        step += 1
        seconds += time.time() - started
        recent += time.time() - started
        tokens += sum(len(ids) for ids, _ in rows)
        if first and step % 25 == 0:
            load = max(m.load.max().item() / m.load.float().mean().item() for m in network.mixtures())
            print(f"step {step} loss {total.item():.4f} tokens {tokens / 1e6:.2f}M {recent / 25:.2f} s/step learned {learned} load {load:.2f}", flush=True)
            recent = 0.0
        if first and (step % arguments.evaluate_every == 0 or step == arguments.steps):
            rates = evaluate(network, sets)
            print(f"{time.strftime('%H:%M:%S')} step {step} " + " ".join(f"{name} {rate:.2f}" for name, rate in rates.items()), flush=True)
        if first and (step % 50 == 0 or step == arguments.steps):
            state = {"network": network.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step, "seconds": seconds, "tokens": tokens}
            torch.save(state, out / "checkpoint.tmp")
            (out / "checkpoint.tmp").rename(checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="run", help="folder of the checkpoint; a run resumes from what is there")
    parser.add_argument("--start", help="an exported model folder whose weights the run begins with")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first weights and of the data; another one draws other conversations")
    parser.add_argument("--mix", type=json.loads, default={}, help='shares of skills that differ from the curriculum\'s, as JSON: {"json": 40}')
    parser.add_argument("--tool-share", type=float, default=0.28, help="share of conversations with tools")
    parser.add_argument("--thinking-share", type=float, default=0.3, help="share of conversations that think")
    parser.add_argument("--vocabulary", default=str(Path(__file__).parents[2] / "src/nano/model/tiktoken.model"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--decay", type=int, default=4500, help="steps at the end over which the learning rate falls to zero")
    parser.add_argument("--early", type=int, default=900, help="steps at the start that are mostly copying")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step")
    parser.add_argument("--longest", type=int, default=640, help="tokens of the longest conversation that is kept")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--evaluate-every", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(exist_ok=True)
    (out / "rendezvous").unlink(missing_ok=True)
    mp.spawn(work, (arguments,), arguments.workers)


if __name__ == "__main__":
    main()
