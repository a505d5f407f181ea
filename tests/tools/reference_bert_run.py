"""A BERT's loss on one batch of a run, by Hugging Face's transformers.
Usage: reference_bert_run.py make FOLDER        writes random weights beside FOLDER/config.json
       reference_bert_run.py loss FOLDER BATCH  prints "loss X"; BATCH is JSON with inputs (tokens, and a mask of what is
                                                no padding) and targets, each in rows"""
import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

torch.set_num_threads(1)
torch.manual_seed(0)
what, folder = sys.argv[1:3]
if what == "make":
    BertForMaskedLM(BertConfig.from_pretrained(folder)).float().save_pretrained(folder)
else:
    batch = json.load(open(sys.argv[3]))
    tokens, *masks = map(torch.tensor, batch["inputs"])
    (architecture,) = BertConfig.from_pretrained(folder).architectures
    auto = AutoModelForMaskedLM if architecture == "BertForMaskedLM" else AutoModelForSequenceClassification
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"{folder}: transformers complains of {wrong}"
    model.eval()
    with torch.no_grad():
        mask = masks[0].long() if masks else torch.ones_like(tokens)
        print("loss", repr(model(tokens, attention_mask=mask, labels=torch.tensor(batch["targets"])).loss.item()))
