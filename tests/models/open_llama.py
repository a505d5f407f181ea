"""Opens what Trireme wrote of the folders of reference_llama.py: their logits must be the same.
Usage: open_llama.py FOLDER... Each has again/ with config.json and weights, and expected.safetensors."""
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model, info = AutoModelForCausalLM.from_pretrained(folder + "/again", output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"{folder}: transformers complains of {wrong}"
    expected = load_file(folder + "/expected.safetensors")
    with torch.no_grad():
        difference = (model.eval()(expected["tokens"]).logits - expected["logits"]).abs().max().item()
    assert difference < 1e-5 * max(1, expected["logits"].abs().max().item()), f"{folder}: logits differ by {difference}"
