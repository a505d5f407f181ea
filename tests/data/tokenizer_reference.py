"""Trains byte-level BPEs with PyPI tokenizers and says how it encodes strings, for tokenizer_test.cpp.

    python tokenizer_reference.py FOLDER

reads FOLDER/corpus.txt and FOLDER/cases.json (a list of strings), writes one folder of tokenizer files
per variant and FOLDER/expected.json: {"ids": {variant: [ids of each case]}, "words": [word lengths in
bytes of each case]}.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ADDED = [
    AddedToken("<mask>", lstrip=True, normalized=False, special=True),
    AddedToken("<r>", rstrip=True, normalized=False, special=True),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=False, special=True),
    AddedToken("<|end", normalized=False),
    AddedToken("foo", normalized=True),
    AddedToken("foo bar", normalized=True),
    AddedToken("ob", normalized=False),
    AddedToken("\u00e9t\u00e9", normalized=False),
]


def train(corpus: str, prefix: bool, use_regex: bool = True, unk: str | None = None, fuse: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=unk, fuse_unk=fuse))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>"] + ([unk] if unk else [])
    alphabet = [] if unk else pre_tokenizers.ByteLevel.alphabet()
    lines = corpus.split("\n") if not use_regex else [corpus]
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(ADDED)
    return tokenizer


def without_some_merges(tokenizer: Tokenizer) -> Tokenizer:
    """Leaves tokens that only ignore_merges can reach."""
    file = json.loads(tokenizer.to_str())
    file["model"]["merges"] = [merge for i, merge in enumerate(file["model"]["merges"]) if i < 100 or i % 3]
    file["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(file))


def with_merges_as_strings(file: pathlib.Path) -> None:
    """Writes the file as releases before 0.20 did."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"] = ["#version: 0.2"] + [" ".join(merge) for merge in content["model"]["merges"]]
    file.write_text(json.dumps(content, ensure_ascii=True, indent=1), encoding="utf-8")


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    corpus = (folder / "corpus.txt").read_text(encoding="utf-8")
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))

    plain = train(corpus, prefix=False)
    variants = {
        "plain": plain,
        "strings": plain,
        "prefix": train(corpus, prefix=True),
        "one_word": train(corpus, prefix=False, use_regex=False),
        "ignore_merges": without_some_merges(plain),
        "unknown": train("the cat sat on the mat. " * 20, prefix=False, unk="<unk>"),
        "unknown_fused": train("the cat sat on the mat. " * 20, prefix=False, unk="<unk>", fuse=True),
    }
    for name, tokenizer in variants.items():
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / "tokenizer.json"))
    with_merges_as_strings(folder / "strings" / "tokenizer.json")

    (folder / "pair").mkdir()
    plain.model.save(str(folder / "pair"))
    pair = Tokenizer(models.BPE.from_file(str(folder / "pair" / "vocab.json"), str(folder / "pair" / "merges.txt")))
    pair.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pair.add_special_tokens(["<|endoftext|>"])
    variants["pair"] = pair

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = {
        "ids": {name: [t.encode(case, add_special_tokens=False).ids for case in cases] for name, t in variants.items()},
        "words": [[len(word) for word, _ in splitter.pre_tokenize_str(case)] if case else [] for case in cases],
        "vocab_size": {name: max(t.get_vocab().values()) + 1 for name, t in variants.items()},
    }
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
