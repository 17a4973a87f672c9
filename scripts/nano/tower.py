"""The picture tower and its projector: MoonViT's layout as Kimi K2.5 has it, sizes from the configuration.

Tensor names are those of the released checkpoints. One call takes pictures of one grid; they do not see each other.
"""

import torch
import torch.nn.functional as F
from torch import nn

from network import CONFIG, apply_linear

VISION = {
    "patch_size": 14,
    "init_pos_emb_height": 16,
    "init_pos_emb_width": 16,
    "init_pos_emb_time": 4,
    "pos_emb_type": "divided_fixed",
    "vt_num_attention_heads": 4,
    "vt_num_hidden_layers": 4,
    "vt_hidden_size": 128,
    "vt_intermediate_size": 256,
    "merge_kernel_size": [2, 2],
    "video_attn_type": "spatial_temporal",
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmerger",
    "mm_hidden_size": 128,
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-5,
    "text_hidden_size": CONFIG["hidden_size"],
}
ROTARY_BASE = 10000.0
CUBIC = -0.75  # the parameter of the position table's cubic


class Linear(nn.Linear):
    def __init__(self, inputs, outputs, gain=1.0):
        super().__init__(inputs, outputs)
        nn.init.normal_(self.weight, std=gain * inputs**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return apply_linear(x, self.weight) + self.bias


def spread(size, stored):
    """[size, stored]: the weights with which the stored rows of a position table make `size` rows."""
    source = (torch.arange(size, dtype=torch.float32) + 0.5) * (stored / size) - 0.5
    base = source.floor()
    t = source - base

    def near(x):
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x):
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    result = torch.zeros(size, stored)
    for tap, weight in zip(range(-1, 3), (far(t + 1), near(t), near(1 - t), far(2 - t))):
        index = (base.long() + tap).clamp(0, stored - 1)
        result.scatter_add_(1, index[:, None], weight[:, None])
    return result


class Positions(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c["init_pos_emb_height"], c["init_pos_emb_width"], c["vt_hidden_size"]) * 0.02)

    def forward(self, height, width):
        rows, columns = (spread(size, stored) for size, stored in zip((height, width), self.weight.shape))
        return torch.einsum("ri,cj,ijd->rcd", rows, columns, self.weight).flatten(0, 1)


class Patches(nn.Module):
    def __init__(self, c):
        super().__init__()
        side, width = c["patch_size"], c["vt_hidden_size"]
        self.proj = nn.Conv2d(3, width, side, side)
        nn.init.normal_(self.proj.weight, std=(3 * side * side) ** -0.5)
        nn.init.zeros_(self.proj.bias)
        self.pos_emb = Positions(c)

    def forward(self, patches, height, width):
        x = apply_linear(patches.flatten(-3), self.proj.weight.flatten(1)) + self.proj.bias
        return x + self.pos_emb(height, width)


def angles(height, width, head):
    """[patches, head / 2]: the turn of every adjacent pair, by column and by row in turn."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head, 4, dtype=torch.float32) / head)
    row, column = torch.arange(height * width) // width, torch.arange(height * width) % width
    return torch.stack((column[:, None] * frequencies, row[:, None] * frequencies), -1).flatten(1)


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc0, self.fc1 = Linear(width, inner), Linear(inner, width, gain=0.3)

    def forward(self, x):
        return self.fc1(F.gelu(self.fc0(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["vt_hidden_size"]
        self.heads = c["vt_num_attention_heads"]
        self.norm0, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wqkv, self.wo = Linear(width, 3 * width), Linear(width, width, gain=0.3)
        self.mlp = FeedForward(width, c["vt_intermediate_size"])

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = self.wqkv(self.norm0(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.wo(out.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm1(x))


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["vt_num_hidden_layers"]))
        self.final_layernorm = nn.LayerNorm(c["vt_hidden_size"])


class Tower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head = c["vt_hidden_size"] // c["vt_num_attention_heads"]
        self.patch_embed, self.encoder = Patches(c), Encoder(c)

    def forward(self, patches, height, width):
        """[batch, height * width, 3, side, side] -> [batch, height * width, hidden]"""
        x = self.patch_embed(patches, height, width)
        turn = angles(height, width, self.head)
        for block in self.encoder.blocks:
            x = block(x, turn.cos(), turn.sin())
        return self.encoder.final_layernorm(x)


class Projector(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["vt_hidden_size"]
        self.pre_norm = nn.LayerNorm(width, eps=c["projector_ln_eps"])
        self.proj = nn.Sequential(Linear(4 * width, 4 * width), nn.GELU(), Linear(4 * width, c["text_hidden_size"], gain=0.5))

    def merge(self, x, height, width):
        """[batch, height * width, hidden] -> [batch, tokens, 4 * hidden]: a token is a square of two by two patches."""
        x = self.pre_norm(x).view(x.shape[0], height // 2, 2, width // 2, 2, -1).transpose(2, 3)
        return x.reshape(x.shape[0], height * width // 4, -1)

    def forward(self, x, height, width):
        return self.proj(self.merge(x, height, width))


class Vision(nn.Module):
    def __init__(self, config=VISION):
        super().__init__()
        self.vision_tower, self.mm_projector = Tower(config), Projector(config)

    def forward(self, patches, height, width):
        return self.mm_projector(self.vision_tower(patches, height, width), height, width)


def patched(pixels, side=VISION["patch_size"]):
    """Pictures as bytes [batch, h, w, 3], padded already, as patches [batch, rows * columns, 3, side, side] in -1 .. 1."""
    batch, h, w, _ = pixels.shape
    x = pixels.view(batch, h // side, side, w // side, side, 3).permute(0, 1, 3, 5, 2, 4)
    return (x.reshape(batch, -1, 3, side, side) / 255 - 0.5) * 2
