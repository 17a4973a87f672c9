"""Trains the picture tower of perigee-nano in front of the frozen language model; evaluates and exports it.

The projector's rows stand in the prompt for the tokens of a picture. Training has three parts:
first, without pictures, a table of rows is found that makes the model say what is in a picture: for every colour, shape, count
and digit, rows for the three by three tokens in the top left corner, begun as the embeddings of the words ("colour", "red");
then the tower learns to make the sum of those rows from a picture, while heads on every token name what is in the picture;
at last the loss is that of the model's reply to the tower's rows. Its gradient reaches the tower through the frozen model, and
the table too, as if the rows were the table's, so that the table moves to where the tower's rows are read best.
Every batch is a function of (seed, step), so a run can stop and resume anywhere.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from evaluate import FOLDER, VISION_NAMES, load
from export import write_json
from muon import Muon
from pictures import ASKED, COLOURS, COUNTS, DIGITS, SHAPES, SKILLS, draw, picture, talk
from tower import VISION, Vision, patched
from vocabulary import PAD, SPECIAL_IDS, Vocabulary

SEED = 141421
HELD_OUT_SEED = 4711
FILES_SEED = 4712  # of the held-out pictures that are written
LARGEST_FILE = 4000  # bytes
EMBEDDINGS = "model.embed_tokens.weight"
MEDIA = [SPECIAL_IDS[name] for name in ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")]
SQUARE = 28  # pixels a side of what becomes one token
SIDES = {3: 6, 4: 6, 5: 4, 6: 3, 7: 1, 8: 2}  # tokens a side of a picture, how often
PLACES = 3  # by as many tokens have rows in the table; the others share one
KINDS = {"shape": 4, "count": 4.5, "digit": 1.5}
LABELS = {"colour": list(COLOURS), "shape": list(SHAPES), "count": list(COUNTS), "digit": list(DIGITS)}
WRAPPER = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "media_placeholder_token_id": MEDIA[-1],
    "tie_word_embeddings": False,
    "use_unified_vision_chunk": True,
    "video_placeholder": "<|kimi_k25_video_placeholder|>",
    "torch_dtype": "bfloat16",
}
PREPROCESSOR = {
    "media_proc_cfg": {
        "in_patch_limit": 256,
        "patch_size": VISION["patch_size"],
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_kernel_size": 2,
        "fixed_output_tokens": None,
        "patch_limit_on_one_side": 64,
        "in_patch_limit_each_frame": 64,
        "in_patch_limit_video": None,
        "sample_fps": 2.0,
        "max_num_frames_each_video": None,
        "temporal_merge_kernel_size": 4,
        "timestamp_mode": "hh:mm:ss.fff",
    },
}


def draw_one(rng, weights):
    return rng.choices(list(weights), list(weights.values()))[0]


def grid(rng):
    columns = draw_one(rng, SIDES)
    return columns, columns if rng.random() < 0.5 else draw_one(rng, SIDES)


def prompt(asked, tokens, picture_first):
    """The rendered conversation up to the reply; the picture stands for so many tokens."""
    shown = f"<|media_begin|>image<|media_content|>{'<|media_pad|>' * tokens}<|media_end|>\n"
    content = shown + asked if picture_first else asked + shown
    return f"<|im_user|>user<|im_middle|>{content}<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>"


def padded(pixels, columns, rows):
    """The picture's pixels, with zeros to the right and below up to whole tokens."""
    result = torch.zeros(rows * SQUARE, columns * SQUARE, 3, dtype=torch.uint8)
    result[: pixels.shape[0], : pixels.shape[1]] = torch.from_numpy(pixels.copy())
    return result


def row(vocabulary, rng, p, skill, tokens):
    """Ids of a conversation about a picture, and which of them are learned."""
    asked, answer = talk(rng, p, skill)
    given = vocabulary.encode_rendered(prompt(asked, tokens, rng.random() < 0.75))
    reply = vocabulary.encode_rendered(answer + "<|im_end|>")
    return given + reply, [False] * len(given) + [True] * len(reply)


def labels(shown):
    """For each head the index of what it should name, -1 where it has nothing to name."""
    named = {name: [] for name in LABELS}
    for p in shown:
        has = {"colour": p["colour"], "shape": p.get("shape"), "count": len(p["places"]) if "places" in p else None, "digit": p.get("digit")}
        for name, known in LABELS.items():
            named[name].append(known.index(has[name]) if has[name] is not None else -1)
    return {name: torch.tensor(values) for name, values in named.items()}


def batch(vocabulary, seed, step, tokens):
    """Pictures of one size, their tokens a side, and a question about each: about so many tokens in all."""
    rng = random.Random(f"{seed} {step}")
    columns, rows = grid(rng)
    shown, asked = [], []
    for _ in range(round(tokens / (columns * rows + 35))):
        p = picture(rng, "train", draw_one(rng, KINDS), columns, rows)
        shown.append(p)
        asked.append(row(vocabulary, rng, p, draw_one(rng, ASKED[p["kind"]]), columns * rows))
    return shown, asked, columns, rows


def stacked(shown, columns, rows):
    return torch.stack([padded(draw(p), columns, rows) for p in shown])


def places(columns, rows):
    """For each token which of the table's rows it takes: its own in the top left corner, the last one elsewhere."""
    down, across = torch.arange(rows)[:, None], torch.arange(columns)
    return torch.where((down < PLACES) & (across < PLACES), down * PLACES + across, PLACES**2).flatten()


class Seeing(nn.Module):
    """Everything that is trained: the tower with its projector, the embeddings of the media tokens, the table, the heads."""

    def __init__(self, network, vocabulary):
        super().__init__()
        embeddings = network.model.embed_tokens.weight.data
        width = VISION["text_hidden_size"]
        self.vision = Vision(VISION)
        self.rows = nn.Parameter(embeddings[MEDIA].clone())
        self.heads = nn.ModuleDict({name: nn.Linear(4 * VISION["vt_hidden_size"], len(known)) for name, known in LABELS.items()})
        self.filler = nn.Parameter(torch.randn(width) * 0.02)
        self.table = nn.ParameterDict({name: torch.randn(len(known) + 1, PLACES**2, width) * 0.02 for name, known in LABELS.items()})
        for name, known in LABELS.items():
            first = {"colour": 0, "shape": 3}.get(name, 6)
            for index, word in enumerate(known):
                tokens = embeddings[vocabulary.encode(str(word))]
                parts = (embeddings[vocabulary.encode(name)].sum(0), tokens[0], tokens[1:].sum(0))
                self.table[name].data[index, first : first + 3] += torch.stack(parts)

    def wanted(self, named, columns, rows):
        """The table's rows for pictures of these labels [batch, tokens, hidden], the last entry for what has no label."""
        table = sum(table[named[name]] for name, table in self.table.items())
        table = torch.cat((table, self.filler.expand(len(table), 1, -1)), 1)
        return table[:, places(columns, rows)]

    def embed(self, network, ids, projected):
        """The prompt's embeddings [batch, length, hidden], the pictures' rows in their places."""
        embedded = network.model.embed_tokens(ids)
        for media, replacement in zip(MEDIA[:3], self.rows):
            embedded = torch.where((ids == media)[..., None], replacement, embedded)
        return embedded.index_put(((ids == MEDIA[3]).nonzero(as_tuple=True)), projected.flatten(0, 1))


def collate(asked):
    length = max(len(ids) for ids, _ in asked) - 1
    inputs, targets = torch.full((len(asked), length), PAD), torch.full((len(asked), length), -100)
    for i, (ids, learned) in enumerate(asked):
        inputs[i, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[i, : len(ids) - 1] = torch.tensor([id if learn else -100 for id, learn in zip(ids[1:], learned[1:])])
    return inputs, targets


def read(network, embedded, keep):
    """The language model's logits at the flat positions in `keep`."""
    x = embedded
    cos, sin = network.cos[: x.shape[1]], network.sin[: x.shape[1]]
    for layer in network.model.layers:
        x = layer(x, cos, sin)
    return network.lm_head(network.model.norm(x).flatten(0, 1)[keep])


def project(seeing, pixels):
    """The rows of pictures [batch, tokens, text hidden], and what they are made of by the last product."""
    height, width = (side // VISION["patch_size"] for side in pixels.shape[1:3])
    projector = seeing.vision.mm_projector
    merged = projector.merge(seeing.vision.vision_tower(patched(pixels), height, width), height, width)
    hidden = projector.proj[:2](merged)
    return projector.proj[2](hidden), hidden


def of_reply(network, seeing, asked, projected):
    inputs, targets = collate(asked)
    keep = (targets.flatten() >= 0).nonzero()[:, 0]
    return F.cross_entropy(read(network, seeing.embed(network, inputs, projected), keep), targets.flatten()[keep])


def losses(network, seeing, shown, asked, columns, rows, part):
    """The losses of the reply, of the heads, and of the rows' distance from the table's; those that the part of training has."""
    named = labels(shown)
    table = seeing.wanted(named, columns, rows)
    nothing = torch.zeros(())
    if part == "table":
        large = F.relu(table.square().mean() - 1)
        return of_reply(network, seeing, asked, table + 0.25 * torch.randn_like(table)), nothing, large
    projected, hidden = project(seeing, stacked(shown, columns, rows))
    heads = nothing
    for name, head in seeing.heads.items():
        if (named[name] >= 0).any():
            heads = heads + F.cross_entropy(head(hidden).flatten(0, 1), named[name].repeat_interleave(columns * rows), ignore_index=-1)
    error = (projected - table.detach()).square().mean((0, 2))
    corner = places(columns, rows) < PLACES**2
    distance = error[corner].mean() + 0.5 * error[~corner].sum() / max(1, (~corner).sum())
    if part == "rows":
        return nothing, heads, distance
    return of_reply(network, seeing, asked, projected + table - table.detach()), heads, distance


def held_out(vocabulary, skill, count, seed=HELD_OUT_SEED):
    """Held-out pictures with a question of a skill: (parameters, question and reply as ids, columns, rows)."""
    kind = "shape" if skill == "colour" else skill
    result = []
    for number in range(count):
        rng = random.Random(f"{seed} {skill} {number}")
        columns, rows = grid(rng)
        p = picture(rng, "heldout", kind, columns, rows)
        result.append((p, row(vocabulary, rng, p, skill, columns * rows), columns, rows))
    return result


@torch.no_grad()
def right(network, seeing, items):
    """For each item, whether every token of the reply is the model's first choice, as greedy decoding would write it, and those
    choices. What follows a wrong one is chosen behind the expected token."""
    result = []
    for p, asked, columns, rows in items:
        projected, _ = project(seeing, stacked([p], columns, rows))
        inputs, targets = collate([asked])
        keep = (targets.flatten() >= 0).nonzero()[:, 0]
        guesses = read(network, seeing.embed(network, inputs, projected), keep).argmax(-1)
        result.append((bool((guesses == targets.flatten()[keep]).all()), guesses.tolist()))
    return result


def evaluate(network, seeing, sets):
    return {skill: sum(good for good, _ in right(network, seeing, items)) / len(items) for skill, items in sets.items()}


def optimizers_of(seeing, arguments):
    """The optimizers and the peaks of their rates."""
    names = dict(seeing.named_parameters())
    matrices = [p for name, p in names.items() if p.ndim == 2 and name.startswith("vision")]
    last = matrices.pop()  # makes the rows: smaller steps keep them steady
    table = [seeing.filler, *seeing.table.parameters()]
    others = [p for p in names.values() if not any(p is known for known in (*matrices, last, seeing.rows, *table))]
    pairs = [(Muon(matrices, 0.0, weight_decay=0.02), arguments.muon_lr), (Muon([last], 0.0, weight_decay=0.02), 0.5 * arguments.muon_lr)]
    for group, peak in ((others, arguments.adam_lr), ([seeing.rows], 5 * arguments.adam_lr), (table, arguments.table_lr)):
        pairs.append((torch.optim.AdamW(group, betas=(0.9, 0.95), weight_decay=0.0), peak))
    return pairs


def train(arguments):
    torch.manual_seed(arguments.seed)
    out = Path(arguments.out)
    out.mkdir(exist_ok=True)
    vocabulary = Vocabulary.load(FOLDER / "tiktoken.model")
    network = load(FOLDER).requires_grad_(False)
    seeing = Seeing(network, vocabulary)
    optimizers = optimizers_of(seeing, arguments)
    checkpoint, step = out / "vision.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        seeing.load_state_dict(state["seeing"])
        for (optimizer, _), saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        step = state["step"]
    print(f"{sum(p.numel() for p in seeing.vision.parameters())} parameters, from step {step}", flush=True)
    sets = {skill: held_out(vocabulary, skill, 60) for skill in SKILLS}
    parts = {"table": arguments.table, "rows": arguments.rows, "reply": arguments.steps - arguments.table - arguments.rows}
    recent, sums = 0.0, torch.zeros(3)
    while step < arguments.steps:
        started = time.time()
        begun = 0  # step at which this part of the training began
        for part, length in parts.items():
            if step < begun + length:
                break
            begun += length
        done = (step - begun) / length
        shown, asked, columns, rows = batch(vocabulary, arguments.seed, step, arguments.tokens)
        parted = losses(network, seeing, shown, asked, columns, rows, part)
        weights = {"table": (1.0, 0.0, 0.5), "rows": (0.0, 1.0, 8.0), "reply": (5.0, 0.6, 1.5)}[part]
        sum(weight * one for weight, one in zip(weights, parted)).backward()
        # The table's rate falls to zero in its part; the tower's in the last one.
        factor = min(1.0, (step - begun + 1) / 50, 1.0 if part == "rows" else 1.5 * (1 - done))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor * (arguments.reply_rate if part == "reply" else 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        sums += torch.stack([one.detach() for one in parted])
        recent += time.time() - started
        if step % 25 == 0:
            print(f"step {step} {part}: reply {sums[0] / 25:.3f} heads {sums[1] / 25:.3f} rows {sums[2] / 25:.3f} {recent / 25:.2f} s/step", flush=True)
            recent, sums = 0.0, torch.zeros(3)
        if step % arguments.evaluate_every == 0 or step == arguments.steps:
            print(time.strftime("%H:%M:%S"), f"step {step}", *(f"{name} {rate:.2f}" for name, rate in evaluate(network, seeing, sets).items()), flush=True)
        if step % 50 == 0 or step == arguments.steps:
            torch.save({"seeing": seeing.state_dict(), "optimizers": [optimizer.state_dict() for optimizer, _ in optimizers], "step": step}, out / "vision.tmp")
            (out / "vision.tmp").rename(checkpoint)


def exported(folder, network, vocabulary):
    """The network and what it sees with, as the model's folder has them."""
    seeing = Seeing(network, vocabulary)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    seeing.vision.load_state_dict({name: tensor for name, tensor in tensors.items() if name.startswith(VISION_NAMES)})
    seeing.rows.data = tensors[EMBEDDINGS][MEDIA]
    return seeing.eval()


def export(checkpoint, folder):
    """Joins the tower to the model's folder: its tensors under their released names, the embeddings of the media tokens, both configurations."""
    state = torch.load(checkpoint)["seeing"]
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if not name.startswith(VISION_NAMES)}
    tensors[EMBEDDINGS][MEDIA] = state["rows"].bfloat16()
    tensors |= {name.removeprefix("vision."): tensor.bfloat16().contiguous() for name, tensor in state.items() if name.startswith("vision.")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    text = text.get("text_config", text)
    shared = {name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "config.json", WRAPPER | shared | {"text_config": text, "vision_config": VISION})
    write_json(folder / "preprocessor_config.json", PREPROCESSOR)


def measure(folder, count, seed, show):
    """The accuracy of a model's folder on held-out pictures, at temperature 0."""
    vocabulary, network = Vocabulary.load(folder / "tiktoken.model"), load(folder)
    seeing = exported(folder, network, vocabulary)
    print("| skill | right | of | rate |\n|---|---|---|---|")
    for skill in SKILLS:
        items = held_out(vocabulary, skill, count, seed)
        found = right(network, seeing, items)
        good = sum(good for good, _ in found)
        print(f"| {skill} | {good} | {count} | {100 * good / count:.1f} % |", flush=True)
        for (p, (ids, learned), *_), (is_good, reply) in zip(items, found):
            if not is_good and show:
                print("  ", p["width"], "x", p["height"], vocabulary.decode([id for id, learn in zip(ids, learned) if learn]), "->", vocabulary.decode(reply))


def write_pictures(folder, count):
    """Held-out pictures as files, with a question and the reply; those whose file is small."""
    (folder / "heldout_pictures").mkdir(parents=True, exist_ok=True)
    with open(folder / "heldout_pictures.jsonl", "w") as file:
        for skill in SKILLS:
            written = 0
            for number in range(100 * count):
                rng = random.Random(f"{FILES_SEED} {skill} {number}")
                columns, rows = grid(rng)
                p = picture(rng, "heldout", "shape" if skill == "colour" else skill, columns, rows)
                asked, reply = talk(rng, p, skill)
                name = f"{skill}_{written:02}.png"
                path = folder / "heldout_pictures" / name
                Image.fromarray(draw(p)).save(path, optimize=True)
                if path.stat().st_size > LARGEST_FILE:
                    path.unlink()
                    continue
                file.write(json.dumps({"skill": skill, "file": name, "question": asked, "expect": reply}) + "\n")
                written += 1
                if written == count:
                    break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="vision", help="folder of the checkpoint; a run resumes from what is there")
    parser.add_argument("--export", metavar="FOLDER", help="join the checkpoint's tower to a model's folder, and train no more")
    parser.add_argument("--evaluate", metavar="FOLDER", help="measure a model's folder on held-out pictures")
    parser.add_argument("--held-out-seed", type=int, default=HELD_OUT_SEED, help="with --evaluate: which pictures")
    parser.add_argument("--count", type=int, default=200, help="with --evaluate: pictures per skill")
    parser.add_argument("--show", action="store_true", help="with --evaluate: print the wrong replies")
    parser.add_argument("--pictures", metavar="FOLDER", help="write held-out pictures as files, 25 per skill")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first weights and of the data")
    parser.add_argument("--table", type=int, default=600, help="steps that find the table of rows, without pictures")
    parser.add_argument("--rows", type=int, default=5000, help="steps in which the tower learns those rows")
    parser.add_argument("--steps", type=int, default=10000, help="in all; the rest is on replies")
    parser.add_argument("--tokens", type=int, default=2500, help="tokens per step")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--table-lr", type=float, default=1.5e-2)
    parser.add_argument("--reply-rate", type=float, default=0.5, help="share of the rates that the last part begins with")
    parser.add_argument("--evaluate-every", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.export:
        export(Path(arguments.out) / "vision.pt", Path(arguments.export))
    elif arguments.evaluate:
        measure(Path(arguments.evaluate), arguments.count, arguments.held_out_seed, arguments.show)
    elif arguments.pictures:
        write_pictures(Path(arguments.pictures), 25)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
