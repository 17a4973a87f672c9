#!/usr/bin/env python3
"""Makes folders to measure with: a checkpoint of random BF16 weights, or the headers of a whole release with holes for data.

    folders.py random FOLDER --gb 2          # Kimi's expert sizes; layers and experts as --gb needs
    folders.py release FOLDER --format nvfp4 # 61 layers, 384 experts: ~590 GB that take a few MB of disk

Needs numpy. `random` can be quantized, pruned, audited and run; its weights say nothing.
"""
import argparse
import json
import os

BYTES = {"BF16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}


class Shard:
    """Tensors of one safetensors file, with data or without."""

    def __init__(self):
        self.tensors = []

    def add(self, name, dtype, shape, data=None):
        self.tensors.append((name, dtype, list(shape), data))

    def write(self, path):
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, _ in self.tensors:
            size = BYTES[dtype]
            for dim in shape:
                size *= dim
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for *_, data in self.tensors:
                if data is not None:
                    file.write(data())
            file.truncate(8 + len(text) + end)
        return end


def write_folder(folder, shards, config):
    os.makedirs(folder, exist_ok=True)
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += shard.write(os.path.join(folder, name))
        weight_map.update((tensor[0], name) for tensor in shard.tensors)
    write = lambda name, value: open(os.path.join(folder, name), "w").write(json.dumps(value, indent=2) + "\n")
    write("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    write("config.json", config)
    print(f"{folder}: {len(weight_map)} tensors, {len(shards)} shards, {total / 1e9:.1f} GB")


def text_config(layers, experts, vocab, heads=64):
    return {
        "model_type": "kimi_k2", "vocab_size": vocab, "hidden_size": 7168, "num_hidden_layers": layers,
        "first_k_dense_replace": 1, "intermediate_size": 18432 if layers == 61 else 2048, "moe_intermediate_size": 2048,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
        "num_attention_heads": heads, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 2.827, "norm_topk_prob": True,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
        "max_position_embeddings": 262144 if layers == 61 else 4096, "eos_token_id": 1, "tie_word_embeddings": False,
    }


def layer(shard, config, index, floats, ones, expert):
    """Adds a layer; `floats`, `ones` and `expert` say how its tensors are stored."""
    p, d = f"model.layers.{index}", config["hidden_size"]
    heads, q = config["num_attention_heads"], config["q_lora_rank"]
    for name, size in [("input_layernorm", d), ("post_attention_layernorm", d), ("self_attn.q_a_layernorm", q),
                       ("self_attn.kv_a_layernorm", 512)]:
        ones(shard, f"{p}.{name}.weight", [size])
    for name, shape in [("q_a_proj", [q, d]), ("q_b_proj", [heads * 192, q]), ("kv_a_proj_with_mqa", [576, d]),
                        ("kv_b_proj", [heads * 256, 512]), ("o_proj", [d, heads * 128])]:
        floats(shard, f"{p}.self_attn.{name}.weight", shape)

    def swiglu(stem, width, linear):
        for name, shape in [("gate_proj", [width, d]), ("up_proj", [width, d]), ("down_proj", [d, width])]:
            linear(shard, f"{stem}.{name}", shape)
    plain = lambda shard, stem, shape: floats(shard, f"{stem}.weight", shape)
    if index == 0:
        return swiglu(f"{p}.mlp", config["intermediate_size"], plain)
    floats(shard, f"{p}.mlp.gate.weight", [config["n_routed_experts"], d])
    shard.add(f"{p}.mlp.gate.e_score_correction_bias", "F32", [config["n_routed_experts"]],
              lambda: bytes(4 * config["n_routed_experts"]))
    swiglu(f"{p}.mlp.shared_experts", config["moe_intermediate_size"], plain)
    for e in range(config["n_routed_experts"]):
        swiglu(f"{p}.mlp.experts.{e}", config["moe_intermediate_size"], expert)


def random_folder(folder, gigabytes, layers, seed):
    import numpy
    rng = numpy.random.default_rng(seed)

    def bf16(count, sigma):
        bits = (rng.standard_normal(count, dtype=numpy.float32) * sigma).view(numpy.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16).tobytes()

    def floats(shard, name, shape):
        sigma = 1.0 if "embed" in name else 0.02
        shard.add(name, "BF16", shape, lambda: bf16(shape[0] * shape[1], sigma))
    ones = lambda shard, name, shape: shard.add(name, "BF16", shape, lambda: b"\x80\x3f" * shape[0])
    expert = lambda shard, stem, shape: floats(shard, f"{stem}.weight", shape)
    per_expert = 3 * 2048 * 7168 * 2
    config = text_config(layers, max(8, round(gigabytes * 1e9 / per_expert / (layers - 1))), 512, heads=8)
    shards = []
    for index in range(layers):
        shards.append(Shard())
        layer(shards[-1], config, index, floats, ones, expert)
    shards.append(Shard())
    floats(shards[-1], "model.embed_tokens.weight", [512, 7168])
    ones(shards[-1], "model.norm.weight", [7168])
    floats(shards[-1], "lm_head.weight", [512, 7168])
    write_folder(folder, shards, config)
    import base64
    with open(os.path.join(folder, "tiktoken.model"), "w") as file:
        file.writelines(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256))


def release_folder(folder, format):
    floats = lambda shard, name, shape: shard.add(name, "BF16", shape)

    def expert(shard, stem, shape):
        out, width = shape
        if format == "nvfp4":
            shard.add(f"{stem}.weight", "U8", [out, width // 2])
            shard.add(f"{stem}.weight_scale", "F8_E4M3", [out, width // 16])
            shard.add(f"{stem}.weight_scale_2", "F32", [])
            shard.add(f"{stem}.input_scale", "F32", [])
        else:
            shard.add(f"{stem}.weight_packed", "I32", [out, width // 8])
            shard.add(f"{stem}.weight_scale", "BF16", [out, width // 32])
            shard.add(f"{stem}.weight_shape", "I32", [2])
    config = text_config(61, 384, 163840)
    shards = []
    for index in range(61):
        shards.append(Shard())
        layer(shards[-1], config, index, floats, floats, expert)
    shards.append(Shard())
    floats(shards[-1], "model.embed_tokens.weight", [163840, 7168])
    floats(shards[-1], "model.norm.weight", [7168])
    floats(shards[-1], "lm_head.weight", [163840, 7168])
    write_folder(folder, shards, config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["random", "release"])
    parser.add_argument("folder")
    parser.add_argument("--gb", type=float, default=2.0, help="bytes of routed experts, 10^9")
    parser.add_argument("--layers", type=int, default=2, help="of a random folder, the dense one included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=["nvfp4", "int4"], default="nvfp4")
    args = parser.parse_args()
    if args.kind == "random":
        random_folder(args.folder, args.gb, args.layers, args.seed)
    else:
        release_folder(args.folder, args.format)


if __name__ == "__main__":
    main()
