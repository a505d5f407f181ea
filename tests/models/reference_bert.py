"""Writes a small random BERT with Hugging Face names as safetensors, and its logits for fixed tokens with padding.
Usage: reference_bert.py OUT_DIR. The blocks are torch's TransformerEncoderLayer, independent of Trireme."""
import sys
import torch, torch.nn.functional as F
from safetensors.torch import save_file

out = sys.argv[1]
L, H, A, I, T, V = 2, 16, 4, 40, 12, 50
torch.manual_seed(0)
E, P = "bert.embeddings.", "cls.predictions."
norm = lambda: (torch.rand(H) + .5, torch.randn(H) * .1)
w = {E + "word_embeddings.weight": torch.randn(V, H), E + "position_embeddings.weight": torch.randn(T, H),
     E + "token_type_embeddings.weight": torch.randn(2, H), P + "bias": torch.randn(V),
     P + "transform.dense.weight": torch.randn(H, H) * .2, P + "transform.dense.bias": torch.randn(H) * .1}
w[E + "LayerNorm.weight"], w[E + "LayerNorm.bias"] = norm()
w[P + "transform.LayerNorm.weight"], w[P + "transform.LayerNorm.bias"] = norm()

tokens = (torch.arange(3 * T).view(3, T) * 7) % V
mask = torch.ones(3, T, dtype=torch.bool)
mask[1, 9:], mask[2, 4:] = False, False
segments = (torch.arange(3 * T).view(3, T) % T > 5).long()


def logits(segments):
    ln = lambda x, n: F.layer_norm(x, (H,), w[n + ".weight"], w[n + ".bias"], 1e-12)
    fc = lambda x, n: F.linear(x, w[n + ".weight"], w[n + ".bias"])
    x = w[E + "word_embeddings.weight"][tokens] + w[E + "position_embeddings.weight"] + w[E + "token_type_embeddings.weight"][segments]
    x = ln(x, E + "LayerNorm")
    for block in blocks:
        x = block(x, src_key_padding_mask=~mask)
    x = ln(F.gelu(fc(x, P + "transform.dense")), P + "transform.LayerNorm")
    return x @ w[E + "word_embeddings.weight"].t() + w[P + "bias"]


blocks = []
for i in range(L):
    # Not in evaluation mode: that has a path of its own which leaves the padding out.
    b = torch.nn.TransformerEncoderLayer(H, A, I, dropout=0.0, activation=F.gelu, layer_norm_eps=1e-12, batch_first=True)
    for q in b.parameters():
        q.requires_grad_(False).normal_(0, .2)
    b.norm1.weight.add_(1), b.norm2.weight.add_(1)
    p = f"bert.encoder.layer.{i}."
    for n, (qkv_w, qkv_b) in zip(("query", "key", "value"), zip(b.self_attn.in_proj_weight.chunk(3), b.self_attn.in_proj_bias.chunk(3))):
        w[f"{p}attention.self.{n}.weight"], w[f"{p}attention.self.{n}.bias"] = qkv_w.clone(), qkv_b.clone()
    for n, m in (("attention.output.dense", b.self_attn.out_proj), ("attention.output.LayerNorm", b.norm1), ("intermediate.dense", b.linear1),
                 ("output.dense", b.linear2), ("output.LayerNorm", b.norm2)):
        w[f"{p}{n}.weight"], w[f"{p}{n}.bias"] = m.weight.clone(), m.bias.clone()
    blocks.append(b)

save_file(w, out + "/model.safetensors", metadata={"format": "pt"})
save_file({"tokens": tokens, "mask": mask, "segments": segments, "logits": logits(torch.zeros_like(tokens)), "logits_of_segments": logits(segments)},
          out + "/expected.safetensors")
