"""The GPT of the benchmarks in PyTorch, its sizes and its data; the same as trireme's `gpt` model on a `tokens` file."""
import torch, torch.nn as nn, torch.nn.functional as F

SIZES = {  # layers, hidden, heads, length, vocabulary, micro-batch, accumulation, steps, of which warm-up
    "nano": dict(L=2, H=64, A=2, T=32, V=256, micro=1, accumulation=1, steps=700, warmup=100),
    "tiny": dict(L=4, H=128, A=4, T=128, V=256, micro=8, accumulation=1, steps=60, warmup=10),
    "small": dict(L=6, H=384, A=6, T=256, V=8192, micro=4, accumulation=4, steps=5, warmup=1),
    "medium": dict(L=12, H=768, A=12, T=512, V=50304, micro=1, accumulation=4, steps=3, warmup=1),
}


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, self.A = c["H"], c["A"]
        self.ln_1, self.ln_2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(H, 3 * H), "c_proj": nn.Linear(H, H)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(H, 4 * H), "c_proj": nn.Linear(4 * H, H)})

    def forward(self, x):
        B, T, H = x.shape
        q, k, v = (t.view(B, T, self.A, H // self.A).transpose(1, 2) for t in self.attn["c_attn"](self.ln_1(x)).split(H, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, H)
        x = x + self.attn["c_proj"](y)
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["V"], c["H"]), nn.Embedding(c["T"], c["H"])
        self.h = nn.ModuleList(Block(c) for _ in range(c["L"]))
        self.ln_f = nn.LayerNorm(c["H"])

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.h:
            h = block(h)
        logits = self.ln_f(h) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def build(c):
    torch.manual_seed(0)
    m = GPT(c)
    for p in m.parameters():
        if p.dim() > 1: nn.init.normal_(p, std=0.02)
    return m


def save_weights(m, path):
    """Hugging Face GPT-2 names; linear weights inside blocks as [in, out]."""
    from safetensors.torch import save_file
    save_file({"transformer." + n: (p.t() if n.startswith("h.") and p.dim() == 2 else p).detach().contiguous() for n, p in m.named_parameters()}, path)


def batches(tokens, c, rank, ranks, micro):
    """Trireme's order: consecutive samples, rank r of a micro-batch takes r::ranks; a list of (x, y) a step."""
    T, sample = c["T"], 0
    for _ in range(c["steps"]):
        step = []
        for _ in range(c["accumulation"]):
            rows = torch.stack([tokens[i * T: i * T + T + 1] for i in range(sample + rank, sample + micro * ranks, ranks)])
            step.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
            sample += micro * ranks
        yield step
