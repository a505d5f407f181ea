"""Writes models of Llama's family with random weights as Hugging Face's transformers has them, and what it makes of them.
Usage: reference_llama.py OUT. A folder OUT/NAME per model gets config.json, weights (some in several files), options.json
(what models::LlamaOptions is) and expected.safetensors: tokens, logits, the losses of 20 steps of AdamW on `rows`."""
import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

STEPS, BATCH, LENGTH = 20, 8, 16
BASE = dict(hidden_size=32, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=61, max_position_embeddings=64, tie_word_embeddings=False, rms_norm_eps=1e-5,
            bos_token_id=None, eos_token_id=None, pad_token_id=None)


def scaled(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **more}}


MODELS = {
    "llama_tied": (LlamaConfig, dict(tie_word_embeddings=True)),
    "llama_odd": (LlamaConfig, dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=3, intermediate_size=77,
                                    vocab_size=53, num_hidden_layers=2, rms_norm_eps=1e-6)),
    "llama_biases": (LlamaConfig, dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1)),
    "llama_head": (LlamaConfig, dict(head_dim=12, num_key_value_heads=4)),
    "llama_linear": (LlamaConfig, scaled("linear", factor=4.0)),
    "llama_dynamic": (LlamaConfig, dict(max_position_embeddings=10, **scaled("dynamic", factor=3.0))),
    "llama_dynamic_short": (LlamaConfig, dict(max_position_embeddings=16, **scaled("dynamic", factor=3.0))),
    "llama_llama3": (LlamaConfig, dict(head_dim=16, **scaled("llama3", factor=8.0, low_freq_factor=1.0,
                                                             high_freq_factor=4.0,
                                                             original_max_position_embeddings=48))),
    "llama_yarn": (LlamaConfig, dict(head_dim=16, **scaled("yarn", factor=4.0, original_max_position_embeddings=16,
                                                           beta_fast=4.0, beta_slow=1.0))),
    "llama_yarn_scales": (LlamaConfig, dict(head_dim=16, **scaled("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.1,
                                                                  original_max_position_embeddings=32, beta_fast=8.0,
                                                                  truncate=False))),
    "llama_yarn_factor": (LlamaConfig, scaled("yarn", factor=2.0, attention_factor=0.9,
                                              original_max_position_embeddings=32)),
    "mistral_window": (MistralConfig, dict(sliding_window=5, head_dim=8)),
    "mistral_tied": (MistralConfig, dict(sliding_window=None, head_dim=8, tie_word_embeddings=True)),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True)),
    "qwen2_window": (Qwen2Config, dict(use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "qwen3": (Qwen3Config, dict(head_dim=12, tie_word_embeddings=True)),
    "qwen3_biases": (Qwen3Config, dict(head_dim=10, attention_bias=True, num_key_value_heads=1, use_sliding_window=True,
                                       sliding_window=4, max_window_layers=2)),
}
CLASSES = {LlamaConfig: LlamaForCausalLM, MistralConfig: MistralForCausalLM, Qwen2Config: Qwen2ForCausalLM,
           Qwen3Config: Qwen3ForCausalLM}


def options(config):
    """models::LlamaOptions of a configuration, by its meaning in transformers."""
    kind = config.model_type
    rope = config.rope_parameters
    windowed = kind != "llama" and config.sliding_window is not None
    return {
        "layers": config.num_hidden_layers, "hidden": config.hidden_size, "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads, "head_dim": config.head_dim if kind != "qwen2" else 0,
        "intermediate": config.intermediate_size, "sequence_length": LENGTH, "vocab_size": config.vocab_size,
        "rope_theta": rope["rope_theta"], "max_positions": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps, "attention_bias": kind == "qwen2" or getattr(config, "attention_bias", False),
        "attention_output_bias": kind != "qwen2" and getattr(config, "attention_bias", False),
        "mlp_bias": getattr(config, "mlp_bias", False), "qk_norm": kind == "qwen3",
        "window": config.sliding_window if windowed else 0,
        "first_window_layer": config.max_window_layers if windowed and kind != "mistral" else 0,
        "tie_embeddings": config.tie_word_embeddings,
        "rope_scaling": {key: value for key, value in rope.items() if key != "rope_theta"},
    }


def losses_of(model, rows):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        batch = rows[step * BATCH:(step + 1) * BATCH]
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(out):
    torch.set_num_threads(1)
    for number, (name, (kind, changes)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        config = kind(**{**BASE, **changes})
        config._attn_implementation = "eager"
        model = CLASSES[kind](config).eval()
        with torch.no_grad():  # nothing is what a model begins with: norms and biases too
            for parameter_name, parameter in model.named_parameters():
                parameter.normal_(1.0 if "norm" in parameter_name else 0.0, 0.1)
        folder = f"{out}/{name}"
        model.save_pretrained(folder, **({"max_shard_size": "20KB"} if number % 3 == 1 else {}))
        with open(folder + "/options.json", "w") as file:
            json.dump(options(config), file)
        tokens = torch.randint(0, config.vocab_size, (3, LENGTH))
        with torch.no_grad():
            logits = model(tokens).logits
        strides = 1 + torch.arange(STEPS * BATCH) % 5
        rows = (torch.arange(LENGTH + 1)[None] * strides[:, None] + torch.arange(STEPS * BATCH)[:, None] * 7) % config.vocab_size
        save_file({"tokens": tokens, "logits": logits.contiguous(), "rows": rows.contiguous(),
                   "losses": torch.tensor(losses_of(model, rows), dtype=torch.float64)}, folder + "/expected.safetensors")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1])
