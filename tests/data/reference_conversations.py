"""Conversations with the ids and the assistant's tokens that transformers finds, for tokenize_conversations_test.cpp.

    python reference_conversations.py FOLDER

writes lines.jsonl ("messages"), prompts.jsonl ("prompt" and "response"), and a folder for each tokenizer: its files with a chat template that has
{% generation %} marks, and expected.json: of each line of both files [ids, mask]. plain.jinja is the same template without marks.
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chat"))
from chat_templates import TEMPLATES

SPECIAL = ["<|begin|>", "<|stop|>", "<|other|>"]
MARKED = TEMPLATES["chatml with generation"]
# Without an end, and with words of the assistant that are joined to others.
INLINE = """{%- for message in messages %}{% if message.role == 'assistant' %}{{ ' A:' }}{% generation %}{{ message.content }}{% endgeneration %}{{ '.' }}{% else %}{{ 'U: ' ~ message.content }}{% endif %}{% endfor %}"""
TEXTS = ["How many rows of oars does a trireme have?", "Three", " three rows, 170 oars", "née Ærø 漢字 😀 twice", "cafe\u0301 au lait", "  indented\n\n  code(x) = y", "a", "It's <|other|> odd", "1 2 3 4 5", "", "ends with spaces  "]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def composed():
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def conversations():
    rng = random.Random(54)
    for count in [1, 2, 2, 3, 5, 8, 9] * 4:
        messages = [{"role": "system", "content": rng.choice(TEXTS)}] if rng.random() < 0.3 else []
        for i in range(count):
            text = rng.choice(TEXTS)
            # An emoji at the end of a span is several tokens, of which transformers' mask has the first only.
            messages.append({"role": "assistant" if i % 2 else "user", "content": text})
        yield messages


def main():
    folder = pathlib.Path(sys.argv[1])
    lines = list(conversations())
    prompts = [(rng_text + "\nAnswer:", answer) for rng_text, answer in zip(TEXTS, reversed(TEXTS))] + [("no", "w"), ("", "only"), ("only", "")]
    (folder / "lines.jsonl").write_text("".join(json.dumps({"id": i, "messages": line}) + "\n" for i, line in enumerate(lines)))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"response": answer, "prompt": prompt}) + "\n" for prompt, answer in prompts))
    (folder / "plain.jinja").write_text(MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    for name, tokenizer, template in [("bytes", byte_level(), MARKED), ("inline", byte_level(), INLINE), ("metaspace", metaspace(), MARKED), ("composed", composed(), MARKED)]:
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|stop|>", chat_template=template)
        fast.save_pretrained(folder / name)
        expected = {"lines": [], "prompts": []}
        for messages in lines:
            made = fast.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            expected["lines"].append([made["input_ids"], made["assistant_masks"]])
        for prompt, answer in prompts:
            made = fast(prompt + answer, add_special_tokens=False, return_offsets_mapping=True)
            mask = [int(end > len(prompt)) for begin, end in made["offset_mapping"]]
            expected["prompts"].append([made["input_ids"] + [fast.eos_token_id], mask + [1]])
        (folder / name / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
