# SPDX-License-Identifier: Apache-2.0
"""Training, evaluation and generation as a person meets them: runs that are stopped, killed and
resumed, exit codes, what lands in the folders."""
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
KILLS = int(os.environ.get("DIFFATTN_TEST_KILLS", "8"))

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


def start(*arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def wait_until_training(process, run):
    while not (run / "metrics.jsonl").exists():
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.05)


class Training(unittest.TestCase):
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
                     "checkpoints/step-24/optimizer.safetensors",
                     "checkpoints/step-24/state.json", "model/model.safetensors"):
            self.assertEqual((self.whole / name).read_bytes(), (run / name).read_bytes(), name)

    def test_the_estimate_of_memory_is_near_what_a_run_takes(self):
        out = self.folder / "memory"
        sizes = ["--set", "model.hidden_size=256", "--set", "model.num_hidden_layers=4",
                 "--set", "train.batch_size=4", "--set", "train.seq_len=512",
                 "--set", "train.eval_every=0", "--set", "train.steps=2"]
        told = program("train", "--config", self.config, "--dry-run", "--json", *sizes)
        self.assertEqual(told.returncode, 0, told.stderr)
        estimate = json.loads(told.stdout)["memory_bytes"] / 2**20
        result = program("train", "--config", self.config, "--out", out, *sizes)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = (out / "metrics.jsonl").read_text().splitlines()
        measured = json.loads(lines[-1])["memory_mib"]
        self.assertLess(abs(estimate / measured - 1), 0.1, f"{estimate} MiB told, {measured} taken")

    def test_run_folder_has_what_is_promised(self):
        self.assertEqual(self.report["outcome"], "done")
        self.assertEqual(self.report["step"], 24)
        for name in ("config.toml", "metrics.jsonl", "checkpoints/latest", "model/config.json",
                     "model/tokenizer.json"):
            self.assertTrue((self.whole / name).is_file(), name)
        text = (self.whole / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertEqual(len(losses), 24)
        self.assertLess(losses[-1], losses[0])
        self.assertTrue(list(self.whole.glob("events.out.tfevents.*")))

    def test_killed_runs_resume_to_the_same_bits(self):
        generator = random.Random(int(os.environ.get("DIFFATTN_TEST_SEED", "5")))
        for attempt in range(KILLS):
            run = self.folder / f"killed{attempt}"
            process = start("train", "--config", self.config, "--out", run)
            time.sleep(generator.uniform(0.05, 1.2))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if not (run / "config.toml").exists():  # killed before the first step
                result = program("train", "--config", self.config, "--out", run)
            else:
                result = program("train", "--resume", run)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_same_end(run)

    def test_a_signal_saves_and_stops_with_exit_code_0(self):
        config = self.write_config("long.toml", steps=1000000)
        for number in (signal.SIGTERM, signal.SIGINT):
            run = self.folder / f"signal{number}"
            process = start("train", "--config", config, "--out", run)
            wait_until_training(process, run)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn("--resume", errors)
            self.assertTrue((run / "checkpoints/latest").exists())

    def test_two_runs_in_one_folder_are_refused(self):
        config = self.write_config("busy.toml", steps=1000000)
        run = self.folder / "busy"
        process = start("train", "--config", config, "--out", run)
        wait_until_training(process, run)
        result = program("train", "--config", config, "--out", run)
        process.terminate()
        process.communicate(timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"process {process.pid}", result.stderr)
        again = program("train", "--config", config, "--out", run)
        self.assertEqual(again.returncode, 2)
        self.assertIn("holds a run already", again.stderr)

    def test_dry_run_says_what_it_would_be(self):
        result = program("train", "--config", self.config, "--dry-run", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertEqual(plan["steps"], 24)
        self.assertEqual(plan["tokens_per_step"], 64)
        text = program("train", "--config", self.config, "--dry-run").stdout
        self.assertIn(str(plan["parameters"]), text)

    def test_wrong_settings_name_the_key(self):
        for setting, word in (("train.step=5", "train.steps"), ("train.steps=x", "an integer"),
                              ("train.steps", "key=value"), ("model.attention=nothing", "nothing"),
                              ("data.train=", "data.train"), ("model.hidden_size=33", "hidden_size"),
                              ("data.tokenizer=/nowhere", "/nowhere"),
                              ("task=dance", "task")):
            result = program("train", "--config", self.config, "--out", self.folder / "wrong",
                             "--set", setting)
            self.assertIn(result.returncode, (1, 2), setting)
            self.assertIn(word, result.stderr, setting)
            self.assertNotIn("terminate called", result.stderr)
        bad = self.folder / "bad.toml"
        bad.write_text("seed = 1\n[train]\nsteps 5\n")
        result = program("train", "--config", bad, "--out", self.folder / "wrong")
        self.assertEqual(result.returncode, 1)
        self.assertIn("line 3", result.stderr)

    def test_folder_that_cannot_be_written(self):
        result = program("train", "--config", self.config, "--out", "/proc/diffattn")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/proc/diffattn", result.stderr)

    def test_out_of_memory_is_exit_code_4_with_what_to_change(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        result = program("train", "--config", self.config, "--out", self.folder / "large",
                         "--set", "train.batch_size=8192", "--set", "train.seq_len=2048",
                         preexec_fn=limit)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("train.batch_size", result.stderr)
        self.assertIn("activation_checkpointing", result.stderr)

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
        names = lines[at].split()[1:]
        for layer, line in enumerate(lines[at + 1:]):
            number, *values = line.split()
            self.assertEqual(number, str(layer))
            for name, value in zip(names, values, strict=True):
                self.assertAlmostEqual(float(value), report["attention"][f"layer.{layer}.{name}"], delta=1e-4)
        self.assertEqual(len(lines) - at - 1, 2)

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
