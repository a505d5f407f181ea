"""The GPT of trireme/models/gpt.h in Python, with the same initial weights."""
import math
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F

from workloads import split_mix

HUGGING_FACE = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "c_out": "mlp.c_proj"}


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        B, T, H = x.shape
        q, k, v = (t.view(B, T, self.heads, H // self.heads).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(H, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, H))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The layers are embeddings, blocks and head; `first` to before `last` of them are a stage of a pipeline."""

    def __init__(self, spec, first=0, last=None):
        super().__init__()
        hidden, count = spec["hidden"], spec["layers"]
        last = count + 2 if last is None else last
        self.first, self.last, self.tied = first == 0, last == count + 2, spec.get("tie", True)
        if self.first:
            self.wte, self.wpe = nn.Embedding(spec["vocab"], hidden), nn.Embedding(spec["length"], hidden)
        self.h = nn.ModuleDict({str(i - 1): Block(hidden, spec["heads"]) for i in range(max(first, 1), min(last, count + 1))})
        if self.last:
            self.ln_f = nn.LayerNorm(hidden)
            if not self.tied:
                self.lm_head = nn.Linear(hidden, spec["vocab"], bias=False)

    def forward(self, x):
        if self.first:
            x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h.values():
            x = block(x)
        if not self.last:
            return x
        return F.linear(self.ln_f(x), self.wte.weight if self.tied else self.lm_head.weight)


def hugging_face_name(name):
    """"h.0.c_attn.weight" is "transformer.h.0.attn.c_attn.weight" there."""
    if name.startswith("lm_head."):
        return name
    return "transformer." + ".".join(HUGGING_FACE.get(part, part) for part in name.split("."))


@torch.no_grad()
def fill(parameter, name, spec):
    """One generator per parameter, as trireme/models/initialize.cpp does it."""
    if parameter.dim() == 1:
        parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        return
    seed = split_mix((spec["seed"] << 32) ^ zlib.crc32(name.encode())) & 0xFFFFFFFF
    std = 0.02 / math.sqrt(2 * spec["layers"]) if name.endswith("c_proj.weight") else 0.02
    parameter.normal_(0.0, std, generator=torch.Generator().manual_seed(seed))


def build(spec, first=0, last=None):
    with torch.device("meta"):  # torch's own initialisation would only cost time
        model = GPT(spec, first, last)
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        fill(parameter, hugging_face_name(name), spec)
    return model


def loss(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
