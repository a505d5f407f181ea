"""Documents with the ids that PyPI tokenizers gives them, and files of tokens as Megatron-LM writes them, for tokenize_test.cpp and
token_files_test.cpp.

    python reference_tokens.py documents FOLDER

writes novel.txt (one document, longer than several blocks), lines.jsonl (documents of one line), and a folder for each tokenizer:
tokenizer.json, tokenizer_config.json and ids.bin (int32: of each document, novel.txt first, its ids and, if there are any, the end token). counts.bin
(int32) has the number of ids of each, without the end token.

    python reference_tokens.py megatron FOLDER

writes uint16.bin and uint16.idx, int32.bin and int32.idx, and int64.bin and int64.idx: documents of several sequences, laid out as
IndexedDatasetBuilder of megatron/core/datasets/indexed_dataset.py does it; and tokens.bin (int32: all tokens) and starts.bin (int64: where
documents begin).
"""
import json
import pathlib
import random
import struct
import sys

import numpy

# Megatron's codes of types.
CODES = {"uint16": 8, "int32": 4, "int64": 5}


def write_documents(folder):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tokenizer"))
    import train_tokenizers

    lines, training = train_tokenizers.make_lines(4000, [])
    texts = [line.decode(errors="replace") for line in lines]
    novel = "\n".join(texts * 3) + "\n"
    documents = texts[:400] + ["\n".join(texts[400:2200]), " ", "", "x" * 3000 + " y " * 3000]
    (folder / "novel.txt").write_text(novel, encoding="utf-8", newline="")
    rng = random.Random(7)
    with open(folder / "lines.jsonl", "w", encoding="utf-8", newline="\n") as out:
        for number, text in enumerate(documents):
            pairs = [("id", number), ("text", text), ("meta", {"text": ["not this", number]})]
            rng.shuffle(pairs)
            out.write(json.dumps(dict(pairs), ensure_ascii=bool(number % 2)) + "\n" * rng.choice([1, 1, 1, 2]))
    ends = {"gpt2": "<|endoftext|>", "llama2": "</s>", "bert": "[SEP]", "t5": "</s>"}
    for name, tokenizer in train_tokenizers.all_tokenizers(training[:600]):
        if name not in ends:
            continue
        place = folder / name
        place.mkdir()
        tokenizer.save(str(place / "tokenizer.json"))
        end = ends.pop(name)
        (place / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": end} if name == "t5" else end}))
        ids, counts = [], []
        for encoding in tokenizer.encode_batch([novel] + documents, add_special_tokens=False):
            counts.append(len(encoding.ids))
            ids += encoding.ids + [tokenizer.token_to_id(end)] * bool(encoding.ids)
        numpy.array(ids, dtype="<i4").tofile(place / "ids.bin")
        numpy.array(counts, dtype="<i4").tofile(place / "counts.bin")
        if not ends:
            break


def write_megatron(folder):
    rng = random.Random(11)
    documents = [[[rng.randrange(50000) for _ in range(rng.randrange(1, 30))] for _ in range(rng.randrange(1, 4))] for _ in range(40)]
    sequences = [sequence for document in documents for sequence in document]
    tokens = [token for sequence in sequences for token in sequence]
    starts, first = [], 0
    for document in documents:
        starts.append(sum(map(len, sequences[:first])))
        first += len(document)
    numpy.array(tokens, dtype="<i4").tofile(folder / "tokens.bin")
    numpy.array(starts, dtype="<i8").tofile(folder / "starts.bin")
    for name, code in CODES.items():
        dtype = numpy.dtype(name)
        numpy.array(tokens, dtype=dtype).tofile(folder / f"{name}.bin")
        lengths = numpy.array([len(sequence) for sequence in sequences], dtype=numpy.int32)
        pointers = numpy.concatenate([[0], numpy.cumsum(lengths.astype(numpy.int64) * dtype.itemsize)[:-1]]).astype(numpy.int64)
        indices = numpy.concatenate([[0], numpy.cumsum([len(document) for document in documents])]).astype(numpy.int64)
        with open(folder / f"{name}.idx", "wb") as out:
            out.write(b"MMIDIDX\x00\x00")
            out.write(struct.pack("<Q", 1))
            out.write(struct.pack("<B", code))
            out.write(struct.pack("<Q", len(lengths)))
            out.write(struct.pack("<Q", len(indices)))
            out.write(lengths.tobytes(order="C"))
            out.write(pointers.tobytes(order="C"))
            out.write(indices.tobytes(order="C"))


if __name__ == "__main__":
    {"documents": write_documents, "megatron": write_megatron}[sys.argv[1]](pathlib.Path(sys.argv[2]))
