# SPDX-License-Identifier: Apache-2.0
"""Tests training, evaluation and generation: exit codes, refusals, and the files of a run folder."""
import fcntl
import json
import math
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import struct
import subprocess
import tempfile
import termios
import time
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
LARGEST = 0x7f7fffff  # the bits of a float32 that is infinite after it is rounded to 8 bits

RUN_FILE = """
task = "lm"
seed = 3
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
[data]
train = "{corpus}"   # a text file
[train]
steps = {steps}
batch_size = 2
seq_len = 32
warmup_steps = 2
learning_rate = 3e-3
log_every = 1
eval_every = 10
eval_batches = 1
checkpoint_every = 3
"""


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **kwargs)


def on_terminal(columns, *arguments, **variables):
    """Returns the lines that the program draws on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **variables}
    with subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs,
                          stderr=theirs, env=environment):
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the program has closed the terminal
                break
            text += piece
    os.close(ours)
    return re.split("\r\x1b\\[K|\r\n", text.decode())


def start(*arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def wait_until_training(process, run):
    while not (run / "metrics.jsonl").exists():
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.05)


class Runs(unittest.TestCase):
    """A folder with a corpus and a finished run of 24 steps."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        generator = random.Random(1)
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
        text = " ".join(generator.choice(words) for _ in range(4000))
        (cls.folder / "corpus.txt").write_text(text)
        cls.config = cls.write_config("run.toml", steps=24)
        cls.whole = cls.folder / "whole"
        result = program("train", "--config", cls.config, "--out", cls.whole, "--json")
        assert result.returncode == 0, result.stderr
        cls.report = json.loads(result.stdout)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def write_config(cls, name, steps):
        path = cls.folder / name
        path.write_text(RUN_FILE.format(corpus=cls.folder / "corpus.txt", steps=steps))
        return path

    def assert_same_end(self, run):
        for name in ("checkpoints/step-24/model.safetensors",
                     "checkpoints/step-24/rank-00000/optimizer.safetensors",
                     "checkpoints/step-24/rank-00000/state.json", "model/model.safetensors"):
            self.assertEqual((self.whole / name).read_bytes(), (run / name).read_bytes(), name)


class Training(Runs):
    def test_the_estimate_of_memory_is_near_what_a_run_takes(self):
        checkpointing = ["--set", "train.activation_checkpointing=true",
                         "--set", "model.num_hidden_layers=12", "--set", "train.steps=1"]
        for extra in ([], checkpointing, [*checkpointing, "--set", "train.keep_attention=nothing"]):
            out = self.folder / f"memory{len(extra)}"
            sizes = ["--set", "model.hidden_size=256", "--set", "model.num_hidden_layers=4",
                     "--set", "train.batch_size=4", "--set", "train.seq_len=512",
                     "--set", "train.eval_every=0", "--set", "train.steps=2", *extra]
            told = program("train", "--config", self.config, "--dry-run", "--json", *sizes)
            self.assertEqual(told.returncode, 0, told.stderr)
            estimate = json.loads(told.stdout)["memory_bytes"] / 2**20
            result = program("train", "--config", self.config, "--out", out, *sizes)
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = (out / "metrics.jsonl").read_text().splitlines()
            measured = json.loads(lines[-1])["memory_mib"]
            self.assertLess(abs(estimate / measured - 1), 0.1,
                            f"{extra}: {estimate} MiB told, {measured} taken")

    def test_run_folder_has_what_is_promised(self):
        self.assertEqual(self.report["outcome"], "done")
        self.assertEqual(self.report["step"], 24)
        for name in ("config.toml", "metrics.jsonl", "checkpoints/latest", "checkpoints/step-24/manifest.json",
                     "checkpoints/step-24/complete", "model/config.json",
                     "model/tokenizer.json"):
            self.assertTrue((self.whole / name).is_file(), name)
        text = (self.whole / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertEqual(len(losses), 24)
        self.assertLess(losses[-1], losses[0])
        self.assertTrue(list(self.whole.glob("events.out.tfevents.*")))

    def test_dry_run_says_what_it_would_be(self):
        result = program("train", "--config", self.config, "--dry-run", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertEqual(plan["steps"], 24)
        self.assertEqual(plan["tokens_per_step"], 64)
        text = program("train", "--config", self.config, "--dry-run").stdout
        self.assertIn(str(plan["parameters"]), text)

    def test_dry_run_counts_what_a_run_makes(self):
        def limit():
            if "ASAN_OPTIONS" not in os.environ:  # AddressSanitizer reserves terabytes of addresses
                resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        layers = ("--set", "model.num_hidden_layers=3", "--set", "model.hidden_size=16", "--set",
                  "train.steps=1")
        for kind in (["task=lm", f"data.train={self.folder / 'corpus.txt'}", "model.attention=dint"],
                     ["task=summarize", "summarize.decoder_layers=2"]):
            arguments = [*layers, *(part for one in kind for part in ("--set", one))]
            plan = program("train", *arguments, "--dry-run", "--json")
            self.assertEqual(plan.returncode, 0, plan.stderr)
            out = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"
            result = program("train", *arguments, "--out", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(out / "model/model.safetensors", "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            made = sum(math.prod(tensor["shape"]) for name, tensor in header.items()
                       if name != "__metadata__")
            self.assertEqual(json.loads(plan.stdout)["parameters"], made, kind)
        # A dry run counts 1.3 trillion parameters without allocating them.
        plan = program("train", "--config", self.config, "--dry-run", "--json", "--set",
                       "model.num_hidden_layers=100", "--set", "model.hidden_size=32768",
                       preexec_fn=limit)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertGreater(json.loads(plan.stdout)["parameters"], 1.2e12)
        self.assertRegex(plan.stderr, r"needs about \d+ MiB, but the .*: lower model.hidden_size or")

    def test_more_memory_than_the_machine_has_is_said_before(self):
        for seq_len, warned in (("32", False), ("16777216", True)):
            result = program("train", "--config", self.config, "--dry-run", "--set",
                             f"train.seq_len={seq_len}", "--set", "train.batch_size=64")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("the machine has" in result.stderr, warned, result.stderr)

    def test_a_dry_run_refuses_a_device_that_is_not_there(self):
        for device in ("cuda:999", "tpu"):
            result = program("train", "--config", self.config, "--dry-run", "--set", f"train.device={device}")
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn("train.device: expected", result.stderr)

    def test_a_bar_fits_its_terminal(self):
        run = self.folder / "terminal"
        lines = on_terminal(50, "train", "--config", self.config, "--out", run, "--set",
                            "train.steps=4")
        bars = [line for line in lines if line.startswith("train ")]
        self.assertIn("4/4", bars[-1])
        self.assertIn("█", bars[-1])
        self.assertTrue(all(len(line) < 50 for line in bars), bars)
        # A resumed run continues its count; a wide terminal shows the whole line.
        lines = on_terminal(200, "train", "--resume", run, "--set", "train.steps=6", LC_ALL="C")
        bars = [line for line in lines if line.startswith("train ")]
        self.assertIn(" 4/6 ", bars[0])
        self.assertRegex(bars[-1], r"#{24} 6/6 .* loss .* MFU \d+ %$")
        lines = on_terminal(80, "train", "--resume", run, "--set", "train.steps=7", TERM="dumb")
        self.assertFalse([line for line in lines if "\x1b" in line or line.startswith("train ")])
        self.assertTrue([line for line in lines if line.startswith("step 7/7  loss")], lines)

    def test_wide_tables_fit_their_terminal(self):
        """The columns come in several blocks; each block starts with the layers."""
        for verb in (["eval", "--data", self.folder / "corpus.txt"], ["analyze", "--text", "alpha beta"]):
            arguments = [verb[0], "--model", self.whole / "model", *verb[1:]]
            whole = program(*arguments).stdout.splitlines()
            heads = [line for line in whole if line.lstrip().startswith("layer")]
            self.assertEqual(len(heads), 1, verb)
            lines = on_terminal(80, *arguments)
            self.assertLess(max(map(len, lines)), 81, lines)
            blocks = [line.split() for line in lines if line.lstrip().startswith("layer")]
            first = 2 if verb[0] == "analyze" else 1
            self.assertGreater(len(blocks), 1)
            self.assertEqual(heads[0].split(), blocks[0][:first] + [name for b in blocks for name in b[first:]])

    def test_names_that_are_no_utf8(self):
        run = os.fsencode(self.folder) + b"/name\xff"
        result = subprocess.run([PROGRAM, "train", "--config", self.config, "--out", run, "--json",
                                 "--set", "train.steps=1", "--set", "train.eval_every=0"],
                                capture_output=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["folder"].endswith("name\ufffd"))

    def test_data_without_text_is_refused(self):
        empty = self.folder / "empty.jsonl"
        empty.write_text('{"text": ""}\n' * 40)
        result = program("train", "--config", self.config, "--out", self.folder / "no_text", "--set",
                         f"data.train={empty}")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"{empty}: expected text, got none", result.stderr)
        result = program("eval", "--model", self.whole / "model", "--data", empty)
        self.assertEqual(result.returncode, 1, result.stderr)

    def test_weights_that_overflow_give_no_loss_and_no_text(self):
        model = self.folder / "overflowing"
        shutil.copytree(self.whole / "model", model)
        file = model / "model.safetensors"
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        data = data[:8 + size] + struct.pack("<f", 3e38) * ((len(data) - 8 - size) // 4)
        file.write_bytes(data)
        for form in ([], ["--json"]):
            result = program("eval", "--model", model, "--data", self.folder / "corpus.txt", *form)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertIn(f"{model}: the loss was not finite", result.stderr)
        result = program("generate", "--model", model, "--prompt", "alpha ")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("expected finite logits", result.stderr)

    def test_rounded_weights_that_overflow_give_no_numbers(self):
        """The input of a matrix is 0, and its weights are so large that only their rounded copies overflow."""
        model = self.folder / "rounded"
        shutil.copytree(self.whole / "model", model)
        data = bytearray((model / "model.safetensors").read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:begin])
        for name, bits in (("input_layernorm", 0), ("self_attn.q_proj", LARGEST)):
            first, last = tensors[f"model.layers.0.{name}.weight"]["data_offsets"]
            data[begin + first:begin + last] = struct.pack("<I", bits) * ((last - first) // 4)
        (model / "model.safetensors").write_bytes(data)
        exact = program("eval", "--model", model, "--data", self.folder / "corpus.txt")
        self.assertEqual(exact.returncode, 0, exact.stderr)
        result = program("eval", "--model", model, "--data", self.folder / "corpus.txt", "--quantize", "int8")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertRegex(result.stderr, "the loss with int8 weights was not finite within the first [0-9]+ labels, "
                         "because numbers in the model overflow; without --quantize it was finite\n$")

    def test_checkpoints_are_model_folders(self):
        checkpoint = self.whole / "checkpoints/step-24"
        result = program("generate", "--model", checkpoint, "--prompt", "alpha ", "--max-new-tokens", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        short = self.folder / "short.txt"
        short.write_text("alph")
        result = program("eval", "--model", checkpoint, "--data", short, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        attention = json.loads(result.stdout)["attention"]
        # Four letters and the end of the text are five tokens; the padding of the row does not count.
        self.assertLess(attention["entropy"], math.log(5))
        self.assertGreater(attention["entropy"], 0)

    def test_what_a_model_folder_cannot_be_is_said_of_its_config(self):
        model = self.folder / "edited"
        shutil.copytree(self.whole / "model", model)
        config = json.loads((model / "config.json").read_text())
        for change, code, expected in (
                ({"dance": 1}, 0, "key 'dance' is not known here and has no effect"),
                ({"num_attention_heads": 3}, 1, "argument 'num_attention_heads': expected an even number"),
                ({"num_hidden_layers": 60000}, 1, "expected at most as many layers as"),
                ({"intermediate_size": 1 << 20}, 1, "expected sizes of the model whose weights are"),
                ({"num_attention_heads": 65536, "num_key_value_heads": 2, "head_dim": 65536}, 1,
                 "expected sizes of the model whose weights are")):
            (model / "config.json").write_text(json.dumps({**config, **change}))
            result = program("generate", "--model", model, "--prompt", "a", "--max-new-tokens", 2)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertTrue(result.stderr.startswith(f"diffattn: {model}/config.json: {expected}"),
                            result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_weights_that_are_no_numbers_are_refused(self):
        model = self.folder / "damaged"
        shutil.copytree(self.whole / "model", model)
        file = model / "model.safetensors"
        whole = file.read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        name = "model.layers.1.self_attn.q_proj.weight"
        at = 8 + size + header[name]["data_offsets"][0]
        other = json.dumps({**header, name: {**header[name], "dtype": "I32"}}).encode()
        other += b" " * (-len(other) % 8)
        for data, expected in (
                (whole[:at] + struct.pack("<f", math.nan) + whole[at + 4:], "finite numbers, got NaN"),
                (whole[:at] + struct.pack("<f", -math.inf) + whole[at + 4:], "finite numbers, got -inf"),
                (len(other).to_bytes(8, "little") + other + whole[8 + size:], "F32, F64, BF16 or F16, got I32")):
            file.write_bytes(data)
            result = program("generate", "--model", model, "--prompt", "a", "--max-new-tokens", 2)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertEqual(result.stderr, f"diffattn: {file}: tensor '{name}': expected {expected}\n")

    def test_models_of_tasks_far_larger_than_their_weights_are_refused(self):
        for task, change, expected in (
                ("summarize", {"num_encoder_layers": 60000},
                 r"expected at most as many layers as the weight files hold tensors, \d\d, got 60001\n"),
                ("classify", {"classifier_hidden_size": 1 << 20},
                 "expected sizes of the model whose weights are")):
            out = self.folder / task
            result = program("train", "--out", out, "--set", f"task={task}", "--set",
                             "model.num_hidden_layers=1", "--set", "model.hidden_size=32", "--set",
                             "train.steps=1")
            self.assertEqual(result.returncode, 0, result.stderr)
            config = out / "model/config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
            result = program(task, "--model", out / "model", "--input", self.folder / "corpus.txt")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(result.stderr, f"^diffattn: {re.escape(str(config))}: {expected}")

    def test_wrong_settings_name_the_key(self):
        for setting, word in (("train.step=5", "train.steps"), ("train.steps=x", "an integer"),
                              ("train.steps", "key=value"), ("=5", "key=value"),
                              ("model.max_position_embeddings=8", "expected at least the 32 tokens"),
                              ("model.attention=nothing", "nothing"),
                              ("data.train=", "data.train"), ("model.hidden_size=33", "hidden_size"),
                              ("data.tokenizer=/nowhere", "/nowhere"),
                              ("train.keep_attention=sums", "train.activation_checkpointing = true"),
                              ("task=dance", "task")):
            result = program("train", "--config", self.config, "--out", self.folder / "wrong",
                             "--set", setting)
            self.assertIn(result.returncode, (1, 2), setting)
            self.assertIn(word, result.stderr, setting)
            self.assertNotIn("terminate called", result.stderr)
        bad = self.folder / "bad.toml"
        for text, expected in (
                ("seed = 1\n[train]\nsteps 5\n", "line 3: expected '=', got '5'\n"),
                ('seed = 1\n[train]\nsteps = "5"\n',
                 'line 3: train.steps: expected an integer, got the string "5"\n'),
                ("seed = 1\ntask = lm\n",
                 "line 2: task: expected a string in quotes, a number, true or false, got 'lm'\n")):
            bad.write_text(text)
            result = program("train", "--config", bad, "--out", self.folder / "wrong")
            self.assertEqual(result.returncode, 2, text)
            self.assertTrue(result.stderr.endswith(expected), result.stderr)

    def test_settings_of_other_tasks_are_named(self):
        file = self.folder / "two_tasks.toml"
        file.write_text('task = "needle"\nseed = 5\n[needle]\nlength = 64\n[classify]\nlength = 32\n'
                        "[curriculum]\nsteps = 0\nlength = 32\n")
        for task, expected in (("needle", [f"{file}: line 6: classify.length",
                                           "--set: data.valid_fraction"]),
                               ("classify", [f"{file}: line 4: needle.length",
                                             f"{file}: line 8: curriculum.steps",
                                             f"{file}: line 9: curriculum.length",
                                             "--set: data.valid_fraction"])):
            result = program("train", "--config", file, "--out", self.folder / "unread", "--dry-run",
                             "--set", "data.valid_fraction=0.1", "--set", f"task={task}")
            self.assertEqual(result.returncode, 0, result.stderr)
            said = [line for line in result.stderr.splitlines() if "has no effect" in line]
            self.assertEqual(said, [f'diffattn: {where} has no effect: a run with task = "{task}" '
                                    "does not read it" for where in expected])
        result = program("train", "--config", file, "--out", self.folder / "unread", "--dry-run", "--skip-bad")
        self.assertIn("diffattn: --skip-bad has no effect: the task needle is generated\n", result.stderr)

    def test_the_run_file_of_a_run_is_of_that_run_and_makes_it_again(self):
        text = (self.whole / "config.toml").read_text()
        self.assertEqual(re.findall(r"(?m)^\[(.*)\]$", text), ["model", "data", "train"])
        again = self.folder / "again"
        result = program("train", "--config", self.whole / "config.toml", "--out", again)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((again / "config.toml").read_text(), text)
        self.assert_same_end(again)

    def test_folder_that_cannot_be_written(self):
        result = program("train", "--config", self.config, "--out", "/proc/diffattn")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/proc/diffattn", result.stderr)

    def test_evaluation(self):
        result = program("eval", "--model", self.whole / "model", "--data",
                         self.folder / "corpus.txt", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertGreater(report["tokens"], 10000)
        self.assertLess(report["loss"], 5.6)
        self.assertIn("layer.1.noise_cancelled", report["attention"])
        result = program("eval", "--model", self.whole / "model", "--data", self.folder / "corpus.txt")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^tokens +\d+  \(\d+/s\)$")
        lines = result.stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("layer "))
        self.assertLessEqual(max(map(len, lines[at - 1:])), 100)
        self.assertEqual([line.split() for line in lines[at - 1:at + 1]], [
            "mean negative sink row noise".split(),
            "layer sparse focus abs mass entropy mass max cancel lambda similar".split()])
        names = ("sparsity", "focus", "mean_abs", "negative_mass", "entropy", "sink_mass", "row_max",
                 "noise_cancelled", "lambda", "similarity")
        for layer, line in enumerate(lines[at + 1:]):
            number, *values = line.split()
            self.assertEqual(number, str(layer))
            for name, value in zip(names, values, strict=True):
                self.assertAlmostEqual(float(value), report["attention"][f"layer.{layer}.{name}"], delta=1e-4)
        self.assertEqual(len(lines) - at - 1, 2)
        result = program("eval", "--model", self.whole / "model", "--data", self.folder / "corpus.txt",
                         "--seq-len", 128)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("rows have 128 tokens, but the model was made for 32", result.stderr)

    def test_generation(self):
        model = self.whole / "model"
        first = program("generate", "--model", model, "--prompt", "alpha ", "--max-new-tokens", 12)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertTrue(first.stdout.startswith("alpha "))
        again = program("generate", "--model", model, "--prompt", "alpha ", "--max-new-tokens", 12,
                        "--json")
        result = json.loads(again.stdout)["results"][0]
        self.assertEqual("alpha " + result["text"] + "\n", first.stdout)
        ids = program("generate", "--model", model, "--prompt-ids",
                      ",".join(map(str, result["prompt_ids"])), "--max-new-tokens", 12, "--json")
        self.assertEqual(json.loads(ids.stdout)["results"][0]["ids"], result["ids"])
        prompts = self.folder / "prompts.txt"
        prompts.write_text("alpha \nbeta gam\n")
        many = json.loads(program("generate", "--model", model, "--input", prompts,
                                  "--max-new-tokens", 12, "--json").stdout)["results"]
        self.assertEqual(len(many), 2)
        self.assertEqual(many[0]["ids"], result["ids"])
        self.assertEqual(first.stderr, "")
        long = program("generate", "--model", model, "--prompt", "alpha ", "--max-new-tokens", 40,
                       "--json")
        self.assertIn("but the model was made for 32", long.stderr)
        stop = result["text"][2:4]
        stopped = program("generate", "--model", model, "--prompt", "alpha ", "--max-new-tokens",
                          12, "--stop", stop, "--json")
        text = json.loads(stopped.stdout)["results"][0]["text"]
        self.assertEqual(text, result["text"][:result["text"].index(stop)])

    def test_generation_refuses_what_cannot_be(self):
        model = self.whole / "model"
        for arguments in (["--prompt-ids", "999"], ["--prompt", "a", "--top-p", "0"],
                          ["--prompt", "a", "--prompt-ids", "1"], [],
                          ["--input", "/nowhere"], ["--prompt", ""]):
            result = program("generate", "--model", model, *arguments)
            self.assertIn(result.returncode, (1, 2), arguments)
            self.assertNotEqual(result.stderr, "", arguments)
        result = program("generate", "--model", self.folder, "--prompt", "a")
        self.assertEqual(result.returncode, 1)
        self.assertIn("config.json", result.stderr)


if __name__ == "__main__":
    unittest.main()
