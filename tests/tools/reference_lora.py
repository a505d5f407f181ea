"""Low-rank adapters (LoRA) of small models of Hugging Face's transformers, and the classifier of a bert, trained by plain
PyTorch.
Usage: reference_lora.py make OUT STEPS  for each NAME of TARGETS: OUT/NAME (the base model), OUT/NAME.tokens (or .jsonl),
                                         OUT/NAME-adapter (adapters to begin with, as PEFT writes them), OUT/NAME-trained
                                         (after STEPS) and a line a step: NAME loss gradient-norm
       reference_lora.py compare OUT     for each NAME two numbers: how much the adapters of OUT/NAME-exported differ from
                                         those of OUT/NAME-trained, and the logits of OUT/NAME-merged from those of the
                                         base model with the exported adapters
Runs of Trireme read the same tokens in the same order (shuffle false)."""
import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../models"))
import numpy as np
import torch
import torch.nn.functional as F
from reference_llama import BASE
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification,
                          GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM)

torch.set_num_threads(1)
BATCH, LENGTH, RANK, ALPHA = 8, 16, 4, 6
TARGETS = {"llama": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], "gpt2": ["c_attn", "attn.c_proj", "c_fc"],
           "bert": ["query", "value", "attention.output.dense", "intermediate.dense"]}
CLASSES = 3  # of the bert
PREFIX = "base_model.model."


class Adapted(torch.nn.Module):
    """Hu et al. 2021, arXiv:2106.09685, equation 3, with alpha / rank."""

    def __init__(self, layer, out, inner):
        super().__init__()
        self.layer = layer
        self.lora_A = torch.nn.Linear(inner, RANK, bias=False)
        self.lora_B = torch.nn.Linear(RANK, out, bias=False)
        torch.nn.init.normal_(self.lora_B.weight, std=0.1)  # not zero, so that A too has a gradient at once

    def forward(self, x):
        return self.layer(x) + ALPHA / RANK * self.lora_B(self.lora_A(x))


def base_of(name):
    torch.manual_seed(7)
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=LENGTH, vocab_size=61,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                          eos_token_id=None))
    if name == "bert":
        return BertForSequenceClassification(BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
                                                        intermediate_size=48, max_position_embeddings=LENGTH,
                                                        vocab_size=256, num_labels=CLASSES, hidden_dropout_prob=0.0,
                                                        attention_probs_dropout_prob=0.0, initializer_range=0.2))
    return LlamaForCausalLM(LlamaConfig(**BASE | dict(num_hidden_layers=2, tie_word_embeddings=True)))


def adapt(model, name):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for path, layer in list(model.named_modules()):
        if any(path.endswith("." + target) for target in TARGETS[name]):
            sizes = layer.weight.shape if name != "gpt2" else layer.weight.shape[::-1]  # Conv1D has [in, out]
            parent, leaf = path.rsplit(".", 1)
            setattr(model.get_submodule(parent), leaf, Adapted(layer, *sizes))
    if name == "bert":  # new, and so trained in full
        torch.nn.init.normal_(model.classifier.requires_grad_(True).weight, std=0.1)
    return model


def in_adapter(key):
    return ".lora_" in key or key.startswith("classifier.")


def save_adapter(model, name, folder):
    os.makedirs(folder, exist_ok=True)
    save_file({PREFIX + key: value.detach().contiguous() for key, value in model.named_parameters() if in_adapter(key)},
              folder + "/adapter_model.safetensors")
    with open(folder + "/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "SEQ_CLS" if name == "bert" else "CAUSAL_LM",
                   "base_model_name_or_path": name, "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
                   "target_modules": TARGETS[name], "bias": "none", "fan_in_fan_out": name == "gpt2",
                   "init_lora_weights": True, "rank_pattern": {}, "use_dora": False,
                   "modules_to_save": ["classifier", "score"] if name == "bert" else None}, file)


def write_texts(path):
    """Short texts of 3 to 20 letters; the label is the number of the first letter's row of the alphabet."""
    draw = np.random.default_rng(3)
    with open(path, "w") as file:
        for _ in range(200):
            text = "".join(map(chr, draw.integers(ord("a"), ord("z") + 1, draw.integers(3, 21))))
            file.write(json.dumps({"text": text, "label": (ord(text[0]) - ord("a")) // 9}) + "\n")


def write_tokens(path):
    tokens = np.cumsum(np.arange(1, 6001) % 7 + np.arange(6000) // 997) % 61
    tokens.astype("<u2").tofile(path)


def batch_of(out, name, step):
    """Keyword arguments of the model, and targets of its logits' rows."""
    if name == "bert":
        with open(f"{out}/{name}.jsonl") as file:
            samples = [json.loads(line) for line in file][step * BATCH:step * BATCH + BATCH]
        texts = [torch.tensor(list(sample["text"].encode())[:LENGTH]) for sample in samples]
        padded = [torch.nn.utils.rnn.pad_sequence([*rows, torch.zeros(LENGTH)], batch_first=True)[:-1].long()
                  for rows in (texts, [torch.ones_like(text) for text in texts])]
        return dict(zip(("input_ids", "attention_mask"), padded)), torch.tensor([sample["label"] for sample in samples])
    tokens = torch.from_numpy(np.fromfile(f"{out}/{name}.tokens", "<u2").astype("int64"))
    rows = torch.stack([tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * BATCH, step * BATCH + BATCH)])
    return {"input_ids": rows[:, :-1]}, rows[:, 1:].flatten()


def make(out, steps):
    for name in TARGETS:
        model = base_of(name)
        model.save_pretrained(f"{out}/{name}")
        if name == "bert":
            write_texts(f"{out}/{name}.jsonl")
        else:
            write_tokens(f"{out}/{name}.tokens")
        save_adapter(adapt(model, name), name, f"{out}/{name}-adapter")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(steps):
            inputs, targets = batch_of(out, name, step)
            loss = F.cross_entropy(model(**inputs).logits.flatten(0, -2), targets)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            print(name, repr(loss.item()), repr(norm.item()))
        save_adapter(model, name, f"{out}/{name}-trained")


def adapters_in(folder):
    return load_file(folder + "/adapter_model.safetensors")


def compare(out, name):
    adapter, merged = f"{name}-exported", f"{name}-merged"
    expected, found = adapters_in(f"{out}/{name}-trained"), adapters_in(f"{out}/{adapter}")
    assert expected.keys() == found.keys(), (sorted(expected), sorted(found))
    with open(f"{out}/{adapter}/adapter_config.json") as file:
        config = json.load(file)
    assert config["r"] == RANK and config["lora_alpha"] == ALPHA and config["peft_type"] == "LORA", config
    assert sorted(config["target_modules"]) == sorted(TARGETS[name]), config
    assert config["fan_in_fan_out"] == (name == "gpt2"), config
    assert config.get("modules_to_save") == (["classifier"] if name == "bert" else None), config
    difference = max(((found[key] - value).abs().max() / value.abs().max()).item() for key, value in expected.items())
    auto = AutoModelForSequenceClassification if name == "bert" else AutoModelForCausalLM
    model, info = auto.from_pretrained(f"{out}/{merged}", output_loading_info=True)
    assert not any(info.values()), f"transformers complains of {info}"
    adapted = adapt(auto.from_pretrained(f"{out}/{name}"), name)
    for key, parameter in adapted.named_parameters():
        if in_adapter(key):
            parameter.data.copy_(found[PREFIX + key])
    inputs, _ = batch_of(out, name, 0)
    with torch.no_grad():
        theirs, ours = adapted.eval()(**inputs).logits, model.eval()(**inputs).logits
    print(name, difference, ((ours - theirs).abs().max() / theirs.abs().max()).item())


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
else:
    for name in TARGETS:
        compare(sys.argv[2], name)
