# SPDX-License-Identifier: Apache-2.0
"""Tests what `train` says before and while it trains, and how its threads wait."""
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import tempfile
import termios
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]

RUN_FILE = """
task = "{task}"
[model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 4
[train]
steps = 30
batch_size = 2
seq_len = 32
log_every = 1
eval_every = 30
eval_batches = 1
"""
FIELDS = [r"train [█░]{8,24} \d+/30", r"\d+\.\d/s", r"(\d+:)?\d+:\d\d left|- left", r"loss \d\.\d{4}", r"\d+ tok/s",
          r"lr \d\.\d\de[-+]\d\d", r"\|g\| \d+\.\d\d", r"MFU \d{1,3} %"]


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **kwargs)


def on_terminal(columns, *arguments, stop_after=None):
    """Returns what the program writes to a terminal. Sends Ctrl-C once the text has `stop_after`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    text = b""
    with subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                          env=environment) as process:
        os.close(theirs)
        while True:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the program has closed the terminal
                break
            if stop_after and stop_after.encode() in text:
                process.send_signal(signal.SIGINT)
                stop_after = None
    os.close(ours)
    return text.decode()


class Progress(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.out = self.folder / "run"
        self.texts = self.folder / "texts"
        self.texts.mkdir()
        (self.texts / "a.txt").write_text("alpha beta gamma delta " * 100)

    def arguments(self, task, *more):
        path = self.folder / "run.toml"
        path.write_text(RUN_FILE.format(task=task))
        data = ["--set", f"data.train={self.texts}"] if task == "lm" else []
        return ["train", "--config", path, "--out", self.out, *data, *more]

    def metrics(self):
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    def test_narrow_terminals_get_fewer_fields_but_whole_ones(self):
        fewest = len(FIELDS)
        for columns in (60, 80, 120):
            self.out = self.folder / str(columns)
            text = on_terminal(columns, *self.arguments("lm"))
            bars = [line for line in re.split("\r\x1b\\[K|\r\n", text) if line.startswith("train █")]
            self.assertGreater(len(bars), 1, text)
            for bar in bars:
                self.assertLess(len(bar), columns)
                fields = bar.split("  ")
                for field, pattern in zip(fields, FIELDS):
                    self.assertRegex(field, f"^({pattern})$", bar)
            fewest = min(fewest, len(fields))
        self.assertEqual(len(fields), len(FIELDS), bar)  # in 120 columns
        self.assertLess(fewest, len(FIELDS))

    def test_ctrl_c_says_what_is_saved_on_a_line_of_its_own(self):
        text = on_terminal(80, *self.arguments("lm", "--set", "train.steps=1000000"), stop_after="tok/s")
        self.assertRegex(text, r"\r\n\x1b?(\[K)?saving step \d+\r\n")
        self.assertIn("stopped at step", text)

    def test_the_loss_is_a_mean_over_recent_updates(self):
        result = program(*self.arguments("lm"))
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [line["loss"] for line in self.metrics() if "loss" in line]
        shown = float(re.findall(r"step 30/30  loss (\d\.\d{4})", result.stderr)[0])
        self.assertAlmostEqual(shown, sum(losses[-20:]) / 20, delta=2e-4)

    def test_utilisation_is_never_above_one(self):
        result = program(*self.arguments("lm", "--set", "train.peak_tflops=0.000001"))
        self.assertEqual(result.returncode, 0, result.stderr)
        shares = [line["model_flop_utilisation"] for line in self.metrics() if "model_flop_utilisation" in line]
        self.assertLessEqual(max(shares), 1.0)
        self.assertLessEqual(max(int(x) for x in re.findall(r"MFU (\d+) %", result.stderr)), 100)

    def test_classifiers_have_no_perplexity_and_count_their_tokens(self):
        arguments = self.arguments("classify", "--set", "train.peak_tflops=1")
        result = program(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("perplexity", result.stderr)
        self.assertRegex(result.stderr, r"step 30: validation loss \d\.\d{4}, accuracy \d\.\d{3}")
        lines = self.metrics()
        self.assertFalse([line for line in lines if "valid_perplexity" in line])
        parameters = json.loads(program(*arguments, "--dry-run", "--json").stdout)["parameters"]
        for line in lines:
            if "tokens_per_second" in line:  # a token takes 6 FLOP per weight; a label takes those of its text
                flops = line["model_flop_utilisation"] * 1e12 / line["tokens_per_second"]
                self.assertLess(flops, 10 * parameters)

    def test_a_run_begins_with_what_it_is_and_needs(self):
        result = program(*self.arguments("lm", "--threads", 1))
        self.assertEqual(result.returncode, 0, result.stderr)
        for pattern in (r"model   diffllama, 1 layers of width 32, 0\.0\d M parameters",
                        r"data    \d+ tokens, read \d+\.\d\d times in 30 steps of 64",
                        r"device  cpu, 1 thread, float32", r"memory  about \d+ MiB",
                        r"time    about \d+ s at 40 % of \d+ GFLOP/s"):
            self.assertRegex(result.stderr, f"(?m)^{pattern}$")
        plan = json.loads(program(*self.arguments("lm", "--dry-run", "--json", "--threads", 1)).stdout)
        self.assertEqual((plan["device"], plan["threads"]), ("cpu", 1))
        self.assertGreater(plan["expected_seconds"], 0)
        text = program(*self.arguments("lm", "--dry-run")).stdout
        self.assertRegex(text, r"(?m)^device +cpu  with \d+ threads?$")
        self.assertRegex(text, r"(?m)^time +\d+ s  or so$")

    def test_skipped_files_are_named(self):
        (self.texts / "picture.png").write_bytes(b"\x89PNG\0\0")
        result = program(*self.arguments("lm", "--dry-run"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"skipped 1 file that is not text: {self.texts / 'picture.png'}", result.stderr)


class Waiting(unittest.TestCase):
    """libgomp prints what it has read from the environment, when it is loaded."""

    def spins(self, **variables):
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        result = program("version", env={**environment, "OMP_DISPLAY_ENV": "verbose", **variables})
        self.assertEqual(result.returncode, 0, result.stderr)
        found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", result.stderr)
        if not found:
            self.skipTest("skipped: torch does not use libgomp")
        return int(found[0])

    def test_threads_spin_briefly_unless_the_environment_says_otherwise(self):
        self.assertEqual(self.spins(), 1000)
        self.assertEqual(self.spins(GOMP_SPINCOUNT="77"), 77)
        self.assertEqual(self.spins(OMP_WAIT_POLICY="passive"), 0)


if __name__ == "__main__":
    unittest.main()
