#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fixtures/tokenizer: small tokenizers of each style, and the results of the `tokenizers`
library for some thousand strings.

    pip install tokenizers==0.23.3 unicodedata2==16.0.0
    tools/make_tokenizer_data.py

corpus.txt          the training text of the tokenizers, generated here
strings.json        the strings, an array
NAME.json           a tokenizer.json
NAME.ids            line i: the ids of string i, with special tokens
NAME.decoded.json   the decoded ids of every 8th string, without special tokens; null if they include a
                    normalised added token, whose text the library loses
nfc.json            pairs [text, text in NFC] from the Unicode database
"""
import json
import pathlib
import random

import unicodedata2 as ucd
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/tokenizer"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "llama3": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL,
    "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL,
    "o200k": (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?"
              rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
              r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL),
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def corpus(seed=1):
    rng = random.Random(seed)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "er", "ing", "on")]
    words = ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 3))) for _ in range(1500)]
    foreign = ["naïve", "straße", "für", "où", "été", "привет", "мир", "世界", "你好", "日本語", "한국어",
               "नमस्ते", "שלום", "مرحبا", "Ωμέγα", "e\u0301t\u0301", "😀", "👍🏽", "½", "٣٤"]
    lines = []
    for _ in range(900):
        kind = rng.random()
        chosen = [words[min(int(rng.paretovariate(0.6)), len(words)) - 1] for _ in range(rng.randint(3, 12))]
        if kind < 0.1:
            lines.append("    " * rng.randint(0, 3) + f"def {chosen[0]}_{chosen[1]}(x{rng.randint(0, 99)}):")
        elif kind < 0.2:
            lines.append(f"{chosen[0].upper()} = {rng.randint(0, 10**rng.randint(1, 7))}, {rng.random():.4f};")
        elif kind < 0.3:
            lines.append(" ".join(rng.choice(foreign) for _ in range(6)))
        elif kind < 0.36:
            lines.append("")
        else:
            text = " ".join(chosen).capitalize()
            lines.append(text + rng.choice([".", "!", "?", "'s.", "'ll " + chosen[0], " don't", "...", "  "]))
    return "\n".join(lines) + "\n"


def by_category():
    groups = {}
    for c in range(0x110000):
        category = ucd.category(chr(c))
        if category not in ("Cs", "Cn", "Co"):
            groups.setdefault(category, []).append(chr(c))
    return groups


def random_strings(rng):
    groups = by_category()
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "\u200b"]
    latin = ["a", "Z", "the", "The", "HTTP", "x9", "don't", "I'LL", "we'Ve", "'s", "'\u017f", "it's", "foo_bar"]
    marks = ["\u0301", "\u0327", "\u0345", "\u093f", "\u20dd", "\u05b0"]
    other = ["!", "...", "'", "''", "-", "//", "/\n", "(", "€", "😀", "👨\u200d👩\u200d👧", "👍🏽", "\ufffd",
             "\x00", "\x7f"]
    digits = ["1", "12", "123", "1234567", "٣٤", "½", "Ⅷ", "१२", "3.14", "1,000"]
    cjk = ["世界", "你", "日本語", "カナ", "한국", "가", "각", "ㅎ", "ᄒ", "𠀀"]
    names = SPECIAL + ["<s>", "</s>", "<pad>", "<mask>", "[NAME]", "café", "cafe\u0301", "\u2581", "<0x41>"]
    pools = [spaces, latin, marks, other, digits, cjk, names]
    strings = ["", " ", "  ", "a", "\n", "\n\n", " \n ", "a  b", "a   b", "   a", "a   ", "\n\n  a", "a\n\n\n"]
    for category in sorted(groups):  # every category, alone and between letters, spaces and digits
        for _ in range(8):
            c, d = rng.choice(groups[category]), rng.choice(groups[category])
            strings += [c + d, f"a{c}b {d}1", f" {c}  {d}\n"]
    while len(strings) < 1500:
        strings.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(2, 7))))
    while len(strings) < 2000:  # all kinds of white space
        strings.append("".join(rng.choice(spaces + ["a", "1", ".", "'s"]) for _ in range(rng.randint(3, 8))))
    while len(strings) < 2300:  # any characters
        strings.append("".join(rng.choice(groups[rng.choice(sorted(groups))]) for _ in range(rng.randint(1, 6))))
    lines = corpus(2).splitlines()
    while len(strings) < 2400:
        strings.append("\n".join(rng.sample(lines, 2))[:60])
    return [s for s in strings if normalizers.NFC().normalize_str(s) == ucd.normalize("NFC", s)]


def bpe_trainer(special_tokens, size):
    return trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False,
                               special_tokens=special_tokens,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def byte_level(pre_tokenizer, normalizer=None, size=600):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([corpus()], bpe_trainer(SPECIAL, size))
    return tokenizer


def split(name):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2_flags():
    """A tokenizer with every flag of added tokens and a prefix space."""
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<pad>", rstrip=True),
                                  AddedToken("<s>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("[NAME]", single_word=True), AddedToken("café", normalized=True),
                          AddedToken("日本", single_word=True, normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3():
    tokenizer = byte_level(split("llama3"))
    content = json.loads(tokenizer.to_str())
    content["model"]["ignore_merges"] = True
    # No merge produces these tokens; only ignore_merges finds them.
    for word in ("Ġzyzzyva", "Ġdon", "123"):
        content["model"]["vocab"].setdefault(word, len(content["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>", pair=None, special_tokens=[
            ("<|im_start|>", tokenizer.token_to_id("<|im_start|>")),
            ("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))])])
    return tokenizer


def qwen2():
    tokenizer = byte_level(split("qwen2"), normalizers.NFC())
    tokenizer.add_tokens([AddedToken("cafe\u0301", normalized=True)])
    return tokenizer


def sentencepiece(pre_tokenizer=None):
    """A tokenizer like Llama 2's: no words, U+2581 for spaces, byte tokens for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=2, show_progress=False,
                                  special_tokens=special, limit_alphabet=90)
    tokenizer.train_from_iterator(corpus().splitlines(), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    if pre_tokenizer is None:
        content["pre_tokenizer"] = None
        content["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        content["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if pre_tokenizer is not None:
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


STYLES = {
    "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2_flags": gpt2_flags,
    "llama3": llama3,
    "qwen2": qwen2,
    "o200k": lambda: byte_level(split("o200k")),
    "digits": lambda: byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "llama2": sentencepiece,
    "metaspace": lambda: sentencepiece(pre_tokenizers.Metaspace(prepend_scheme="first", split=True)),
}


def merges_as_text(content):
    """Writes merges in the form of older files: "a b"."""
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    return content


def write_json(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def nfc_pairs(rng):
    composed = [chr(c) for c in range(0x110000) if ucd.decomposition(chr(c))
                and not ucd.decomposition(chr(c)).startswith("<")]
    marks = [chr(c) for c in range(0x110000) if ucd.combining(chr(c))]
    jamo = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0xAC00, 0xAC01)]
    texts = rng.sample(composed, 300)
    for _ in range(1200):
        pool = rng.choice([composed, marks, jamo, composed + marks + ["a", "o", " "]])
        text = "".join(rng.choice(rng.choice([pool, ["a", "e", "o", "u", "A"]])) for _ in range(rng.randint(2, 6)))
        texts.append(ucd.normalize("NFD", text) if rng.random() < 0.5 else text)
    return [[text, ucd.normalize("NFC", text)] for text in texts]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "corpus.txt").write_text(corpus())
    strings = random_strings(random.Random(3))
    write_json("strings.json", strings)
    write_json("nfc.json", nfc_pairs(random.Random(4)))
    for name, build in STYLES.items():
        tokenizer = build()
        content = json.loads(tokenizer.to_str())
        write_json(name + ".json", merges_as_text(content) if name == "gpt2" else content)
        encoded = [tokenizer.encode(s).ids for s in strings]
        (FOLDER / (name + ".ids")).write_text("".join(" ".join(map(str, ids)) + "\n" for ids in encoded))
        lost = {t["id"] for t in content["added_tokens"] if t["normalized"] and t["content"].startswith("caf")}
        write_json(name + ".decoded.json",
                   [None if lost & set(ids) else tokenizer.decode(ids) for ids in encoded[::8]])
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {sum(map(len, encoded))} ids")
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{len(strings)} strings, {total} bytes in total")


if __name__ == "__main__":
    main()
