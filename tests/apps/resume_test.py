# SPDX-License-Identifier: Apache-2.0
"""Tests runs that are stopped, killed, damaged and resumed, and verbs that run out of memory."""
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from train_test import Runs, program, start, wait_until_training

KILLS = int(os.environ.get("DIFFATTN_TEST_KILLS", "8"))
ALLOCATION_LIMIT = os.environ["DIFFATTN_ALLOCATION_LIMIT"]
# AddressSanitizer has its own malloc and reserves terabytes of addresses.
OWN_MEMORY = unittest.skipIf("ASAN_OPTIONS" in os.environ, "AddressSanitizer manages the memory")


class Resuming(Runs):
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
            process = start("train", "--config", config, "--out", run, "--set",
                            "train.eval_every=0")
            wait_until_training(process, run)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn("--resume", errors)
            latest = run / "checkpoints" / (run / "checkpoints/latest").read_text().strip()
            self.assertTrue(latest.is_dir())
            result = program("generate", "--model", run / "model", "--prompt", "a")
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"its newest checkpoint is {latest}", result.stderr)
            result = program("generate", "--model", run, "--prompt", "a", "--max-new-tokens", 2)
            self.assertEqual(result.returncode, 0, result.stderr)  # the newest checkpoint

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
        self.assertIn("got one that holds a run", again.stderr)

    def copy_of_run(self, name):
        run = self.folder / name
        shutil.copytree(self.whole, run)
        return run

    def test_a_damaged_checkpoint_is_named_and_the_one_before_continues(self):
        run = self.copy_of_run("flipped")
        weights = run / "checkpoints/step-24/model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-100] ^= 4
        weights.write_bytes(data)
        result = program("train", "--resume", run)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, f"^diffattn: {re.escape(str(weights))}: expected the checksum "
                         "[0-9a-f]{16} .*, got [0-9a-f]{16}; this checkpoint is damaged, continue from an "
                         "intact one with --from step-21\n$")
        result = program("train", "--resume", run, "--from", "step-21")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("continues after step 21", result.stderr)
        self.assert_same_end(run)
        for name, code, expected in (("step-7", 1, "got no such folder; complete ones: step-"),
                                     ("7", 2, "--from: expected the name of a checkpoint, step-N, got '7'")):
            result = program("train", "--resume", run, "--from", name)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(expected, result.stderr)

    def test_folders_and_lines_that_are_no_checkpoint_and_no_metrics_do_not_block(self):
        run = self.copy_of_run("littered")
        (run / "checkpoints/step-999").mkdir()
        shutil.copytree(run / "checkpoints/step-21", run / "checkpoints/step-30")
        (run / "checkpoints/step-30/complete").unlink()
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(b"garbage\n\xff\x00\n")
        result = program("train", "--resume", run, "--set", "train.steps=25")
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in ("step-999", "step-30"):
            self.assertIn(f"{name}: never became complete and is not used\n", result.stderr)
        self.assertIn("metrics.jsonl: removed 2 lines", result.stderr)
        self.assertIn("continues after step 24", result.stderr)
        text = (run / "metrics.jsonl").read_text()
        self.assertEqual(json.loads(text.splitlines()[-1])["step"], 25)

    def test_another_batch_size_is_allowed_by_name(self):
        run = self.copy_of_run("batch")
        settings = ("--set", "train.steps=25", "--set", "train.batch_size=1")
        result = program("train", "--resume", run, *settings)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("= 2 rows for each update, as in the checkpoint, got 1 * 1 = 1; --change-batch-size",
                      result.stderr)
        result = program("train", "--resume", run, *settings, "--change-batch-size")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_removed_run_folder_ends_the_run(self):
        config = self.write_config("removed.toml", steps=1000000)
        run = self.folder / "removed"
        process = start("train", "--config", config, "--out", run, "--set", "train.eval_every=0", "--set",
                        "train.checkpoint_every=1000000")
        wait_until_training(process, run)
        run.rename(self.folder / "elsewhere")
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn(f"{run}: the run folder was removed or replaced", errors)
        self.assertFalse(run.exists())

    def test_a_loss_that_stays_not_finite_ends_the_run_and_names_what_is_left(self):
        settings = ("--set", "model.initializer_range=0", "--set", "model.rms_norm_eps=0",
                    "--set", "train.eval_every=0")
        for every, left in ((2, r"The checkpoint .*/checkpoints/step-\d+ is intact"),
                            (1000, "No checkpoint passed a check")):
            run = self.folder / f"diverged{every}"
            result = program("train", "--config", self.config, "--out", run, *settings, "--set",
                             f"train.checkpoint_every={every}")
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertRegex(result.stderr, f"loss or gradient was not finite 8 times in a row. {left}. Lower "
                             f"train.learning_rate or train.clip_norm and --resume {run}\n")
            self.assertFalse((run / "model").exists())

    def test_a_finished_run_says_so(self):
        result = program("train", "--resume", self.whole)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("step 24 of 24", result.stderr)
        self.assert_same_end(self.whole)

    def test_a_run_goes_on_with_the_data_it_began_with(self):
        for setting in ("seed=4", f"data.train={self.config}"):
            result = program("train", "--resume", self.whole, "--set", "train.steps=25", "--set", setting)
            self.assertEqual(result.returncode, 1, setting)
            self.assertRegex(result.stderr, "key .* as in the checkpoint, got .*; .*data and settings")

    @OWN_MEMORY
    def test_out_of_memory_is_exit_code_4_with_what_to_change(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        result = program("train", "--config", self.config, "--out", self.folder / "large",
                         "--set", "train.batch_size=8192", "--set", "train.seq_len=2048",
                         preexec_fn=limit)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("train.batch_size", result.stderr)
        self.assertIn("activation_checkpointing", result.stderr)

    def texts_model(self, task, *keys):
        """Trains a tiny model on two texts; returns its folder, --input and a file for it."""
        texts = self.folder / f"{task}.jsonl"
        texts.write_text("".join(json.dumps(dict(zip(keys, text, strict=True))) + "\n"
                                 for text in (("alpha beta", "alpha"), ("beta alpha", "beta"))))
        result = program("train", "--out", self.folder / task, "--set", f"task={task}", "--set",
                         f"data.train={texts}", "--set", "model.hidden_size=32", "--set",
                         "model.num_hidden_layers=1", "--set", "train.seq_len=32", "--set", "train.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.folder / task, "--input", texts

    @OWN_MEMORY
    def test_every_verb_that_runs_out_of_memory_says_what_to_change(self):
        """Allocations above a limit fail, as on a machine without memory."""
        model, corpus = self.whole / "model", self.folder / "corpus.txt"
        generated = ("--set", "model.hidden_size=32", "--set", "model.num_hidden_layers=1", "--set",
                     "train.steps=1")
        for arguments, change in (
                (["train", "--config", self.config, "--out", self.folder / "none"], "train.batch_size"),
                (["eval", "--model", model, "--data", corpus], "--batch-size"),
                (["generate", "--model", model, "--prompt", "a"], "--max-new-tokens"),
                (["analyze", "--model", model, "--text", "alpha beta"], "--seq-len"),
                (["convert", "--to", "microsoft", model, self.folder / "converted"], "largest tensor"),
                (["compare", "--task", "recall", *generated], "--jobs"),
                (["bench", "module", "--seq", "64", "--repeat", "1"], "--batch"),
                (["classify", "--model", *self.texts_model("classify", "text", "label")], "--batch-size"),
                (["summarize", "--model", *self.texts_model("summarize", "document", "summary")], "--beams"),
                (["serve", "--model", model, "--port", "0"], "--cache-tokens"),
                (["tokenize", corpus, "--tokenizer", "bytes", "--out", self.folder / "tokens"], "less text")):
            result = program(*arguments, env={**os.environ, "LD_PRELOAD": ALLOCATION_LIMIT,
                                              "DIFFATTN_TEST_ALLOCATION": str(1 << 14)})
            self.assertEqual(result.returncode, 4, (arguments, result.stderr))
            advice = next(line for line in result.stderr.splitlines() if "To use less memory, " in line)
            self.assertIn(change, advice)
            self.assertNotIn("terminate called", result.stderr)


if __name__ == "__main__":
    unittest.main()
