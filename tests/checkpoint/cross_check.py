"""Writes or checks a safetensors file with Hugging Face's own library.

cross_check.py write FILE    writes one tensor of every dtype
cross_check.py check FILE    compares the file's tensors with the same rule
Element i of a tensor is (i * 7 + 3) % 101, minus 50 for signed types; bool: i % 3 == 0.
"""
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
SHAPES = {"matrix": [5, 7], "vector": [13], "scalar": [], "empty": [3, 0]}


def rule(dtype, shape):
    i = torch.arange(torch.Size(shape).numel())
    values = i % 3 == 0 if dtype == torch.bool else (i * 7 + 3) % 101 - (0 if dtype == torch.uint8 else 50)
    return values.to(dtype).reshape(shape)


expected = {f"{name}.{kind} \u00e9\"": rule(dtype, shape) for name, dtype in DTYPES.items() for kind, shape in SHAPES.items()}
if sys.argv[1] == "write":
    save_file(expected, sys.argv[2], metadata={"format": "pt", "author": "caf\u00e9"})
else:
    with safe_open(sys.argv[2], "pt") as file:
        assert file.metadata() == {"format": "pt", "author": "caf\u00e9"}, file.metadata()
        assert set(file.keys()) == set(expected), set(file.keys()) ^ set(expected)
        for name, tensor in expected.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype and found.shape == tensor.shape, (name, found.dtype, found.shape)
            assert torch.equal(found, tensor), name
print("equal", len(expected))
