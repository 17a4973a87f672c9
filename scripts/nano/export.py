"""Writes the model folder from a checkpoint and checks it against the Hugging Face implementation."""

import argparse
import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file

from conversation import render
from curriculum import conversation
from network import CONFIG, Network
from vocabulary import BASE_RANKS, SPECIALS, STOPS, Vocabulary


def tensors(network):
    """The tensors under their Hugging Face names: bf16, only the selection bias in f32, experts one by one."""
    result = {}
    for name, tensor in network.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            result[name] = tensor.float().clone()
        elif ".mlp.experts." in name:
            prefix, projection = name.rsplit(".", 1)
            for index, expert in enumerate(tensor):
                result[f"{prefix}.{index}.{projection}.weight"] = expert.bfloat16().contiguous()
        else:
            result[name] = tensor.bfloat16().contiguous()
    return result


def tokenizer_config():
    decoder = {
        str(BASE_RANKS + offset): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
        for offset, (name, special) in SPECIALS.items()
    }
    return {
        "added_tokens_decoder": decoder,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "tokenizer_class": "TikTokenTokenizer",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write(folder, network):
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"eos_token_id": list(STOPS), "pad_token_id": CONFIG["pad_token_id"], "do_sample": False, "temperature": 0.0, "max_length": CONFIG["max_position_embeddings"]})
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    save_file(tensors(network), folder / "model.safetensors", metadata={"format": "pt"})


def rounded(network):
    """The network with its weights rounded as they are stored."""
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return network


def compare(folder, network):
    """The largest difference of the logits between this network and Hugging Face's reading of the folder."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    raw = json.loads((folder / "config.json").read_text())
    raw.pop("model_type")
    theirs = DeepseekV3ForCausalLM.from_pretrained(folder, config=DeepseekV3Config(**raw), dtype=torch.float32).eval()
    vocabulary = Vocabulary.load(folder / "tiktoken.model")
    rng = random.Random(5)
    worst = 0.0
    for _ in range(8):
        ids = vocabulary.encode_rendered("".join(text for text, _ in render(conversation(rng))))
        with torch.no_grad():
            worst = max(worst, (theirs(torch.tensor([ids])).logits - network(torch.tensor([ids]))).abs().max().item())
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="run/checkpoint.pt")
    parser.add_argument("--second", help="a checkpoint of a later run of the same network, to average with")
    parser.add_argument("--share", type=float, default=0.5, help="share of the second checkpoint in the average")
    parser.add_argument("--folder", default=str(Path(__file__).parents[2] / "src/nano/model"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network = Network(CONFIG)
    weights = torch.load(arguments.checkpoint)["network"]
    if arguments.second:
        second = torch.load(arguments.second)["network"]
        weights = {name: torch.lerp(first, second[name], arguments.share) for name, first in weights.items()}
    network.load_state_dict(weights)
    folder = Path(arguments.folder)
    write(folder, network)
    print("largest logit difference to the Hugging Face implementation:", compare(folder, rounded(network).eval()))
    print("bytes:", {path.name: path.stat().st_size for path in sorted(folder.iterdir())})


if __name__ == "__main__":
    main()
