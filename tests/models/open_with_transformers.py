"""Opens folders that save_gpt2() wrote as anybody would, with Hugging Face's transformers, and writes what came of it.
Usage: open_with_transformers.py FOLDER... A folder gets seen.safetensors (tokens, logits in fp32) and again/, what save_pretrained() makes of it."""
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"transformers complains of {wrong}"
    config = AutoConfig.from_pretrained(folder)
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is GPT2LMHeadModel, "the configuration does not say which model it is"
    assert model.dtype == config.dtype, f"{model.dtype} is loaded, the configuration says {config.dtype}"
    tied = model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    print(f"{os.path.basename(folder)}: {'tied' if tied else 'untied'}, {str(model.dtype).removeprefix('torch.')}, "
          f"parameters: {sum(p.numel() for p in model.parameters())}")
    model.save_pretrained(folder + "/again", max_shard_size="12KB")

    # At both ends of the vocabulary and of the positions.
    tokens = (torch.arange(3 * config.n_positions).view(3, -1) * 7) % config.vocab_size
    model.float().eval()
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"tokens": tokens, "logits": logits.contiguous()}, folder + "/seen.safetensors")
    generated = model.generate(tokens[:1, :4], max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert generated.shape == (1, 8), f"no token ends a text, but {generated.shape} came"
