"""Writes a linear layer in FP8, forward and backward, as torchao's float8 computes it with torch._scaled_mm.

    python reference_fp8.py OUT_DIR

OUT_DIR/fp8.safetensors has x [tokens, in], weight [out, in], dy [tokens, out], and for each recipe y, dx and dweight, with scales
rounded to powers of two ("tensorwise/y") and exact ones ("tensorwise/exact/y"). Formulas: torchao's float8 documentation of
Float8LinearRecipeName and amax_to_scale; written out here for one layer.
"""
import sys

import torch
from safetensors.torch import save_file

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
torch.manual_seed(7)
x = (torch.randn(48, 64) * 2).bfloat16()
weight = (torch.randn(32, 64) * 0.05).bfloat16()
dy = (torch.randn(48, 32) * torch.logspace(-4, 0, 48).unsqueeze(1)).bfloat16()  # rows of very different size


def quantised(matrix, dtype, rowwise, power_of_2):
    """Values in fp8, and the factors that undo the scaling: one, or one a row."""
    amax = matrix.abs().amax(dim=1, keepdim=True) if rowwise else matrix.abs().max()
    scale = (torch.finfo(dtype).max / amax.double().clamp(min=1e-12)).float()
    if power_of_2:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    limit = torch.finfo(dtype).max
    return (matrix.float() * scale).clamp(-limit, limit).to(dtype), 1 / scale


def product(a, a_dtype, b, b_dtype, a_rows, b_rows, power_of_2):
    """a b^T."""
    a8, a_scale = quantised(a, a_dtype, a_rows, power_of_2)
    b8, b_scale = quantised(b, b_dtype, b_rows, power_of_2)
    if a_rows or b_rows:
        a_scale = a_scale.expand(a.shape[0], 1).contiguous()
        b_scale = b_scale.expand(b.shape[0], 1).contiguous().t()
    return torch._scaled_mm(a8.contiguous(), b8.contiguous().t(), a_scale, b_scale, out_dtype=torch.bfloat16)


tensors = {"x": x, "weight": weight, "dy": dy}
for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
    rows = recipe != "tensorwise"
    back = E4M3 if rows else E5M2
    for power_of_2 in (True, False):
        prefix = recipe + ("/" if power_of_2 else "/exact/")
        tensors[prefix + "y"] = product(x, E4M3, weight, E4M3, rows, rows, power_of_2)
        tensors[prefix + "dx"] = product(dy, back, weight.t(), E4M3, rows, recipe == "rowwise", power_of_2)
        tensors[prefix + "dweight"] = (dy.t() @ x if recipe == "rowwise_with_gw_hp" else
                                       product(dy.t(), back, x.t(), E4M3, rows, rows, power_of_2))
save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[1] + "/fp8.safetensors")
