# SPDX-License-Identifier: Apache-2.0
"""Tests the program as a person uses it: terminals, pipes, prompts typed by hand, and the names under which
--model finds a model."""
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
RUN = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=4", "train.seq_len=32",
       "train.batch_size=4", "train.learning_rate=1e-2", "train.warmup_steps=1", "train.eval_every=0"]
CONTROLS = b"\x1b[31m\x07\x9b"  # ESC, BEL, and the C1 control CSI as a bare byte


def command(*arguments):
    return [PROGRAM, *(word if isinstance(word, bytes) else str(word) for word in arguments)]


def program(*arguments, **kwargs):
    return subprocess.run(command(*arguments), capture_output=True, timeout=120, check=False,
                          **{"stdin": subprocess.DEVNULL, **kwargs} if "input" not in kwargs else kwargs)


def start_on_terminal(*arguments, cwd=None):
    """Starts the program with a terminal of 80 columns. Returns the process and our end of the terminal."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}, start_new_session=True)
    os.close(theirs)
    return process, ours


def read_until(ours, process, pattern=None, seconds=60):
    """Reads what the program prints until the pattern occurs, or until the program ends."""
    text, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            piece = os.read(ours, 1 << 16)
        except BlockingIOError:
            piece = b""
        except OSError:  # the program has closed the terminal
            break
        text += piece
        if pattern is not None and re.search(pattern, text):
            break
        if not piece:
            if pattern is None and process.poll() is not None:
                break
            time.sleep(0.01)
    return text


def on_terminal(*arguments, **kwargs):
    process, ours = start_on_terminal(*arguments, **kwargs)
    text = read_until(ours, process)
    process.wait(timeout=60)
    text += read_until(ours, process, seconds=0.2)
    os.close(ours)
    return process.returncode, text


HOLDER = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(HOLDER.name)


def setUpModule():
    """Trains a model that writes control characters."""
    corpus = FOLDER / "corpus.txt"
    corpus.write_bytes((b"ab" + CONTROLS) * 200)
    settings = [*RUN, f"data.train={corpus}", "train.steps=60", "train.checkpoint_every=30"]
    result = program("train", "--out", FOLDER / "runs/first", *(word for text in settings for word in ("--set", text)))
    assert result.returncode == 0, result.stderr


def tearDownModule():
    HOLDER.cleanup()


class LanguageModel(unittest.TestCase):
    folder, run_folder, model = FOLDER, FOLDER / "runs/first", FOLDER / "runs/first/model"

    def generate(self, *arguments, model=None, **kwargs):
        result = program("generate", "--model", model or self.model, *arguments, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def json(self, *arguments, **kwargs):
        return json.loads(self.generate(*arguments, "--json", **kwargs).stdout)


class Terminal(LanguageModel):
    def assert_safe(self, text):
        """No control character but line ends, tabs and the bar's own reaches the terminal."""
        text = text.replace(b"\r\x1b[K", b"")
        for byte in text:
            self.assertTrue(byte >= 0x20 and byte != 0x7f or byte in b"\r\n\t", text)
        shown = text.decode("utf-8")  # every byte is part of a character
        self.assertNotRegex(shown, "[\x80-\x9f]")
        self.assertNotRegex(shown.replace("\r\n", "\n"), "\r")

    def test_generated_text_and_prompts(self):
        prompt = b"ab" + CONTROLS + "\u009bä\tb".encode()
        raw = self.generate("--prompt", prompt, "--max-new-tokens", 16).stdout
        self.assertTrue(raw.startswith(prompt), raw)
        self.assertIn(b"\x1b", raw[len(prompt):])  # the model writes control characters itself
        for samples in (1, 2):  # streamed, and printed at the end
            code, text = on_terminal("generate", "--model", self.model, "--prompt", prompt, "--max-new-tokens", 16,
                                     "--samples", samples, "--top-k", 1)
            self.assertEqual(code, 0, text)
            self.assert_safe(text)
            self.assertIn(rb"ab\u001b[31m\u0007\x9b\u009b" + "ä\tb".encode(), text)
            self.assertRegex(text, rb"\d+ tokens in \d+\.\d\d s, \d+\.\d tokens/s\r\n")

    def test_json_is_still_json(self):
        code, text = on_terminal("generate", "--model", self.model, "--prompt", "ab\u009b", "--max-new-tokens", 4,
                                 "--json")
        self.assertEqual(code, 0, text)
        self.assert_safe(text)
        self.assertEqual(json.loads(text)["results"][0]["prompt"], "ab\u009b")

    def test_file_names_and_arguments_in_messages(self):
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "bad\x1b[2J\x07.jsonl").write_text("no\n")
        for arguments in (["tokenize", data, "--tokenizer", "bytes", "--out", self.folder / "out"],
                          ["eval", "--model", self.model, "--data", data],
                          ["train", "--set", f"data.train={data}", "--out", self.folder / "never"],
                          ["ev\x1bil"], ["info", "--js\x1bon"],
                          ["generate", "--model", "no\x1bwhere", "--prompt", "a"]):
            code, text = on_terminal(*arguments)
            self.assertIn(code, (1, 2), text)
            self.assert_safe(text)
            self.assertIn(rb"\u001b", text)
        self.assertIn(b"bad\x1b[2J\x07.jsonl", program("eval", "--model", self.model, "--data", data).stderr)

    def test_a_conversation_with_the_model(self):
        process, ours = start_on_terminal("generate", "--model", self.model, "--interactive", "--max-new-tokens", 8)
        self.assertIn(b"Ctrl-D", read_until(ours, process, rb"> $"))
        for prompt in (b"ab", b"b"):
            os.write(ours, prompt + b"\n")
            text = read_until(ours, process, rb"tokens/s\r\n> $")
            self.assertIn(b"8 tokens in", text)
            self.assert_safe(text)
        os.write(ours, b"\x04")  # Ctrl-D
        read_until(ours, process)
        self.assertEqual(process.wait(timeout=30), 0)
        os.close(ours)

    def test_a_conversation_with_a_chat_template(self):
        folder = self.folder / "chat"
        shutil.copytree(self.model, folder)
        (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")
        process, ours = start_on_terminal("generate", "--model", folder, "--interactive", "--max-new-tokens", 8)
        self.assertIn(b"/reset", read_until(ours, process, rb"> $"))
        for line, pattern in ((b"ab", rb"8 tokens in[^\n]*tokens/s\r\n> $"), (b"/reset", rb"/reset\r\n> $")):
            os.write(ours, line + b"\n")
            text = read_until(ours, process, pattern)
            self.assertRegex(text, pattern)
            self.assert_safe(text)
        os.write(ours, b"\x04")
        read_until(ours, process)
        self.assertEqual(process.wait(timeout=30), 0)
        os.close(ours)

    def test_a_signal_ends_a_continuation_but_not_the_program(self):
        process, ours = start_on_terminal("generate", "--model", self.model, "--interactive", "--max-new-tokens",
                                          1000000)
        read_until(ours, process, rb"> $")
        os.write(ours, b"ab\n")
        read_until(ours, process, rb"31m")
        process.send_signal(signal.SIGINT)
        self.assertIn(b"tokens/s", read_until(ours, process, rb"tokens/s\r\n> $"))
        os.write(ours, b"\x04")
        read_until(ours, process)
        self.assertEqual(process.wait(timeout=30), 0)
        os.close(ours)


class Sampling(LanguageModel):
    def test_top_k_or_top_p_alone_samples(self):
        greedy = self.json("--prompt", "ab", "--max-new-tokens", 24)["results"][0]["ids"]
        for option in (["--top-k", 200], ["--top-p", 0.999], ["--top-k", 200, "--temperature", 1]):
            ids = self.json("--prompt", "ab", "--max-new-tokens", 24, "--seed", 3, *option)["results"][0]["ids"]
            self.assertNotEqual(ids, greedy, option)
        self.assertEqual(self.json("--prompt", "ab", "--max-new-tokens", 24, "--top-k", 1)["results"][0]["ids"], greedy)

    def test_penalties_avoid_what_was_generated(self):
        for option in ("--presence-penalty", "--frequency-penalty"):
            ids = self.json("--prompt", "ab", "--max-new-tokens", 24, option, 100)["results"][0]["ids"]
            self.assertEqual(len(set(ids)), len(ids), option)
        ids = self.json("--prompt", "ab", "--max-new-tokens", 24, "--frequency-penalty", -100)["results"][0]["ids"]
        self.assertEqual(len(set(ids)), 1)

    def test_verbose_tells_how_tokens_were_computed(self):
        for dtype, text in (("bfloat16", rb"fused steps; KV cache: \d+\.\d MiB; steps prepared: 1, in"),
                            ("float16", rb"computed by the modules: its parameters are neither float32 nor bfloat16")):
            notes = self.generate("--prompt", "ab", "--max-new-tokens", 4, "--dtype", dtype, "--verbose").stderr
            self.assertRegex(notes, text)

    def test_several_samples_of_each_prompt(self):
        results = self.json("--input", "-", "--samples", 3, "--max-new-tokens", 24, input=b"ab\nb\n")["results"]
        self.assertEqual([row["prompt"] for row in results], ["ab"] * 3 + ["b"] * 3)
        self.assertEqual([row["sample"] for row in results], [0, 1, 2] * 2)
        self.assertEqual(len({tuple(row["ids"]) for row in results}), 6)

    def test_interactive_reads_lines_from_a_pipe_too(self):
        text = self.generate("--interactive", "--max-new-tokens", 4, input=b"ab\n\nb\n").stdout
        alone = [self.generate("--prompt", prompt, "--max-new-tokens", 4).stdout for prompt in ("ab", "b")]
        self.assertEqual(text, b"".join(alone))

    def test_threads(self):
        for count in (1, 2):
            self.generate("--prompt", "ab", "--max-new-tokens", 2, "--threads", count)
        result = program("generate", "--model", self.model, "--prompt", "ab", "--threads", 0)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"--threads: expected an integer in [1, 1024], got '0'", result.stderr)


class Inputs(LanguageModel):
    def read_from_pipe(self, text, *arguments):
        """Runs a verb whose --input is a pipe, as in `--input <(command)`."""
        theirs, ours = os.pipe()
        os.write(ours, text)
        os.close(ours)
        try:
            return program(*arguments, "--input", f"/dev/fd/{theirs}", pass_fds=[theirs])
        finally:
            os.close(theirs)

    def test_pipes(self):
        generated = self.read_from_pipe(b"ab\nb\n", "generate", "--model", self.model, "--max-new-tokens", 2, "--json")
        self.assertEqual(generated.returncode, 0, generated.stderr)
        self.assertEqual([row["prompt"] for row in json.loads(generated.stdout)["results"]], ["ab", "b"])
        analyzed = self.read_from_pipe(b"abba\n", "analyze", "--model", self.model, "--json")
        self.assertEqual(analyzed.returncode, 0, analyzed.stderr)
        self.assertEqual(json.loads(analyzed.stdout)["models"][0]["queries"], list("abba"))

    def test_a_failed_read_is_no_end(self):
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            for verb in (["generate", "--input", "-"], ["generate", "--interactive"], ["analyze", "--input", "-"],
                         ["analyze", "--input", self.folder]):
                result = program(*verb, "--model", self.model, stdin=folder)
                self.assertEqual(result.returncode, 1, verb)
                self.assertIn(b"got a directory", result.stderr, verb)
        finally:
            os.close(folder)

    def test_truncated_texts(self):
        long = ["analyze", "--model", self.model, "--text", "ab" * 40]
        refused = program(*long)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(b"expected at most 32 tokens", refused.stderr)
        self.assertIn(b"--truncate", refused.stderr)
        result = program(*long, "--truncate", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["models"][0]["queries"], list("ab" * 16))
        self.assertIn(b"text: reading the first 32 of 80 tokens", result.stderr)


class ModelNames(LanguageModel):
    def test_run_folders_checkpoints_and_latest(self):
        checkpoints = self.run_folder / "checkpoints"
        expected = self.json("--prompt", "ab", "--max-new-tokens", 8)["results"]
        for name in (self.run_folder, checkpoints / "step-60", self.run_folder / "latest", checkpoints / "latest",
                     "latest"):
            result = program("generate", "--model", name, "--prompt", "ab", "--max-new-tokens", 8, "--json",
                             cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["results"], expected, name)
            self.assertEqual(b"diffattn: --model" in result.stderr, str(name).endswith("latest"), name)
        self.assertIn(b"--model latest is runs/first/model\n", result.stderr)
        analyzed = program("analyze", "--model", self.run_folder, "--compare", checkpoints / "step-30", "--text", "ab",
                           "--json")
        self.assertEqual(analyzed.returncode, 0, analyzed.stderr)
        self.assertEqual([model["name"] for model in json.loads(analyzed.stdout)["models"]], ["first", "first step-30"])

    def test_names_without_a_model(self):
        nowhere = program("generate", "--model", "latest", "--prompt", "a", cwd="/")
        self.assertEqual(nowhere.returncode, 2)
        self.assertIn(b"--model: expected a run folder in runs/ for 'latest', got none", nowhere.stderr)
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        result = program("generate", "--model", empty, "--prompt", "a")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"empty/config.json", result.stderr)
        result = program("generate", "--model", empty / "latest", "--prompt", "a")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"expected a complete checkpoint in %s/checkpoints" % bytes(empty), result.stderr)

    def test_incomplete_checkpoints_are_not_the_latest(self):
        copy = self.folder / "copied"
        shutil.copytree(self.run_folder, copy)
        cut = shutil.copytree(copy / "checkpoints/step-60", copy / "checkpoints/step-61")
        for name in ("complete", "model.safetensors"):
            (cut / name).unlink()
        pointer = copy / "checkpoints/latest"
        for step in ("step-61", None):
            pointer.unlink()
            if step:
                pointer.write_text(step + "\n")
            result = program("generate", "--model", copy / "latest", "--prompt", "ab", "--max-new-tokens", 1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(b"checkpoints/step-60\n", result.stderr)

    def test_a_model_folder_may_be_called_latest(self):
        shutil.copytree(self.run_folder / "model", self.folder / "named/latest")
        result = program("generate", "--model", "latest", "--prompt", "ab", "--max-new-tokens", 1,
                         cwd=self.folder / "named")
        self.assertEqual((result.returncode, result.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
