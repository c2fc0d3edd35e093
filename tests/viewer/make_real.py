# SPDX-License-Identifier: Apache-2.0
"""Writes reports of real models for the browser tests: make_real.py FOLDER.

Trains small models with the program and runs `diffattn analyze` on them. It writes the pages and the JSON that
the pages must agree with.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = os.environ["DIFFATTN_PROGRAM"]

# Token strings that try to act as markup or code.
HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(2)</script>", "<img src=x onerror=alert(3)>", "<!--", "-->",
    "]]>", "<svg/onload=alert(4)>", "&lt;b&gt;", "&#x3c;i&#x3e;", "\"><b>bold</b>", "' onmouseover='alert(5)",
    "javascript:alert(6)", "{{7*7}}", "${alert(8)}", "`backtick`", "\\u003cscript\\u003e", "\u2028line\u2029paragraph",
    "nul\0inside", "\x1b[31mred\x1b[0m", "\u05e9\u05dc\u05d5\u05dd", "\u202ereversed\u202c",
    "\U0001f469\u200d\U0001f52c", "\ufeffbom", "</style><style>*{display:none}</style>",
    "\u0627\u0644\u0633\u0644\u0627\u0645", "a\tb\r\nc", "   x",
    "</title>", "<a href=x>link</a>", "<iframe src=x>",
]

MODEL = ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=8",
         "model.initializer_range=0.4", "train.steps=20", "train.batch_size=2", "train.log_every=1000"]
NEEDLE = ["task=needle", "needle.length=40", "needle.needles=3", "needle.keys=8", "needle.values=8", "needle.noise=16"]


def run(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"diffattn {' '.join(map(str, arguments))}: {result.stderr}")
    return result.stdout


def train(out, *settings):
    run("train", "--out", out, *(part for setting in settings for part in ("--set", setting)))
    return out / "model"


def needle_report(folder, work):
    """Two models on a task with known positions of the answer."""
    diff = train(work / "diff", *MODEL, *NEEDLE)
    plain = train(work / "plain", *MODEL, *NEEDLE, "model.attention=transformer")
    arguments = ["analyze", "--model", diff, "--compare", plain, "--task", "needle", "--layer", 1, "--head", 2]
    text = run(*arguments, "--out", folder / "needle.html", "--csv", folder / "needle.csv", "--json")
    (folder / "needle.json").write_text(text)


def hostile_report(folder, work):
    """A text of thirty hostile tokens."""
    corpus = work / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog " * 40)
    model = train(work / "text", *MODEL, f"data.train={corpus}", "model.vocab_size=300", "train.seq_len=32",
                  "model.max_position_embeddings=4096")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"] += [
        {"id": 257 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": False} for i, text in enumerate(HOSTILE)]
    path.write_text(json.dumps(tokenizer))
    ids = ",".join(str(257 + i) for i in range(len(HOSTILE)))
    run("analyze", "--model", model, "--prompt-ids", ids, "--out", folder / "hostile.html")
    (folder / "hostile.json").write_text(json.dumps(HOSTILE))
    return model


def cross_report(folder, work):
    """An encoder-decoder model, which reads one text and writes another."""
    model = train(work / "summarizer", *MODEL, "task=summarize", "train.steps=2")
    text = run("analyze", "--model", model, "--task", "summarize", "--layer", 0, "--head", 0, "--json", "--out",
               folder / "cross.html")
    (folder / "cross.json").write_text(text)


def long_report(folder, model):
    """A text of 4096 tokens, the most that the page is tested with."""
    ids = ",".join(str((7 * i + i // 50) % 256) for i in range(4096))
    run("analyze", "--model", model, "--prompt-ids", ids, "--layer", 1, "--head", 0, "--out", folder / "long.html")


def main():
    folder = pathlib.Path(sys.argv[1]) / "real"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        needle_report(folder, pathlib.Path(work))
        cross_report(folder, pathlib.Path(work))
        long_report(folder, hostile_report(folder, pathlib.Path(work)))


if __name__ == "__main__":
    main()
