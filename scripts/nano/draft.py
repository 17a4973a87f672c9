"""The draft of perigee-nano: an Eagle3 layer (arXiv 2503.01840) that guesses the tokens after the next one.

Slot t pairs the target's states at position t with the embedding of token t + 1 and guesses token t + 2. A later step of the
same chain takes the state of the step before it, and the next token. Training unrolls such chains from every slot, so that the
layer learns from its own states too; its aim is the target's distribution, on tokens the target would write.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from curriculum import SKILLS
from evaluate import FOLDER, load
from export import write_json
from heldout import items
from muon import Muon
from network import CONFIG, FeedForward, RMSNorm, linear, rotate, softmax_scale
from train import POOL, batches, sum_over_workers
from vocabulary import PAD, Vocabulary

SEED = 61803
STATES = (2, 3, 5)  # inputs of these layers; 5 is the output of the last one
STEPS = 4  # of a chain
DRAFT = {
    **{
        name: CONFIG[name]
        for name in (
            "model_type hidden_size num_attention_heads num_key_value_heads q_lora_rank kv_lora_rank qk_nope_head_dim "
            "qk_rope_head_dim v_head_dim hidden_act rms_norm_eps vocab_size max_position_embeddings rope_theta "
            "rope_scaling tie_word_embeddings bos_token_id eos_token_id pad_token_id torch_dtype"
        ).split()
    },
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "num_hidden_layers": 1,
    "intermediate_size": 512,
    "draft_vocab_size": CONFIG["vocab_size"],
    "fc_norm": True,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(STATES), "use_aux_hidden_state": True},
}


class Attention(nn.Module):
    """MLA over pairs of an embedding and a state."""

    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope, self.value = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.latent, width, eps = c["kv_lora_rank"], c["hidden_size"], c["rms_norm_eps"]
        self.q_a_proj = linear(2 * width, c["q_lora_rank"])
        self.q_a_layernorm = RMSNorm(c["q_lora_rank"], eps)
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(2 * width, self.latent + self.rope)
        self.kv_a_layernorm = RMSNorm(self.latent, eps)
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = linear(self.heads * self.value, width, gain=0.3)
        self.scale = softmax_scale(c)

    def forward(self, x, cos, sin, kept):
        """One step of every chain. `kept` is the keys and values of the steps before it, and gets this step's: the first
        step's rows are seen by every chain that begins at or behind them, a later step's row by its own chain alone."""
        batch, length, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, length, self.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split((self.nope, self.rope), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((self.latent, self.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, self.heads, -1).transpose(1, 2)
        k_nope, value = kv.split((self.nope, self.value), -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
        k = torch.cat((k_nope, rotate(k_rope[:, None], cos, sin).expand(-1, self.heads, -1, -1)), -1)
        kept.append((k, value))
        if len(kept) == 1:
            out = F.scaled_dot_product_attention(q, k, value, is_causal=True, scale=self.scale)
        else:
            (first, first_value), *own = kept
            ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ first.mT * self.scale).masked_fill(ahead, -math.inf)
            own_scores = [(q * key).sum(-1, keepdim=True) * self.scale for key, _ in own]
            weights = torch.cat((scores, *own_scores), -1).softmax(-1)
            out = weights[..., :length] @ first_value
            for step, (_, own_value) in enumerate(own):
                out = out + weights[..., length + step, None] * own_value
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = FeedForward(width, c["intermediate_size"])

    def forward(self, embedded, hidden, cos, sin, kept):
        pair = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(pair, cos, sin, kept)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Draft(nn.Module):
    """Tensor names are those of the published MLA drafts. It embeds tokens with the target's table."""

    def __init__(self, target):
        super().__init__()
        width, eps = DRAFT["hidden_size"], DRAFT["rms_norm_eps"]
        self.fc_norm = nn.ModuleList(RMSNorm(width, eps) for _ in STATES)
        self.fc = linear(len(STATES) * width, width, gain=0.1)
        self.layers = nn.ModuleList([Layer(DRAFT)])
        self.norm = RMSNorm(width, eps)
        self.lm_head = linear(width, DRAFT["vocab_size"])
        # It begins as the target's own guess of the token that slot already knows.
        self.fc.weight.data[:, -width:] += torch.eye(width)
        self.fc_norm[-1].weight.data.copy_(target.model.norm.weight.data)
        self.lm_head.weight.data.copy_(target.lm_head.weight.data)

    def chain(self, states, embedded, cos, sin, steps):
        """The states of every step of the chains: step j of the chain from slot t, at row t, runs at position t + j."""
        length = embedded.shape[1] - 1
        hidden = self.fc(torch.cat([norm(state) for norm, state in zip(self.fc_norm, states)], -1))[:, :length]
        kept, result = [], []
        for step in range(steps):
            # Tokens behind the end are padding: no chain that counts reaches them.
            tokens = F.pad(embedded[:, 1 + step :], (0, 0, 0, step))
            hidden = self.layers[0](tokens, hidden, cos[step : step + length], sin[step : step + length], kept)
            result.append(hidden)
        return result

    def logits(self, hidden):
        return self.lm_head(self.norm(hidden))


@torch.no_grad()
def observe(target, ids):
    """The states that the draft reads, and the last one behind the final norm."""
    x = target.model.embed_tokens(ids)
    embedded, states = x, []
    cos, sin = target.cos[: ids.shape[1]], target.sin[: ids.shape[1]]
    with torch.enable_grad():  # the products in bf16
        for index, layer in enumerate(target.model.layers, 1):
            x = layer(x, cos, sin)
            if index in STATES:
                states.append(x.detach())
    return embedded.detach(), states, target.model.norm(x.detach())


def collate(rows):
    """Ids, and which positions predict a learned token."""
    length = max(len(ids) for ids, _ in rows)
    ids, predicts = torch.full((len(rows), length), PAD), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (row, learned) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        predicts[i, : len(row) - 1] = torch.tensor(learned[1:])
    return ids, predicts


def losses(target, draft, rows, steps=STEPS):
    """For each step the summed cross entropy to the target's distribution, and `right` [batch, length]: whether the step's
    guess of the token behind a position is the target's. With it, which positions count."""
    ids, predicts = collate(rows)
    predicts[:, : steps + 1] = False
    embedded, states, final = observe(target, ids)
    flat = predicts.reshape(-1).nonzero()[:, 0]
    batch, length = ids.shape
    with torch.no_grad():
        wanted = F.linear(final.reshape(-1, final.shape[-1])[flat], target.lm_head.weight)
        probabilities, choice = wanted.softmax(-1), wanted.argmax(-1)
    row, position = flat // length, flat % length
    total, right = [], []
    for step, hidden in enumerate(draft.chain(states, embedded, target.cos, target.sin, steps)):
        guesses = draft.logits(hidden[row, position - 1 - step])
        total.append(F.cross_entropy(guesses, probabilities, reduction="sum"))
        is_right = torch.zeros(batch, length, dtype=torch.bool)
        is_right[row, position] = guesses.detach().argmax(-1) == choice
        right.append(is_right)
    return total, right, predicts


@torch.no_grad()
def acceptance(target, draft, rows, steps=3):
    """Tokens per pass of the target with `steps` drafts, over chains from every learned token, greedy."""
    chains, tokens = 0, 0.0
    for start in range(0, len(rows), 20):
        _, right, predicts = losses(target, draft, rows[start : start + 20], steps)
        # The chain whose first guess is for position p, then p + 1, ...; what ends with the reply was not there to be won.
        alive = predicts.clone()
        chains += alive.sum().item()
        tokens += alive.sum().item()
        for step in range(steps):
            ahead = F.pad((right[step] & predicts)[:, step:], (0, step))
            alive = alive & ahead
            tokens += alive.sum().item()
    return tokens / chains


def held_out(vocabulary, count):
    rows = {}
    for skill in SKILLS:
        rows[skill] = []
        for mode in ("instant", "thinking"):
            for item in items(skill, mode, count):
                prompt, answer = vocabulary.encode_rendered(item["prompt_text"]), vocabulary.encode_rendered(item["answer"])
                rows[skill].append((prompt + answer, [False] * len(prompt) + [True] * len(answer)))
        rows[skill].sort(key=lambda row: len(row[0]))
    return rows


def work(rank, arguments):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    out = Path(arguments.out)
    dist.init_process_group("gloo", init_method=f"file://{out.resolve()}/rendezvous", rank=rank, world_size=arguments.workers)
    first = rank == 0
    vocabulary = Vocabulary.load(FOLDER / "tiktoken.model")
    target = load(FOLDER).requires_grad_(False)
    draft = Draft(target)
    names = dict(draft.named_parameters())
    matrices = [p for name, p in names.items() if p.ndim == 2 and "lm_head" not in name]
    others = [p for name, p in names.items() if p.ndim != 2 or "lm_head" in name]
    optimizers = [Muon(matrices, arguments.muon_lr, weight_decay=0.02), torch.optim.AdamW(others, arguments.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
    peaks = [arguments.muon_lr, arguments.adam_lr]
    checkpoint, step = out / "draft.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        draft.load_state_dict(state["draft"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        step = state["step"]
    if first:
        print(f"{sum(p.numel() for p in names.values())} parameters, from step {step}", flush=True)
        sets = held_out(vocabulary, 20)
    pool, queue, recent = -1, [], 0.0
    while step < arguments.steps:
        started = time.time()
        if step // POOL != pool or not queue:
            pool = step // POOL
            queue = batches(vocabulary, pool, arguments, False)
        rows = queue[step % POOL % len(queue)]
        mine = rows[rank :: arguments.workers]
        factor = min(1.0, (step + 1) / 50, (arguments.steps - step) / arguments.decay)
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
        learned = sum(sum(row[1][1:]) for row in rows)
        total = torch.zeros(STEPS)
        if mine:
            by_step, _, _ = losses(target, draft, mine)
            loss = sum(0.8**i * part for i, part in enumerate(by_step)) / learned
            loss.backward()
            total = torch.stack([part.detach() for part in by_step]) / learned
        for p in names.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        sum_over_workers([p.grad for p in names.values()] + [total])
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        recent += time.time() - started
        if first and step % 25 == 0:
            print(f"step {step} losses {' '.join(f'{part:.3f}' for part in total.tolist())} {recent / 25:.2f} s/step", flush=True)
            recent = 0.0
        if first and (step % 250 == 0 or step == arguments.steps):
            rates = {skill: acceptance(target, draft, rows) for skill, rows in sets.items()}
            print(f"{time.strftime('%H:%M:%S')} step {step} tokens per pass: {sum(rates.values()) / len(rates):.3f}; {' '.join(f'{skill} {rate:.2f}' for skill, rate in rates.items())}", flush=True)
        if first and (step % 50 == 0 or step == arguments.steps):
            torch.save({"draft": draft.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}, out / "draft.tmp")
            (out / "draft.tmp").rename(checkpoint)


def export(checkpoint, folder):
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", DRAFT)
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in torch.load(checkpoint)["draft"].items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    print("bytes:", {path.name: path.stat().st_size for path in sorted(folder.iterdir())})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="draft", help="folder of the checkpoint; a run resumes from what is there")
    parser.add_argument("--export", metavar="FOLDER", help="write the draft's folder from the checkpoint, and train no more")
    parser.add_argument("--seed", type=int, default=SEED, help="of the data")
    parser.add_argument("--tool-share", type=float, default=0.28, help="share of conversations with tools")
    parser.add_argument("--thinking-share", type=float, default=0.4, help="share of conversations that think")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--decay", type=int, default=3000, help="steps at the end over which the learning rate falls to zero")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step")
    parser.add_argument("--longest", type=int, default=640, help="tokens of the longest conversation that is kept")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=2)
    parser.set_defaults(mix={})  # the curriculum's
    arguments = parser.parse_args()
    out = Path(arguments.out)
    if arguments.export:
        return export(out / "draft.pt", Path(arguments.export))
    out.mkdir(exist_ok=True)
    (out / "rendezvous").unlink(missing_ok=True)
    mp.spawn(work, (arguments,), arguments.workers)


if __name__ == "__main__":
    main()
