"""Writes BERTs with random weights as Hugging Face's transformers has them, and what it makes of them.
Usage: reference_bert_heads.py OUT         folders OUT/masked_lm, OUT/classes, OUT/none with expected.safetensors
       reference_bert_heads.py OUT FOLDER  OUT/sentences.txt and OUT/expected.safetensors: the tokens and vectors of these
                                           sentences by FOLDER's tokenizer and model"""
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

SENTENCES = [
    "The cat sits on the mat.",
    "A cat is sitting on a mat.",
    "Interest rates rose by 0.25% in March, the third increase this year.",
    "",
    "Ships with three banks of oars were called triremes; the rowers of each bank sat one above the other, and the "
    "fastest of them could ram an enemy at nine knots, or so the historians of antiquity would have us believe.",
    "UPPER case, na\u00efve caf\u00e9s and Dvo\u0159\u00e1k",
    "\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "emoji \U0001f6f6 and \u20ac12,50 (x < y && z >= 3) don't stop!?",
    "Why?",
]


def inputs(vocabulary, length):
    tokens = torch.randint(0, vocabulary, (3, length))
    mask = torch.arange(length)[None] < torch.tensor([[length], [length // 2], [3]])
    return tokens, mask


torch.set_num_threads(1)
torch.manual_seed(0)
out = sys.argv[1]
if len(sys.argv) > 2:
    model = AutoModel.from_pretrained(sys.argv[2]).eval()
    with open(out + "/sentences.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(SENTENCES))
    rows = AutoTokenizer.from_pretrained(sys.argv[2])(SENTENCES, padding=True, return_tensors="pt")
    tokens, mask = rows["input_ids"], rows["attention_mask"].bool()
    with torch.no_grad():
        hidden = model(tokens, attention_mask=mask).last_hidden_state
    weights = mask[..., None].float()
    vectors = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)
    save_file({"tokens": tokens, "mask": mask, "output": vectors}, out + "/expected.safetensors")
    sys.exit()
for name, kind in {"masked_lm": BertForMaskedLM, "classes": BertForSequenceClassification, "none": BertModel}.items():
    model = kind(BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_labels=3,
                            intermediate_size=40, max_position_embeddings=12, type_vocab_size=3)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in parameter_name else 0.0, 0.1)
    model.save_pretrained(f"{out}/{name}", max_shard_size="10KB")
    tokens, mask = inputs(50, 12)
    segments = tokens % 3
    with torch.no_grad():
        output = model(tokens, attention_mask=mask, token_type_ids=segments)[0]
    save_file({"tokens": tokens, "mask": mask, "segments": segments, "output": output.contiguous()},
              f"{out}/{name}/expected.safetensors")
