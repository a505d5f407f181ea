"""Trains tokenizers of the configurations that published models have with PyPI tokenizers, and says what it makes of texts, for
equality_test.cpp.

    python train_tokenizers.py FOLDER LINES [TEXT_FILE...]

writes FOLDER/lines.bin (texts, some of which are not UTF-8) and a folder for each tokenizer: tokenizer.json, ids.bin and texts.bin. Texts
are of the files, of Python's own library and of this project, and made up. All are read with errors="replace".
lines.bin: of every text its length as uint32 and its bytes. ids.bin, int32: of every text the number of ids and the ids, without and with
special tokens. texts.bin: of every text two texts as in lines.bin, the latter ids decoded with and without special tokens.
The content of the vocabularies does not matter: they are small, so that words become several tokens.
"""
import json
import pathlib
import pydoc_data
import random
import struct
import sys
import unicodedata

import numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNICODE_14 = tuple(map(int, unicodedata.unidata_version.split("."))) <= (14, 0, 0)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# ---- texts

HAND_PICKED = [
    "", " ", "  ", "a", " a", "  a", "a ", "a  ", "\n", " \n", "\n a", "a\r\n\r\n  b\t\tc", "nul\0nul",
    "It's I'm we'll they've you're he'd can't 'S 'LL ''s 's' !'s don't!'t 're", "'", "''", " '", "x'", "l'l", "I'\u017fa'LLx'Ve",
    "The quick brown fox, jumped over 12345 lazy dogs... \"really?\" (yes) -- 3.14159e-10", "Do not do not. I do n't. He 's 've 're 'm ' x ' ! ? , .",
    "Grüße aus Köln, déjà vu, naïve, señor, Ångström, ﬁne, Ĳssel İstanbul ΣΑΣ ẞß",
    "Привет, мир! Ελληνικά κείμενα. שלום עולם مرحبا بالعالم ١٢٣", "हिन्दी में पाठ ๑๒๓ ไทย ქართული Հայերեն አማርኛ",
    "漢字かな交じり文、カタカナ。全角１２３　全角空白　 混在 ｶﾞｷﾞ", "한국어 문장입니다. 中文句子，没有空格。한국어",
    "😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ a😀b 1😀2", "e\u0301 vs \u00e9, Z\u0351\u036b\u0343 a\u0300b", "½ ² ³ ¼ Ⅷ ⅷ ① ㊿ ৯ 𝟘𝟙 𐄇 x² H₂O",
    "\u00a0nbsp\u00a0\u00a0x \u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000y \u200b\u200d\ufeff\u180ez", "a\u0085b \x1c\x1d\x1e\x1f \x7f \x01\x02 \v\f",
    "𝒜𝓃 𐍈𐌰 𠀀𠀁𪚥 \U000e0001\U000f0000\U0010ffff \ufffd\uffff", "tabs\t\tand   runs     of      spaces\n\n\n\n   end   ",
    "\u2581a \u2581\u2581b\u2581 \u2581", "<0x41><0xE2><0x96>", "<|endoftext|>", "a<|endoftext|>b", "a <|endoftext|> b<|endoftext|><|endoftext|>",
    "<|endoftext", "<|end", "<|endof <|endoftext|", "x<|end|>", "hello  <mask>  world", "  <mask>", "<mask>  ", "a\n\t\u3000<mask>b",
    "<r>  \n\u00a0x  <r>", "a  <both>  b", "<both><both>  <mask> <r> <r>  <both>", "<r>  <mask>  x", "foo bar", "foobar", "foo foo bar barfoo",
    "blob job", "été étéé l'été", "<MASK> <Mask>", "s<unk>t", "word wordy sword a word. word", "_word word_ éword", "[CLS] x [SEP][MASK] [UNK]", "<s>a</s> b<s>",
    "Café CAFÉ cafe\u0301 NAÏVE", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "x" * 130, "a-b--c - d", "12 345 6789 0", "abab abba aabb", "q" * 300 + " " * 300 + "é" * 200,
]
PIECES = [
    " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u2581", "a", "the", "The", "tion", "ing", "Zo\u00eb", "\u00e9t\u00e9", "\u0416", "\u6f22\u5b57", "\u0301",
    "1", "2024", "\u00bd", "\u0663", "'", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", ".", ",", "!?", "--", "-", "\"", "_", "$", "\U0001f600", "\U0001f468\u200d\U0001f469",
    "\U00020000", "\U0010ffff", "\u00ad", "\u0100", "\u0120", "<|endoftext|>", "<|end", "<mask>", "<r>", "<both>", "foo", "foo bar", "ob", "word", "<", "|>", "\0", "\x7f", "\x1f",
    "\u1100\u1161\u11a8", "\uac01", "\u0915\u094d\u0937", "\ufb01", "<s>", "</s>", "[MASK]", "<0x41>", "\ufffd", "\u200b", "ABC", "ÀÉ",
]
# Letters, marks, numbers and signs that all versions of Unicode in use agree on.
SCRIPTS = [(0x20, 0x7e), (0x20, 0x7e), (0xa1, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x620, 0x6d3), (0x905, 0x94d), (0xe01, 0xe4e), (0x10d0, 0x10f0), (0x1e00, 0x1eff), (0x2010, 0x2044),
           (0x2190, 0x22ff), (0x2500, 0x257f), (0x3041, 0x3096), (0x30a1, 0x30fa), (0x4e00, 0x9fa5), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0xff01, 0xff9f), (0x1f300, 0x1f5ff), (0x1f600, 0x1f64f), (0x1d400, 0x1d454)]


def mixed(rng):
    return "".join(rng.choice(PIECES) for _ in range(1 + rng.randrange(24)))


def of_scripts(rng):
    words = []
    for _ in range(1 + rng.randrange(12)):
        low, high = rng.choice(SCRIPTS)
        words.append("".join(chr(rng.randint(low, high)) for _ in range(1 + rng.randrange(8))))
    return rng.choice([" ", "", "  "]).join(words)


def is_old(char):
    """Known since Unicode 3.2, with the category of today. tokenizers does not know U+07FD of Unicode 11 for a mark."""
    category = unicodedata.ucd_3_2_0.category(char)
    return category != "Cn" and category == unicodedata.category(char)


def broken(rng, text):
    while True:
        content = bytearray(text.encode())
        for _ in range(1 + rng.randrange(4)):
            at = rng.randrange(len(content) + 1)
            content[at:at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
        if all(is_old(char) for char in set(content.decode(errors="replace")) - set(text)):
            return bytes(content)


def of_files(files):
    lines = []
    for file in files:
        lines += pathlib.Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return lines


def all_code_points():
    """Every character behind a letter, a number, a space and a sign: in the first 0x3000, and where the category changes, and some others."""
    newer = {0xcf3, 0xece, 0x1c89, 0x1c8a, 0x897, 0xfffe, 0xffff}
    before, text = "", ""
    for code in range(1, 0x110000 if UNICODE_14 else 0xa000):
        category = unicodedata.category(chr(code))
        if category not in ("Cs", "Cn") and code not in newer and (code < 0x3000 or category != before or code % 401 == 0):
            text += f"a{chr(code)}1{chr(code)} {chr(code)}?{chr(code)}"
            if len(text) > 1000:
                yield text
                text = ""
        before = category
    yield text


def make_lines(count, files):
    rng = random.Random(20240607)
    prose = [line for line in of_files(files) + of_files([pathlib.Path(pydoc_data.__file__).with_name("topics.py")]) if line]
    code = of_files(sorted(ROOT.glob("trireme/base/*.*")) + sorted(ROOT.glob("tests/*/*.py")))
    lines = [text.encode() for text in HAND_PICKED]
    while len(lines) < count:
        kind = rng.randrange(10)
        if kind < 4:
            lines.append(rng.choice(prose).encode())
        elif kind < 5:
            lines.append(rng.choice(code).encode())
        elif kind < 6:
            lines.append("\n".join(rng.choice(prose + code) for _ in range(3)).encode())
        elif kind < 7:
            lines.append(of_scripts(rng).encode())
        elif kind < 9:
            lines.append(mixed(rng).encode())
        else:
            lines.append(broken(rng, rng.choice([mixed(rng), of_scripts(rng), rng.choice(prose)])))
    training = rng.sample(prose, min(1200, len(prose))) + rng.sample(code, min(500, len(code))) + [of_scripts(rng) for _ in range(200)] + [mixed(rng) for _ in range(200)]
    return lines, training


# ---- tokenizers

ADDED = [
    AddedToken("<mask>", lstrip=True, normalized=False, special=True), AddedToken("<r>", rstrip=True, normalized=False, special=True),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=False, special=True), AddedToken("<|end", normalized=False),
    AddedToken("foo", normalized=True), AddedToken("foo bar", normalized=True), AddedToken("ob", normalized=False),
    AddedToken("\u00e9t\u00e9", normalized=False), AddedToken("word", single_word=True, normalized=False), AddedToken("CAFÉ", normalized=True),
]


SIZE = 1000  # of vocabularies
PUBLISHED = 8  # the first ones are compared on all lines, the others on 1000


def bpe_trainer(special=("<|endoftext|>",), alphabet=True, size=None, **options):
    return trainers.BpeTrainer(vocab_size=size or SIZE, special_tokens=list(special), show_progress=False,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [], **options)


def finished(tokenizer, trainer, text, added=True):
    if trainer:
        tokenizer.train_from_iterator(text, trainer)
    if added:
        tokenizer.add_tokens(ADDED)
    return tokenizer


def gpt2(text, prefix=False, use_regex=True, unk=None, fuse=False, added=True):
    tokenizer = Tokenizer(models.BPE(unk_token=unk, fuse_unk=fuse))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return finished(tokenizer, bpe_trainer(["<|endoftext|>"] + ([unk] if unk else []), alphabet=not unk), text, added)


def roberta(text):
    tokenizer = gpt2(text, prefix=True)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def without_some_merges(tokenizer):
    """Leaves tokens that only ignore_merges can reach."""
    file = json.loads(tokenizer.to_str())
    file["model"]["merges"] = [merge for i, merge in enumerate(file["model"]["merges"]) if i < 100 or i % 3]
    file["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(file))


def llama3(text, expression=LLAMA3, normalizer=None, ignore_merges=True):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    finished(tokenizer, bpe_trainer(["<|endoftext|>", "<|begin_of_text|>"]), text)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def smollm2(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    return finished(tokenizer, bpe_trainer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]), text)


def deepseek(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    steps = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return finished(tokenizer, bpe_trainer(), text)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def llama2(text, metaspace=False, fuse=True):
    """Sentencepiece's BPE with byte fallback: the whole text is one word."""
    training = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=True))
    training.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    training.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    training.train_from_iterator(text, bpe_trainer(["<unk>", "<s>", "</s>"] + BYTES, alphabet=False, size=SIZE + 500, limit_alphabet=300))
    file = json.loads(training.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    if metaspace:
        file["normalizer"] = None
        file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    else:
        file["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return finished(tokenizer, None, text)


def bert(text, lowercase=True, strip_accents=None, clean_text=True):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=clean_text, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    finished(tokenizer, trainers.WordPieceTrainer(vocab_size=SIZE + 200, special_tokens=special, show_progress=False), text)
    if lowercase:
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    else:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram(text, pre_tokenizer, byte_fallback=False, normalizer=None):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer or normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"] + (BYTES if byte_fallback else [])
    text = [line for line in text if all(ord(c) < 0x180 for c in line)]  # the vocabulary must have all of its characters
    tokenizer.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=SIZE + 500, special_tokens=special, unk_token="<unk>", show_progress=False))
    if byte_fallback:
        file = json.loads(tokenizer.to_str())
        file["model"]["byte_fallback"] = True
        file["added_tokens"] = file["added_tokens"][:3]
        tokenizer = Tokenizer.from_str(json.dumps(file))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return finished(tokenizer, None, text)


def openai_gpt(text):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return finished(tokenizer, bpe_trainer(["<unk>"], alphabet=False, end_of_word_suffix="</w>"), text)


def with_prefix(text):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=False)
    return finished(tokenizer, bpe_trainer(["<unk>"], alphabet=False, continuing_subword_prefix="##"), text)


def parts(text, pre_tokenizer=None, normalizer=None, decoder=None, base=None):
    """One part of each kind; the model has all bytes, so that nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizer] if pre_tokenizer else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if normalizer:
        tokenizer.normalizer = normalizer
    if decoder:
        tokenizer.decoder = decoder
    return finished(tokenizer, bpe_trainer(), text)


def all_tokenizers(text):
    metaspace = pre_tokenizers.Metaspace
    plain = gpt2(text)
    yield "gpt2", plain
    yield "llama2", llama2(text)
    yield "llama3", llama3(text)
    yield "qwen2", llama3(text, QWEN2, normalizers.NFC(), ignore_merges=False)
    yield "smollm2", smollm2(text)
    yield "bert", bert(text)
    yield "t5", unigram(text, metaspace(prepend_scheme="always"))
    yield "xlm_roberta", unigram(text, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace(prepend_scheme="always")]))
    yield "gpt2_merges_as_strings", plain
    yield "gpt2_prefix", gpt2(text, prefix=True)
    yield "gpt2_one_word", gpt2([line for line in text if len(line) < 30], use_regex=False)
    yield "gpt2_ignore_merges", without_some_merges(plain)
    yield "gpt2_unknown", gpt2(["the cat sat on the mat. " * 20], unk="<unk>")
    yield "gpt2_unknown_fused", gpt2(["the cat sat on the mat. " * 20], unk="<unk>", fuse=True)
    yield "roberta", roberta(text)
    yield "llama2_metaspace", llama2(text, metaspace=True, fuse=False)
    yield "bert_cased", bert(text, lowercase=False)
    yield "bert_accents", bert(text, lowercase=True, strip_accents=False, clean_text=False)
    yield "unigram_bytes", unigram(text, metaspace(prepend_scheme="first", split=False), byte_fallback=True)
    yield "deepseek", deepseek(text)
    yield "openai_gpt", openai_gpt(text)
    yield "with_prefix", with_prefix(text)
    short = text[:500]
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield f"split_{behavior}", parts(short, pre_tokenizers.Split(Regex(r"\d|-|\s"), behavior))
        yield f"split_{behavior}_inverted", parts(short, pre_tokenizers.Split(Regex(r"\w+\b"), behavior, invert=True))
    yield "split_string", parts(short, pre_tokenizers.Split("e", "merged_with_previous"))
    yield "split_script", parts(short, pre_tokenizers.Split(Regex(r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+|(?i)the|\h{3,}|^ |$"), "isolated"))
    yield "split_empty", parts(short, pre_tokenizers.Split(Regex(r"x*"), "isolated"))
    yield "punctuation", parts(short, pre_tokenizers.Punctuation("contiguous"), normalizers.StripAccents())
    yield "digits", parts(short, pre_tokenizers.Digits(individual_digits=False), normalizers.Lowercase())
    yield "whitespace", parts(short, pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFD(), normalizers.Strip(left=True, right=False)]))
    yield "delimiter", parts(short, pre_tokenizers.CharDelimiterSplit("e"), normalizers.NFKD())
    yield "fixed_length", parts(short, pre_tokenizers.FixedLength(3), normalizers.Prepend("x "))
    yield "replaced", parts(short, metaspace(prepend_scheme="never"), normalizers.Replace(Regex(r"(\p{Lu})\p{Ll}+"), "Word"), decoders.Metaspace(prepend_scheme="never"))
    yield "byte_normalizer", parts(short, None, normalizers.ByteLevel(), decoders.Sequence([decoders.ByteLevel(), decoders.Strip("x", 1, 0), decoders.Replace(Regex("o+"), "0")]))


def for_speed(folder, text):
    """Larger ones without the tests' added tokens, trained on `text`, for benchmarks/tokenization.py. Returns their folders."""
    global ADDED, SIZE
    ADDED, SIZE = [], 8000
    lines = text.split("\n")[:40000]
    names = ("gpt2", "llama2", "llama3", "qwen2", "smollm2", "bert", "t5")
    for name, tokenizer in all_tokenizers(lines):
        if name not in names:
            break
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / "tokenizer.json"))
    return [folder / name for name in names]


def with_merges_as_strings(file):
    """Writes the file as releases before 0.20 did."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"] = ["#version: 0.2"] + [" ".join(merge) for merge in content["model"]["merges"]]
    file.write_text(json.dumps(content, ensure_ascii=True, indent=1), encoding="utf-8")


def decode(tokenizer, ids, skip):
    try:
        return tokenizer.decode(ids, skip_special_tokens=skip)
    except BaseException:  # BPEDecoder and Strip panic where there is nothing
        return ""


def write_expected(folder, tokenizer, texts):
    ids, decoded = [], bytearray()
    both = [[e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=special)] for special in (False, True)]
    for without, with_special in zip(*both):
        ids += [len(without), *without, len(with_special), *with_special]
    shown = [[decode(tokenizer, i, skip) for i in both[1]] for skip in (False, True)]
    for pair in zip(*shown):
        for text in pair:
            content = text.encode()
            decoded += struct.pack("<I", len(content)) + content
    numpy.array(ids, dtype="<i4").tofile(folder / "ids.bin")
    (folder / "texts.bin").write_bytes(decoded)


def main():
    folder, count, files = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    lines, training = make_lines(count, files)
    code_points = [text.encode() for text in all_code_points()]
    for name, of in (("lines", lines), ("code_points", code_points)):
        (folder / f"{name}.bin").write_bytes(b"".join(struct.pack("<I", len(line)) + line for line in of))
    texts = [line.decode(errors="replace") for line in lines]
    names = []
    for name, tokenizer in all_tokenizers(training):
        (folder / name).mkdir()
        file = folder / name / "tokenizer.json"
        tokenizer.save(str(file))
        if name == "gpt2_merges_as_strings":
            with_merges_as_strings(file)
        write_expected(folder / name, tokenizer, texts if len(names) < PUBLISHED else texts[:1000])
        names.append(name)
    for name, expression in (("code_points_gpt2", None), ("code_points_llama3", LLAMA3)):
        (folder / name).mkdir()
        tokenizer = gpt2(training[:500], added=False) if expression is None else llama3(training[:500], expression)
        tokenizer.save(str(folder / name / "tokenizer.json"))
        write_expected(folder / name, tokenizer, [line.decode() for line in code_points])
    plain = gpt2(training[:500], added=False)
    (folder / "pair").mkdir()
    plain.model.save(str(folder / "pair"))
    write_expected(folder / "pair", plain, texts[:1000])
    (folder / "names.json").write_text(json.dumps(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
