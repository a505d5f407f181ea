"""A BERT in PyTorch, with Hugging Face's names. Its blocks are torch's TransformerEncoderLayer, independent of Trireme.

Usage: reference_bert.py logits OUT_DIR   writes a small random model as safetensors, and its logits for fixed tokens with padding
       reference_bert.py curve DIR HEADS  trains DIR/model.safetensors on DIR/batches.safetensors (tokens, mask and targets: [steps, batch, length]) with
                                          AdamW, clipped to a norm of 1, and prints the loss and the gradient norm of each step"""
import re
import sys
import torch, torch.nn.functional as F
from safetensors.torch import load_file, save_file

E, P = "bert.embeddings.", "cls.predictions."


class Bert:
    """Parameters are the tensors of `w`, and for the blocks copies of them."""

    def __init__(self, w, heads):
        self.w, self.blocks = w, []
        self.hidden = w[E + "word_embeddings.weight"].shape[1]
        for i in range(1 + max(int(name[1]) for name in (re.match(r"bert\.encoder\.layer\.(\d+)", n) for n in w) if name)):
            p = f"bert.encoder.layer.{i}."
            # Not in evaluation mode: that has a path of its own which leaves the padding out.
            block = torch.nn.TransformerEncoderLayer(self.hidden, heads, w[p + "intermediate.dense.bias"].numel(), dropout=0.0, activation=F.gelu, layer_norm_eps=1e-12, batch_first=True)
            with torch.no_grad():
                for kind, into in (("weight", block.self_attn.in_proj_weight), ("bias", block.self_attn.in_proj_bias)):
                    into.copy_(torch.cat([w[f"{p}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]))
                    for name, module in (("attention.output.dense", block.self_attn.out_proj), ("attention.output.LayerNorm", block.norm1), ("intermediate.dense", block.linear1),
                                         ("output.dense", block.linear2), ("output.LayerNorm", block.norm2)):
                        getattr(module, kind).copy_(w[f"{p}{name}.{kind}"])
            self.blocks.append(block)

    def logits(self, tokens, mask, segments):
        w = self.w
        ln = lambda x, n: F.layer_norm(x, (self.hidden,), w[n + ".weight"], w[n + ".bias"], 1e-12)
        x = w[E + "word_embeddings.weight"][tokens] + w[E + "position_embeddings.weight"] + w[E + "token_type_embeddings.weight"][segments]
        x = ln(x, E + "LayerNorm")
        for block in self.blocks:
            x = block(x, src_key_padding_mask=~mask)
        x = ln(F.gelu(F.linear(x, w[P + "transform.dense.weight"], w[P + "transform.dense.bias"])), P + "transform.LayerNorm")
        return x @ w[E + "word_embeddings.weight"].t() + w[P + "bias"]

    def parameters(self):
        return [q for name, q in self.w.items() if not name.startswith("bert.encoder.")] + [q for block in self.blocks for q in block.parameters()]


def random_weights(layers, hidden, intermediate, length, vocabulary):
    torch.manual_seed(0)
    w = {E + "word_embeddings.weight": torch.randn(vocabulary, hidden), E + "position_embeddings.weight": torch.randn(length, hidden),
         E + "token_type_embeddings.weight": torch.randn(2, hidden), P + "bias": torch.randn(vocabulary)}

    def dense(name, into, out):
        w[name + ".weight"], w[name + ".bias"] = torch.randn(out, into) * .2, torch.randn(out) * .1

    def norm(name):
        w[name + ".weight"], w[name + ".bias"] = torch.rand(hidden) + .5, torch.randn(hidden) * .1

    norm(E + "LayerNorm")
    dense(P + "transform.dense", hidden, hidden)
    norm(P + "transform.LayerNorm")
    for i in range(layers):
        p = f"bert.encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            dense(p + name, hidden, hidden)
        dense(p + "intermediate.dense", hidden, intermediate)
        dense(p + "output.dense", intermediate, hidden)
        norm(p + "attention.output.LayerNorm")
        norm(p + "output.LayerNorm")
    return w


def write_logits(folder):
    length, vocabulary = 12, 50
    w = random_weights(layers=2, hidden=16, intermediate=40, length=length, vocabulary=vocabulary)
    tokens = (torch.arange(3 * length).view(3, length) * 7) % vocabulary
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1, 9:], mask[2, 4:] = False, False
    segments = (torch.arange(3 * length).view(3, length) % length > 5).long()
    model = Bert(w, heads=4)
    save_file(w, folder + "/model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        save_file({"tokens": tokens, "mask": mask, "segments": segments, "logits": model.logits(tokens, mask, torch.zeros_like(tokens)),
                   "logits_of_segments": model.logits(tokens, mask, segments)}, folder + "/expected.safetensors")


def print_curve(folder, heads):
    model = Bert({name: value.requires_grad_() for name, value in load_file(folder + "/model.safetensors").items()}, heads)
    batches = load_file(folder + "/batches.safetensors")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for tokens, mask, targets in zip(batches["tokens"], batches["mask"], batches["targets"]):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.logits(tokens, mask, torch.zeros_like(tokens)).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(repr(loss.item()), repr(norm.item()))


if sys.argv[1] == "logits":
    write_logits(sys.argv[2])
else:
    print_curve(sys.argv[2], int(sys.argv[3]))
