# SPDX-License-Identifier: Apache-2.0
"""Trains with several processes over Gloo and compares losses, files and failures with one process."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import torch
from safetensors.torch import load_file

if not torch.distributed.is_available():
    print("skipped: this torch has no torch.distributed")
    raise SystemExit(77)  # ctest shows it as skipped

RUN = """task = "recall"
seed = 5
[model]
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
[recall]
pairs = 4
distractors = 8
[train]
steps = 20
batch_size = 8
seq_len = 64
learning_rate = 3e-3
schedule = "constant"
warmup_steps = 1
log_every = 1
eval_every = 10
eval_batches = 2
checkpoint_every = 10
"""
TRAIN = [sys.executable, "-m", "diffattn", "train"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def environment(rank, size, port):
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


class Distributed(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.file = self.folder / "run.toml"
        self.file.write_text(RUN)

    def start(self, size, words_of):
        """Starts `size` processes; words_of(rank) are the words behind `train`."""
        port = free_port()
        return [subprocess.Popen([*TRAIN, *words_of(rank)], env=environment(rank, size, port), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(size)]

    def finish(self, processes):
        return [(process.returncode, *texts) for process, texts in
                [(process, process.communicate(timeout=300)) for process in processes]]

    def train(self, name, size, *settings, resume=False):
        """Trains into folder `name` and returns it."""
        out = self.folder / name
        words = ["--resume", str(out)] if resume else ["--config", str(self.file), "--out", str(out)]
        for setting in settings:
            words += ["--set", setting]
        if size == 1:
            results = self.finish([subprocess.Popen([*TRAIN, *words], text=True, stdout=subprocess.PIPE,
                                                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                                                    stderr=subprocess.PIPE)])
        else:
            results = self.finish(self.start(size, lambda rank: words))
        for rank, (code, out_text, error) in enumerate(results):
            self.assertEqual(code, 0, f"rank {rank} of {size}: {error}")
            if rank > 0:
                self.assertEqual(out_text, "", "only rank 0 prints")
        return out

    def metrics(self, folder):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found = {}
        for line in lines:
            found.setdefault(line["step"], {}).update(line)
        return found

    def assert_same_course(self, got, want, tolerance=1e-6):
        got, want = self.metrics(got), self.metrics(want)
        self.assertEqual(got.keys(), want.keys())
        for step in want:
            for key in ("loss", "gradient_norm", "valid_loss", "tokens"):
                if key in want[step]:
                    bound = tolerance * (10 if key == "gradient_norm" else 1)
                    self.assertAlmostEqual(got[step][key] / want[step][key], 1, delta=bound, msg=f"{key}, step {step}")

    def test_losses_are_those_of_one_process(self):
        one = self.train("one", 1)
        for size, shard in ((2, "none"), (2, "optimizer"), (4, "gradients")):
            with self.subTest(size=size, shard=shard):
                many = self.train(f"{shard}-{size}", size, f"train.shard={shard}")
                self.assert_same_course(many, one)
                weights, others = load_file(one / "model" / "model.safetensors"), load_file(
                    many / "model" / "model.safetensors")
                self.assertEqual(weights.keys(), others.keys())
                for name, weight in weights.items():
                    torch.testing.assert_close(others[name], weight, rtol=0, atol=1e-4)

    def test_accumulated_micro_batches(self):
        settings = ["train.accumulate=3", "train.batch_size=4", "train.steps=8", "train.checkpoint_every=8"]
        one = self.train("one", 1, *settings)
        self.assert_same_course(self.train("two", 2, *settings, "train.shard=gradients"), one)

    def test_resume_with_as_many_processes_gives_the_same_bits(self):
        whole = self.metrics(self.train("whole", 2, "train.shard=gradients"))
        self.train("halves", 2, "train.shard=gradients", "train.steps=10")
        halves = self.metrics(self.train("halves", 2, "train.steps=20", resume=True))
        for step in whole:
            self.assertEqual(halves[step]["loss"], whole[step]["loss"], f"step {step}")

    def test_resume_with_other_processes(self):
        one = self.train("one", 1)
        for first, then in ((1, 2), (4, 1)):
            name = f"{first}-{then}"
            self.train(name, first, "train.steps=10", "train.shard=gradients")
            self.assert_same_course(self.train(name, then, "train.steps=20", resume=True), one)

    def test_batches_that_do_not_divide(self):
        out = str(self.folder / "out")
        for code, _, error in self.finish(self.start(2, lambda rank: [
                "--config", str(self.file), "--out", out, "--set", "train.batch_size=5"])):
            self.assertEqual(code, 2)
            self.assertIn("train.batch_size: expected a multiple of the 2 processes, got 5", error)

    def test_different_run_files(self):
        out = str(self.folder / "out")
        for code, _, error in self.finish(self.start(2, lambda rank: [
                "--config", str(self.file), "--out", out, "--set", f"seed={6 + rank}"])):
            self.assertEqual(code, 1)
            self.assertIn("expected the same on all ranks, got another one on rank 1 than on rank 0", error)

    def test_the_others_stop_when_a_rank_is_killed(self):
        out = self.folder / "out"
        processes = self.start(2, lambda rank: ["--config", str(self.file), "--out", str(out), "--set",
                                                "train.steps=1000000", "--set", "train.eval_every=0"])
        deadline = time.monotonic() + 120
        while not (out / "checkpoints" / "latest").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for rank, (code, _, error) in enumerate(self.finish(processes)):
            if rank == 1:
                continue
            self.assertEqual(code, 1, error)
            self.assertRegex(error, f"rank {rank} of 2.*another process has ended")
        self.assertLess(time.monotonic() - killed, 60)
        self.assertTrue((out / "checkpoints" / "latest").exists())

    def test_torchrun_stops_at_sigterm_with_a_checkpoint(self):
        out = self.folder / "out"
        run = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "diffattn",
             "train", "--config", str(self.file), "--out", str(out), "--set", "train.steps=1000000", "--set",
             "train.checkpoint_every=1000000", "--set", "train.eval_every=0"],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=120)
        self.assertRegex(error, "stopped at step [0-9]+; continue with")
        self.assertTrue((out / "checkpoints" / "latest").exists(), error)


if __name__ == "__main__":
    unittest.main()
