"""The network: DeepSeek-V3's layout as the Kimi K2 family uses it, small. Tensor names are those of the Hugging Face layout,
except that the experts of a layer are stacked while training (see `export.py`)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from vocabulary import PAD, SPECIAL_IDS, VOCAB_SIZE

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 384,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 512,
    },
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "num_nextn_predict_layers": 0,
    "use_cache": True,
    "bos_token_id": SPECIAL_IDS["[BOS]"],
    "eos_token_id": SPECIAL_IDS["<|im_end|>"],
    "pad_token_id": PAD,
    "torch_dtype": "bfloat16",
}


def yarn_frequencies(c):
    dim, base, yarn = c["qk_rope_head_dim"], c["rope_theta"], c["rope_scaling"]
    extrapolated = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def turn(rotations):
        return dim * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * rotations)) / (2 * math.log(base))

    low, high = max(math.floor(turn(yarn["beta_fast"])), 0), min(math.ceil(turn(yarn["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (extrapolated / yarn["factor"] * ramp + extrapolated * (1 - ramp)).float()


def softmax_scale(c):
    yarn = c["rope_scaling"]
    mscale = 0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1
    return (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5 * mscale**2


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def half(x):
    """The rows in bf16, padded to a multiple of 128 rows: few shapes, so the library's kernels are found in its cache."""
    flat = x.reshape(-1, x.shape[-1])
    padded = torch.zeros(-(-flat.shape[0] // 128) * 128, flat.shape[1], dtype=torch.bfloat16)
    padded[: flat.shape[0]] = flat
    return padded


class HalfLinear(torch.autograd.Function):
    """A linear map whose products are taken in bf16 and handed on in f32: what a processor with bf16 products does fast."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.shape = x.shape
        rows, weight = half(x), weight.bfloat16()
        ctx.save_for_backward(rows, weight)
        return (rows @ weight.mT)[: x.numel() // x.shape[-1]].float().view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        gradient = half(gradient)
        count = ctx.shape.numel() // ctx.shape[-1]
        return (gradient @ weight)[:count].float().view(ctx.shape), (gradient.mT @ rows).float()


def apply_linear(x, weight):
    return HalfLinear.apply(x, weight) if torch.is_grad_enabled() else F.linear(x, weight)


class Linear(nn.Linear):
    def forward(self, x):
        return apply_linear(x, self.weight)


def linear(inputs, outputs, gain=1.0):
    layer = Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope, self.value = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.latent = c["kv_lora_rank"]
        width = c["hidden_size"]
        self.q_a_proj = linear(width, c["q_lora_rank"])
        self.q_a_layernorm = RMSNorm(c["q_lora_rank"], c["rms_norm_eps"])
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(width, self.latent + self.rope)
        self.kv_a_layernorm = RMSNorm(self.latent, c["rms_norm_eps"])
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = linear(self.heads * self.value, width, gain=0.3)
        self.scale = softmax_scale(c)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, length, self.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split((self.nope, self.rope), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((self.latent, self.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, self.heads, -1).transpose(1, 2)
        k_nope, value = kv.split((self.nope, self.value), -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
        k_rope = rotate(k_rope[:, None], cos, sin).expand(-1, self.heads, -1, -1)
        k = torch.cat((k_nope, k_rope), -1)
        out = F.scaled_dot_product_attention(q, k, value, is_causal=True, scale=self.scale)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cos, sin):
    """Rotates the interleaved pairs (0, 1), (2, 3) ... by the angles of each position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(width, inner), linear(width, inner), linear(inner, width, gain=0.3)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c["n_routed_experts"], c["hidden_size"]) * c["hidden_size"] ** -0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(c["n_routed_experts"]))


class Experts(nn.Module):
    """All routed experts of a layer, stacked."""

    def __init__(self, c):
        super().__init__()
        count, width, inner = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.gate_proj = nn.Parameter(torch.randn(count, inner, width) * width**-0.5)
        self.up_proj = nn.Parameter(torch.randn(count, inner, width) * width**-0.5)
        self.down_proj = nn.Parameter(torch.randn(count, width, inner) * 0.3 * inner**-0.5)


class MixtureOfExperts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.experts = Gate(c), Experts(c)
        self.shared_experts = FeedForward(c["hidden_size"], c["moe_intermediate_size"] * c["n_shared_experts"])
        self.top, self.factor = c["num_experts_per_tok"], c["routed_scaling_factor"]
        self.load = None  # tokens per expert of the last forward pass, for the balancing rule

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = torch.sigmoid(flat @ self.gate.weight.t())
        chosen = (scores.detach() + self.gate.e_score_correction_bias).topk(self.top, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.factor
        order = chosen.reshape(-1).argsort(stable=True)
        counts = torch.bincount(chosen.reshape(-1), minlength=self.gate.weight.shape[0])
        self.load = counts
        token = order // self.top
        gathered = flat[token]
        pieces = []
        e = self.experts
        for index, piece in enumerate(gathered.split(counts.tolist())):
            hidden = F.silu(apply_linear(piece, e.gate_proj[index])) * apply_linear(piece, e.up_proj[index])
            pieces.append(apply_linear(hidden, e.down_proj[index]))
        routed = torch.cat(pieces) * weights.reshape(-1)[order, None]
        out = torch.zeros_like(routed[: flat.shape[0]]).index_add(0, token, routed)
        return out.view_as(x) + self.shared_experts(x)

    def balance(self, rate):
        """The rule without an auxiliary loss: experts that got too few tokens become easier to choose."""
        load = self.load.float()
        self.gate.e_score_correction_bias += rate * torch.sign(load.mean() - load)


class Layer(nn.Module):
    def __init__(self, c, dense):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = FeedForward(c["hidden_size"], c["intermediate_size"]) if dense else MixtureOfExperts(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(Layer(c, i < c["first_k_dense_replace"]) for i in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Network(nn.Module):
    def __init__(self, config=CONFIG):
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = linear(config["hidden_size"], config["vocab_size"], gain=0.3)
        angles = torch.arange(config["max_position_embeddings"]).float()[:, None] * yarn_frequencies(config)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids, keep=None):
        """Logits of all positions, or of the flat positions in `keep`."""
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        x = self.model.norm(x)
        if keep is not None:
            x = x.reshape(-1, x.shape[-1])[keep]
        return self.lm_head(x)

    def mixtures(self):
        return [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, MixtureOfExperts)]
