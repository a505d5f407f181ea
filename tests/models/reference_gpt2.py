"""Writes a small random GPT-2 with Hugging Face names as safetensors, and its logits for fixed tokens.
Usage: reference_gpt2.py OUT_DIR TIED(0|1). The forward pass is written out here, independent of Trireme."""
import math, sys
import torch, torch.nn.functional as F
from safetensors.torch import save_file

out, tied = sys.argv[1], sys.argv[2] == "1"
L, H, A, T, V = 2, 16, 4, 12, 50
torch.manual_seed(0)
w = {"transformer.wte.weight": torch.randn(V, H) * .1, "transformer.wpe.weight": torch.randn(T, H) * .1,
     "transformer.ln_f.weight": torch.rand(H) + .5, "transformer.ln_f.bias": torch.randn(H) * .1}
for i in range(L):
    p = f"transformer.h.{i}."
    for n in ("ln_1", "ln_2"):
        w[p + n + ".weight"], w[p + n + ".bias"] = torch.rand(H) + .5, torch.randn(H) * .1
    for n, a, b in (("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H), ("mlp.c_fc", H, 4 * H), ("mlp.c_proj", 4 * H, H)):
        w[p + n + ".weight"], w[p + n + ".bias"] = torch.randn(a, b) * .2, torch.randn(b) * .1  # Conv1D layout [in, out]
if not tied:
    w["lm_head.weight"] = torch.randn(V, H) * .1

tokens = (torch.arange(3 * T).view(3, T) * 7) % V
x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"]
for i in range(L):
    p = f"transformer.h.{i}."
    ln = lambda t, n: F.layer_norm(t, (H,), w[p + n + ".weight"], w[p + n + ".bias"], 1e-5)
    fc = lambda t, n: t @ w[p + n + ".weight"] + w[p + n + ".bias"]
    q, k, v = (t.view(3, T, A, H // A).transpose(1, 2) for t in fc(ln(x, "ln_1"), "attn.c_attn").split(H, 2))
    s = (q @ k.transpose(-1, -2) / math.sqrt(H // A)).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    x = x + fc((s.softmax(-1) @ v).transpose(1, 2).reshape(3, T, H), "attn.c_proj")
    x = x + fc(F.gelu(fc(ln(x, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")
x = F.layer_norm(x, (H,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], 1e-5)
logits = x @ (w["transformer.wte.weight"] if tied else w["lm_head.weight"]).t()
save_file(w, out + "/model.safetensors", metadata={"format": "pt"})
save_file({"tokens": tokens, "logits": logits}, out + "/expected.safetensors")
