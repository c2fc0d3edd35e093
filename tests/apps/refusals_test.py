# SPDX-License-Identifier: Apache-2.0
"""Tests that each verb refuses what it cannot do, with a message that names the argument or the file."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
SIZES = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=4", "train.seq_len=16",
         "train.batch_size=2", "train.steps=1"]
HOLDER = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(HOLDER.name)
LANGUAGE, CLASSIFIER = FOLDER / "lm/model", FOLDER / "classifier/model"


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                          **kwargs)


def training(name, *settings):
    """Returns the arguments of a short training run."""
    return ["train", "--out", FOLDER / name, *(word for text in (*SIZES, *settings) for word in ("--set", text))]


def setUpModule():
    (FOLDER / "text").write_text("alpha beta " * 40)
    (FOLDER / "empty").write_text("\n\n")
    (FOLDER / "labels.jsonl").write_text("".join(
        json.dumps({"text": text, "label": text[0]}) + "\n" for text in ("aaa", "bbb", "aab", "bba") * 4))
    for arguments in (training("lm", f"data.train={FOLDER / 'text'}"),
                      training("classifier", "task=classify", f"data.train={FOLDER / 'labels.jsonl'}")):
        result = program(*arguments)
        assert result.returncode == 0, result.stderr


def tearDownModule():
    HOLDER.cleanup()


class Refusals(unittest.TestCase):
    def refuses(self, code, *cases):
        """Each case is the arguments and a part of the message."""
        for arguments, message in cases:
            result = program(*arguments)
            self.assertEqual(result.returncode, code, (arguments, result.stderr))
            self.assertIn(message, result.stderr, arguments)

    def test_options_that_contradict_each_other(self):
        analyze, generate = ["analyze", "--model", LANGUAGE], ["generate", "--model", LANGUAGE, "--prompt", "a"]
        text = [*analyze, "--text", "ab"]
        self.refuses(
            2,
            (analyze, "expected one of --text, --prompt-ids, --input, --task and --data, got none"),
            ([*text, "--map", "1"], "--png, --svg or --ascii"),
            ([*generate, "--stop", ""], "--stop: expected a text, got nothing"),
            ([*generate, "--seed", 3], "--seed: expected --temperature, --top-k, --top-p or --samples with it"),
            *(([*generate, "--temperature", 0, option, value], f"{option}: expected --temperature above 0, got 0")
              for option, value in (("--top-k", 2), ("--top-p", 0.5), ("--samples", 2), ("--seed", 3))),
            (["convert", "a", "b", "--to", "llama", "--rename", "x"], "expected OLD=NEW, got x"),
            (["train"], "train: expected --out or --resume, got neither"),
            (["train", "--out", FOLDER / "new", "--set", "steps"], "--set: expected key=value, got 'steps'"),
            (training("lm", f"data.train={FOLDER / 'text'}"),
             "expected a folder without a run, got one that holds a run"),
            (["tokenize", FOLDER / "text"], "tokenize: expected --learn FILE or --tokenizer FILE, got neither"))

    def test_what_a_model_cannot_do(self):
        analyze = ["analyze", "--model", LANGUAGE]
        other = FOLDER / "other"
        shutil.copytree(LANGUAGE, other)
        tokenizer = json.loads((other / "tokenizer.json").read_text())
        tokenizer["added_tokens"][0]["content"] = "<other>"
        (other / "tokenizer.json").write_text(json.dumps(tokenizer).replace("<|endoftext|>", "<other>"))
        self.refuses(
            1,
            ([*analyze, "--text", "ab", "--summary", "a"], "--summary: expected an encoder-decoder as --model, got"),
            ([*analyze, "--text", ""], "text: expected at least one token, got none"),
            ([*analyze, "--text", "ab", "--layer", 1], "--layer: expected an integer in [0, 0], because"),
            ([*analyze, "--text", "ab", "--ascii", "--part", "x"], "--part: expected a part of"),
            ([*analyze, "--text", "ab", "--compare", other], "other: expected a model with the same tokenizer as"),
            ([*analyze, "--text", "ab", "--png", "-"], "-: expected a file; use --json or --ascii for standard output"),
            (["generate", "--model", CLASSIFIER, "--prompt", "a"],
             "expected a causal language model, got a classifier; use diffattn classify"))

    def test_files_that_cannot_be_used(self):
        tokens, generate = FOLDER / "tokens", ["generate", "--model", LANGUAGE, "--input"]
        made = program("tokenize", FOLDER / "text", "--tokenizer", "bytes", "--out", tokens)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.refuses(
            1,
            (["tokenize", tokens, "--tokenizer", "bytes", "--out", FOLDER / "t2"], "expected text, got a token file"),
            (["tokenize", FOLDER / "text", "--tokenizer", "bytes", "--out", tokens],
             "expected a new file, got one that exists; --force replaces it"),
            ([*generate, FOLDER / "empty"], "empty: expected at least one line with a prompt, got none"),
            ([*generate, FOLDER / "missing"], "missing: expected a readable file or pipe, got: No such file"),
            ([*generate, FOLDER], "expected a file or a pipe, got a directory"))

    def test_lines_of_classify(self):
        bare = FOLDER / "bare"
        shutil.copytree(CLASSIFIER, bare)
        (bare / "tokenizer.json").unlink()
        lines = FOLDER / "lines"
        lines.write_text('{"text": "aa"}\n{"ids": []}\n{"ids": [99999]}\n{"ids": [97, 98]}\n')
        result = program("classify", "--model", bare, "--input", lines)
        self.assertEqual(result.returncode, 1, result.stderr)
        for line, message in ((1, "expected key 'ids', because the model has no tokenizer.json"),
                              (2, "expected at least one token, got none"), (3, r"key 'ids\[0\]': expected")):
            self.assertRegex(result.stderr, f"line {line}: .*{message}")
        self.assertIn("3 lines have faults", result.stderr)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(["error" in answer for answer in answers], [True, True, True, False])

    def test_a_pipe_that_does_not_block(self):
        """Another process may have set O_NONBLOCK on the pipe; no data yet is no end and no error."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        with subprocess.Popen([PROGRAM, "generate", "--model", LANGUAGE, "--input", "-", "--max-new-tokens", "1",
                               "--verbose"], stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.close(read)
            self.assertRaises(subprocess.TimeoutExpired, process.wait, 2)  # it reads an empty pipe
            os.write(write, b"ab\n")
            os.close(write)
            out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertTrue(re.match(rb"ab.*\n", out), out)


if __name__ == "__main__":
    unittest.main()
