"""Writes a small random GPT-2 and what it gives in Python under autocast and in bfloat16 throughout.

    python reference_autocast.py OUT_DIR

model.safetensors has Hugging Face's names; bf16.safetensors, fp16.safetensors (autocast) and whole_bf16.safetensors have tokens,
logits, the loss and some gradients. The forward pass is written out here with the operations that the C++ model uses.
"""
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

out = sys.argv[1]
LAYERS, H, HEADS, T, V, B = 2, 32, 4, 16, 64, 3
torch.manual_seed(0)
weights = {
    "transformer.wte.weight": torch.randn(V, H) * 0.1,
    "transformer.wpe.weight": torch.randn(T, H) * 0.1,
    "transformer.ln_f.weight": torch.rand(H) + 0.5,
    "transformer.ln_f.bias": torch.randn(H) * 0.1,
}
for i in range(LAYERS):
    p = f"transformer.h.{i}."
    for name in ("ln_1", "ln_2"):
        weights[p + name + ".weight"], weights[p + name + ".bias"] = torch.rand(H) + 0.5, torch.randn(H) * 0.1
    for name, n, m in (("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H), ("mlp.c_fc", H, 4 * H), ("mlp.c_proj", 4 * H, H)):
        weights[p + name + ".weight"], weights[p + name + ".bias"] = torch.randn(n, m) * 0.2, torch.randn(m) * 0.1
save_file(weights, out + "/model.safetensors", metadata={"format": "pt"})
linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
tokens = (torch.arange(B * T).view(B, T) * 7) % V
targets = (tokens * 5 + 3) % V


def parameters(dtype):
    made = {}
    for name, weight in weights.items():
        weight = weight.t().contiguous() if name.endswith(linear) else weight.clone()
        made[name] = torch.nn.Parameter(weight.to(dtype))
    return made


def forward(w):
    def fc(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def ln(x, name):
        return F.layer_norm(x, (H,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def heads(t):
        return t.view(B, T, HEADS, H // HEADS).transpose(1, 2)

    x = F.embedding(tokens, w["transformer.wte.weight"]) + w["transformer.wpe.weight"][0:T]
    for i in range(LAYERS):
        p = f"transformer.h.{i}."
        q, k, v = (heads(t) for t in fc(ln(x, p + "ln_1"), p + "attn.c_attn").split(H, 2))
        y = F.scaled_dot_product_attention(q, k, v, None, 0.0, True)
        x = x + fc(y.transpose(1, 2).reshape(B, T, H), p + "attn.c_proj")
        x = x + fc(F.gelu(fc(ln(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh"), p + "mlp.c_proj")
    logits = F.linear(ln(x, "transformer.ln_f"), w["transformer.wte.weight"])
    return logits, F.cross_entropy(logits.view(-1, V), targets.reshape(-1))


def write(name, w, logits, loss):
    loss.backward()
    grads = {key: w[key].grad for key in ("transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_2.bias")}
    found = {"logits": logits, "loss": loss.reshape(1), **grads}
    found = {key: value.detach().float().contiguous() for key, value in found.items()}
    save_file({"tokens": tokens, "targets": targets, **found}, f"{out}/{name}.safetensors")


for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
    w = parameters(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        logits, loss = forward(w)
    write(name, w, logits, loss)
w = parameters(torch.bfloat16)
write("whole_bf16", w, *forward(w))
