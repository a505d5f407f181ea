"""Writes the weights of a BERT, and prints its loss on masked tokens.
Usage: reference_masked.py FOLDER BATCH   FOLDER/config.json is there; BATCH is JSON with tokens and targets, 8 of a
                                          sample. Prints "loss X"."""
import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from transformers import BertConfig, BertForMaskedLM

torch.set_num_threads(1)
torch.manual_seed(0)
folder, batch = sys.argv[1], json.load(open(sys.argv[2]))
model = BertForMaskedLM(BertConfig.from_pretrained(folder)).float()
model.save_pretrained(folder)
tokens, targets = (torch.tensor(batch[key]).view(-1, 8) for key in ("tokens", "targets"))
with torch.no_grad():
    print("loss", repr(model(tokens, attention_mask=torch.ones_like(tokens), labels=targets).loss.item()))
