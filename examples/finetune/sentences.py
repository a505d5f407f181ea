#!/usr/bin/env python3
"""Which of the six novels by Jane Austen is a sentence from? Writes train.jsonl and validation.jsonl for data of type
labelled_text: every fifth chapter is for validation. Prints the accuracy of naive Bayes over words, a baseline.

    python3 examples/finetune/sentences.py data/austen data/novels
"""
import collections
import json
import math
import pathlib
import random
import re
import sys

NOVELS = ["emma", "mansfield-park", "northanger-abbey", "persuasion", "pride-and-prejudice", "sense-and-sensibility"]
TRAIN, VALIDATION = 1200, 200  # sentences of each novel
SHORTEST, LONGEST = 40, 240  # letters of a sentence


def sentences_of(chapter):
    for sentence in re.split(r"(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<=[.!?])[\"”’']?\s+", " ".join(chapter.split())):
        sentence = sentence.strip(' "“”_')
        if SHORTEST <= len(sentence) <= LONGEST:
            yield sentence


def words_of(sentence):
    return re.findall(r"[a-z']+", sentence.lower())


def naive_bayes(train, validation):
    """Share of the validation sentences whose novel gives their words the largest probability."""
    counts = collections.defaultdict(collections.Counter)
    for sample in train:
        counts[sample["label"]].update(words_of(sample["text"]))
    vocabulary = set().union(*counts.values())
    totals = {novel: sum(count.values()) + len(vocabulary) for novel, count in counts.items()}

    def novel_of(text):
        words = [word for word in words_of(text) if word in vocabulary]
        return max(counts, key=lambda novel: sum(math.log((counts[novel][word] + 1) / totals[novel]) for word in words))

    return sum(novel_of(sample["text"]) == sample["label"] for sample in validation) / len(validation)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    novels, out = map(pathlib.Path, sys.argv[1:])
    draw = random.Random(0)
    train, validation = [], []
    for novel in NOVELS:
        text = (novels / f"{novel}.txt").read_text(encoding="utf-8")
        chapters = re.split(r"^\s*CHAPTER\s+[IVXLC\d]+.*$", text, flags=re.MULTILINE | re.IGNORECASE)[1:]
        if len(chapters) < 10:
            sys.exit(f"{novel}.txt has {len(chapters)} chapters: fetch the novels with trireme data fetch austen")
        for into, most, wanted in ((train, TRAIN, False), (validation, VALIDATION, True)):
            found = [s for i, chapter in enumerate(chapters) if (i % 5 == 4) == wanted for s in sentences_of(chapter)]
            into += [{"text": s, "label": novel} for s in draw.sample(found, most)]
    out.mkdir(parents=True, exist_ok=True)
    for name, samples in (("train", train), ("validation", validation)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples), encoding="utf-8")
    print(f"{out}: {len(train)} sentences to train on, {len(validation)} of other chapters for validation")
    print(f"naive Bayes over words: {naive_bayes(train, validation):.1%} are right, by chance {1 / len(NOVELS):.1%}")


main()
