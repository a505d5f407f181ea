"""Greedy text by llama.cpp through the functions of llama-cpp-python that mirror its C interface. generation.py calls it with a JSON object: gguf, ids (tokens of
each prompt), batch, tokens, end (ids that end a text), dtype. Prints the ids, prompt tokens/s and tokens/s after the first token.

Keys and values are kept in the model's type, as Trireme's. Prompts of a batch are sequences of one call of llama_decode(), without padding.
"""
import ctypes
import json
import os
import sys
import time

import llama_cpp as cpp
import numpy as np

KEPT = {"fp32": 0, "bf16": 30}  # ggml_type: F32, BF16


class Texts:
    def __init__(self, spec):
        cpp.llama_backend_init()
        self.silent = cpp.llama_log_callback(lambda level, text, data: None)
        cpp.llama_log_set(self.silent, None)
        self.model = cpp.llama_model_load_from_file(spec["gguf"].encode(), cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot read {spec['gguf']}")
        self.vocab = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(self.model))
        longest = max(len(ids) for ids in spec["ids"]) + spec["tokens"]
        options = cpp.llama_context_default_params()
        options.n_seq_max = spec["batch"]
        options.n_ctx = spec["batch"] * (-(-longest // 256) * 256)
        options.n_batch = options.n_ubatch = max(512, sum(sorted((len(ids) for ids in spec["ids"]), reverse=True)[:spec["batch"]]))
        options.n_threads = options.n_threads_batch = len(os.sched_getaffinity(0))
        options.type_k = options.type_v = KEPT[spec["dtype"]]
        self.context = cpp.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit("llama.cpp gave no context")
        self.batch = cpp.llama_batch_init(options.n_batch, 0, 1)

    def read(self, rows):
        """rows: (sequence, position, token, wants logits). The most likely next token of each that wants logits."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wants) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wants
        if cpp.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        return [int(np.argmax(np.ctypeslib.as_array(ctypes.cast(cpp.llama_get_logits_ith(self.context, i), ctypes.POINTER(ctypes.c_float)), (self.vocab,))))
                for i, row in enumerate(rows) if row[3]]

    def grow(self, prompts, tokens, end):
        """Texts of the prompts, seconds of reading them, seconds after that."""
        cpp.llama_memory_clear(cpp.llama_get_memory(self.context), True)
        begin = time.perf_counter()
        rows = [(which, at, token, at == len(ids) - 1) for which, ids in enumerate(prompts) for at, token in enumerate(ids)]
        texts = [[token] for token in self.read(rows)]
        first = time.perf_counter()
        for _ in range(tokens - 1):
            growing = [which for which, text in enumerate(texts) if text[-1] not in end]
            if not growing:
                break
            rows = [(which, len(prompts[which]) + len(texts[which]) - 1, texts[which][-1], 1) for which in growing]
            for which, token in zip(growing, self.read(rows)):
                texts[which].append(token)
        return texts, first - begin, time.perf_counter() - first


def main():
    spec = json.loads(sys.argv[1])
    texts = Texts(spec)
    texts.grow(spec["ids"][:1], 2, [])  # warm
    ids, reading, growing = [], 0.0, 0.0
    for begin in range(0, len(spec["ids"]), spec["batch"]):
        found, first, rest = texts.grow(spec["ids"][begin:begin + spec["batch"]], spec["tokens"], spec["end"])
        ids += found
        reading += first
        growing += rest
    print(json.dumps({"ids": ids, "prompt_tokens_per_s": sum(map(len, spec["ids"])) / reading, "tokens_per_s": sum(len(row) - 1 for row in ids) / growing}))


if __name__ == "__main__":
    main()
