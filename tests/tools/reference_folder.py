"""Models of Llama's family and GPT-2 with random weights in folders of Hugging Face's transformers, trained by plain PyTorch.
Usage: reference_folder.py make OUT STEPS      OUT/NAME (config.json, weights, tokenizer files), OUT/NAME.tokens; a line a
                                               step: NAME loss gradient-norm; of FROZEN also frozen/NAME, trained without
                                               the parameters that an expression matches
       reference_folder.py open OUT            opens OUT/NAME-exported, a line a model: NAME and the largest difference of
                                               its logits from those of what this script trained, OUT/NAME-trained
       reference_folder.py same OUT NAME F...  the same for each folder OUT/F
       reference_folder.py generate OUT        OUT/prompts, and a line a model and prompt: NAME and the ids that
                                               transformers generates greedily after it with what this script trained
Runs of Trireme read the same tokens in the same order (design: shuffle false)."""
import os
import re
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../models"))
import numpy as np
import torch
import torch.nn.functional as F
from reference_llama import BASE, CLASSES, MODELS
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
BATCH, LENGTH = 8, 16
FROZEN = {"llama_tied": r"layers\.0\.|embed_tokens", "gpt2": r"wpe|h\.0\.|h\.1\.mlp"}


def made(name):
    torch.manual_seed(len(name))
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=LENGTH, vocab_size=61,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                          eos_token_id=None))
    kind, more = MODELS[name]
    return CLASSES[kind](kind(**(BASE | more)))


def rows_of(tokens, step):
    return torch.stack([tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * BATCH, step * BATCH + BATCH)])


def loss_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())


def train(model, tokens, steps, label, frozen=None):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen is None or not re.search(frozen, name))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    for step in range(steps):
        loss = loss_of(model, rows_of(tokens, step))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        print(label, repr(loss.item()), repr(norm.item()))


def make(out, steps):
    for name in ["gpt2", *MODELS]:
        model = made(name).float()
        model.save_pretrained(f"{out}/{name}", max_shard_size="20KB" if name == "llama_odd" else "5GB")
        size = model.config.vocab_size
        tokens = np.cumsum(np.arange(1, 6001) % 7 + np.arange(6000) // 997) % size
        tokens.astype("<u2").tofile(f"{out}/{name}.tokens")
        tokens = torch.from_numpy(tokens.astype("int64"))
        train(model, tokens, steps, name)
        model.save_pretrained(f"{out}/{name}-trained")
        if name in FROZEN:
            train(made(name).float(), tokens, steps, f"frozen/{name}", FROZEN[name])


def opened(folder, tokens):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"{folder}: transformers complains of {wrong}"
    assert model.dtype == torch.float32, model.dtype
    model.eval()
    with torch.no_grad():
        return type(model).__name__, model(rows_of(tokens, 0)[:, :-1]).logits


def compare(out, name, folder):
    tokens = torch.from_numpy(np.fromfile(f"{out}/{name}.tokens", "<u2").astype("int64"))
    kind, logits = opened(f"{out}/{folder}", tokens)
    expected_kind, expected = opened(f"{out}/{name}-trained", tokens)
    assert kind == expected_kind, f"{name} came back as {kind}, not {expected_kind}"
    print(folder, ((logits - expected).abs().max() / expected.abs().max()).item())


def generate(out):
    prompts = [[3, 1, 4], [5], [9, 2, 6, 5, 3]]
    with open(f"{out}/prompts", "w") as file:
        file.writelines(" ".join(map(str, prompt)) + "\n" for prompt in prompts)
    for name in ["gpt2", *MODELS]:
        model = AutoModelForCausalLM.from_pretrained(f"{out}/{name}-trained").eval()
        for prompt in prompts:
            found = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                                   max_new_tokens=10, do_sample=False, pad_token_id=0)
            print(name, *found[0, len(prompt):].tolist())


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "open":
    for name in ["gpt2", *MODELS]:
        compare(sys.argv[2], name, f"{name}-exported")
elif sys.argv[1] == "generate":
    generate(sys.argv[2])
else:
    for folder in sys.argv[4:]:
        compare(sys.argv[2], sys.argv[3], folder)
