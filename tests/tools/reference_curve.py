"""Trains a small GPT with plain PyTorch: initial weights and tokens go to files, loss and gradient norm of each step to stdout.
Usage: reference_curve.py OUT_DIR STEPS. Everything Trireme does is written out here a second time, independently."""
import math, sys
import torch, torch.nn as nn, torch.nn.functional as F
import numpy as np
from safetensors.torch import save_file

out, steps = sys.argv[1], int(sys.argv[2])
L, H, A, T, V, B = 2, 32, 4, 16, 60, 8
torch.manual_seed(0); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.ln_1, s.ln_2 = nn.LayerNorm(H), nn.LayerNorm(H)
        s.attn = nn.ModuleDict({"c_attn": nn.Linear(H, 3 * H), "c_proj": nn.Linear(H, H)})
        s.mlp = nn.ModuleDict({"c_fc": nn.Linear(H, 4 * H), "c_proj": nn.Linear(4 * H, H)})
    def forward(s, x):
        b, t, _ = x.shape
        q, k, v = (u.view(b, t, A, H // A).transpose(1, 2) for u in s.attn["c_attn"](s.ln_1(x)).split(H, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, H)
        x = x + s.attn["c_proj"](y)
        return x + s.mlp["c_proj"](F.gelu(s.mlp["c_fc"](s.ln_2(x)), approximate="tanh"))


m = nn.ModuleDict({"wte": nn.Embedding(V, H), "wpe": nn.Embedding(T, H), "h": nn.ModuleList(Block() for _ in range(L)), "ln_f": nn.LayerNorm(H)})
for p in m.parameters():
    if p.dim() > 1: nn.init.normal_(p, std=0.05)
save_file({"transformer." + n: (p.t() if n.startswith("h.") and p.dim() == 2 else p).detach().contiguous() for n, p in m.named_parameters()},
          out + "/init.safetensors", metadata={"format": "pt"})
tokens = np.cumsum(np.arange(1, 20001) % 7 + np.arange(20000) // 997) % V
tokens.astype("<u2").tofile(out + "/tokens.bin")
tokens = torch.from_numpy(tokens.astype("int64"))

opt = torch.optim.AdamW(m.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(steps):
    rows = torch.stack([tokens[i * T: i * T + T + 1] for i in range(step * B, step * B + B)])
    x, y = rows[:, :-1], rows[:, 1:]
    h = m["wte"](x) + m["wpe"].weight
    for b in m["h"]: h = b(h)
    loss = F.cross_entropy((m["ln_f"](h) @ m["wte"].weight.t()).view(-1, V), y.reshape(-1))
    opt.zero_grad(); loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    print(repr(loss.item()), repr(norm.item()))
