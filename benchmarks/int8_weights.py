"""What int8 weights cost a language model: its loss on a text with fp32 weights, and with weights rounded as `trireme generate --weights int8` rounds them, by scale.

    .venv/bin/python benchmarks/int8_weights.py data/smollm2 data/austen/validation.txt [--samples 16]

Computed by transformers, so that it judges the rounding alone. "layers" leaves out the token embedding, which is also the head if the model ties them.
"""
import argparse
import os
import pathlib

import torch


def rounded(weight, group):
    """Symmetric: a scale for each `group` inputs of an output (0: for all of them), the largest weight over 127."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % (group or inputs))).view(outputs, -1, group or inputs)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    return ((padded / scale.clamp_min(1e-38)).round() * scale).view(outputs, -1)[:, :inputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(args.folder)(args.text.read_text()[:8 * args.samples * args.length])["input_ids"]
    samples = torch.tensor(ids[:args.samples * args.length]).view(-1, args.length)
    print(f"{len(samples)} samples of {args.length} tokens of {args.text.name}, nats a token")
    for name, group, layers, embedding in (("fp32", 0, False, False), ("a scale an output, layers", 0, True, False), ("a scale an output, all", 0, True, True),
                                           ("a scale for 64 inputs, layers", 64, True, False), ("a scale for 64 inputs, all", 64, True, True)):
        model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            for module in model.modules():
                is_layer = isinstance(module, torch.nn.Linear) and module.weight is not model.get_input_embeddings().weight
                if (is_layer and layers) or (isinstance(module, torch.nn.Embedding) and embedding):
                    module.weight.copy_(rounded(module.weight, group))
            loss = sum(model(input_ids=row[None], labels=row[None]).loss.item() for row in samples) / len(samples)
        print(f"{name:30} {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
