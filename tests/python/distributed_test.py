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
import unittest.mock

import torch

if not torch.distributed.is_available():
    print("skipped: this torch has no torch.distributed")
    raise SystemExit(77)  # ctest shows it as skipped

from diffattn import distributed

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
PROGRAM = [sys.executable, "-m", "diffattn"]
ENDED = "another process has ended"
TRAIN = [*PROGRAM, "train"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def environment(rank, size, port):
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def weights_of(folder):
    """Returns the float32 tensors of a model folder by name, flat."""
    data = (folder / "model" / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[begin + tensor["data_offsets"][0]:begin + tensor["data_offsets"][1]]),
                                   dtype=torch.float32) for name, tensor in header.items()}


class Distributed(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.file = self.folder / "run.toml"
        self.file.write_text(RUN)

    def start(self, size, words_of, command=TRAIN, ranks=None, port=None, prefix_of=lambda rank: [], **variables):
        """Starts `size` processes, or only some `ranks`; words_of(rank) are the words behind the command."""
        port = port or free_port()
        return [subprocess.Popen([*prefix_of(rank), *command, *words_of(rank)], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env={**environment(rank, size, port), **variables})
                for rank in ranks or range(size)]

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
        settings = ["train.steps=50", "train.eval_every=25", "train.checkpoint_every=50"]
        one = self.train("one", 1, *settings)
        for size, shard in ((2, "none"), (2, "optimizer"), (4, "gradients"), (2, "parameters"), (4, "parameters")):
            with self.subTest(size=size, shard=shard):
                many = self.train(f"{shard}-{size}", size, *settings, f"train.shard={shard}")
                self.assert_same_course(many, one)
                weights, others = weights_of(one), weights_of(many)
                self.assertEqual(weights.keys(), others.keys())
                for name, weight in weights.items():
                    torch.testing.assert_close(others[name], weight, rtol=0, atol=1e-4)

    def test_accumulated_micro_batches(self):
        settings = ["train.accumulate=3", "train.batch_size=4", "train.steps=8", "train.checkpoint_every=8"]
        one = self.train("one", 1, *settings)
        self.assert_same_course(self.train("two", 2, *settings, "train.shard=gradients"), one)
        # Layers run a second time in the backward, and their weights come for every micro-batch.
        self.assert_same_course(self.train("three", 2, *settings, "train.shard=parameters",
                                           "train.activation_checkpointing=true", "train.stats_every=4"), one)

    def write_text(self):
        """Makes the run read short documents, which share the rows of a batch."""
        text = "".join(json.dumps({"text": " ".join(str(n * n) for n in range(i, i + 3 + i % 40))}) + "\n"
                       for i in range(300))
        (self.folder / "text.jsonl").write_text(text)
        lines = RUN.replace('task = "recall"', 'task = "lm"').split("[recall]")[0]
        self.file.write_text(f"{lines}[data]\ntrain = \"{self.folder}/text.jsonl\"\n[train]" + RUN.split("[train]")[1])

    def test_processes_that_share_the_tokens_of_a_row(self):
        # Four processes do not divide the two heads, so they gather keys.
        cases = [(2, 2, "none"), (4, 2, "parameters"), (4, 4, "gradients")]
        for text in (False, True):
            if text:
                self.write_text()
            one = self.train(f"one-{text}", 1)
            for size, together, shard in cases[1:] if text else cases:
                with self.subTest(text=text, size=size, together=together):
                    self.assert_same_course(self.train(f"{text}-{size}-{together}", size, f"train.shard={shard}",
                                                       f"train.context_parallel={together}"), one)

    def test_processes_that_cannot_share_tokens(self):
        out = str(self.folder / "out")
        for setting, message in (("train.context_parallel=3", "expected a divisor of the 2 processes, got 3"),
                                 ("task=classify", 'expected 1 for task = "classify"'),
                                 ("model.attention=introspective", "does not share the tokens of a row"),
                                 ("model.attention=dint", "does not share the tokens of a row")):
            words = ["--config", str(self.file), "--out", out, "--set", "train.context_parallel=2", "--set", setting]
            for code, _, error in self.finish(self.start(2, lambda rank, words=words: words)):
                self.assertIn(code, (1, 2))
                self.assertIn(message, error)

    def test_resume_with_as_many_processes_gives_the_same_bits(self):
        whole = self.metrics(self.train("whole", 2, "train.shard=gradients"))
        self.train("halves", 2, "train.shard=gradients", "train.steps=10")
        halves = self.metrics(self.train("halves", 2, "train.steps=20", resume=True))
        for step in whole:
            self.assertEqual(halves[step]["loss"], whole[step]["loss"], f"step {step}")

    def test_resume_with_other_processes(self):
        self.write_text()
        one = self.train("one", 1)
        for first, shard, then, other in ((1, "none", 2, "gradients"), (4, "gradients", 1, "none"),
                                          (2, "parameters", 4, "optimizer"), (4, "none", 2, "parameters")):
            name = f"{first}-{then}"
            out = self.train(name, first, "train.steps=10", f"train.shard={shard}")
            parts = sorted(path.parent.name for path in out.glob("checkpoints/step-10/*/optimizer.safetensors"))
            self.assertEqual(len(parts), first if shard != "none" else 1, parts)
            self.assert_same_course(
                self.train(name, then, "train.steps=20", f"train.shard={other}", resume=True), one)

    def test_a_slow_network_with_short_messages(self):
        library = os.environ.get("DIFFATTN_SHORT_NETWORK_LIBRARY")
        self.assertTrue(library, "ctest sets DIFFATTN_SHORT_NETWORK_LIBRARY")
        plain = self.metrics(self.train("plain", 2, "train.shard=parameters", "train.context_parallel=2"))
        marks = self.folder / "marks"
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=library, DIFFATTN_SHORT_NETWORK=str(marks)):
            slow = self.metrics(self.train("slow", 2, "train.shard=parameters", "train.context_parallel=2"))
        self.assertGreater(marks.stat().st_size, 10, "the library shortened no calls")
        for step in plain:
            self.assertEqual(slow[step]["loss"], plain[step]["loss"], f"step {step}")

    def test_a_damaged_part_is_named(self):
        out = self.train("out", 2, "train.shard=gradients", "train.steps=10")
        part = out / "checkpoints" / "step-10" / "rank-00001" / "optimizer.safetensors"
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        for code, _, error in self.finish(self.start(2, lambda rank: ["--resume", str(out)])):
            self.assertEqual(code, 1, error)
        results = self.finish([subprocess.Popen([*TRAIN, "--resume", str(out)], text=True, stdout=subprocess.PIPE,
                                                stderr=subprocess.PIPE)])
        self.assertEqual(results[0][0], 1)
        self.assertIn("rank-00001/optimizer.safetensors", results[0][2])

    def test_a_rank_that_cannot_write_its_part(self):
        out = self.train("out", 2, "train.shard=gradients", "train.steps=10")
        results = self.finish(self.start(
            2, lambda rank: ["--resume", str(out), "--set", "train.steps=20"],
            prefix_of=lambda rank: ["prlimit", "--fsize=4096"] if rank == 1 else []))
        self.assertEqual([code for code, _, _ in results], [1, 1], results)
        self.assertIn("another process could not write its part of the checkpoint", results[0][2])
        self.assertIn("rank-00001/optimizer.safetensors", results[1][2])
        self.assertEqual((out / "checkpoints" / "latest").read_text().strip(), "step-10")
        self.train("out", 2, "train.steps=20", resume=True)  # continues from the last whole checkpoint

    def results(self, size, *words):
        """Runs a verb with --json and returns what rank 0 prints."""
        if size == 1:
            done = subprocess.run([*PROGRAM, *words, "--json"], text=True, capture_output=True, check=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            return json.loads(done.stdout)
        results = self.finish(self.start(size, lambda rank: [*words, "--json"], PROGRAM))
        for code, _, error in results:
            self.assertEqual(code, 0, error)
        self.assertEqual([out for _, out, _ in results[1:]], [""] * (size - 1), "only rank 0 prints")
        self.notes = [error for _, _, error in results]
        return json.loads(results[0][1])

    def test_verbs_of_several_processes(self):
        self.write_text()
        model = self.train("out", 1, "train.steps=5", "train.eval_every=5") / "model"
        words = ["eval", "--model", str(model), "--data", str(self.folder / "text.jsonl"), "--batch-size", "4"]
        one, two = self.results(1, *words), self.results(2, *words)
        self.assertEqual(two["tokens"], one["tokens"])
        self.assertAlmostEqual(two["loss"] / one["loss"], 1, delta=1e-9)
        self.assertEqual(two["accuracy"], one["accuracy"])
        self.assertEqual(two["attention"], one["attention"])
        for mine, exact in zip(two["buckets"], one["buckets"]):
            self.assertEqual(mine["tokens"], exact["tokens"])
            self.assertAlmostEqual(mine["loss"], exact["loss"], delta=1e-9)
        job = self.results(2, "info")["job"]
        self.assertEqual(job, {"processes": 2, "hosts": [socket.gethostname()] * 2})
        sizes = "--layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --batch 4 --repeat 1 --attention diffllama"
        step = self.results(2, "bench", "step", *sizes.split(), "--shard", "parameters")
        self.assertGreater(step["points"][0]["routes"][0]["tokens_per_second"], 0)

    def without_times(self, value):
        """Removes times from a result of compare, which differ from run to run."""
        if isinstance(value, dict):
            return {key: self.without_times(inner) for key, inner in value.items()
                    if key not in ("times", "train_seconds")}
        return [self.without_times(inner) for inner in value] if isinstance(value, list) else value

    def test_compare_divides_the_runs(self):
        # Six runs, and before them four that try learning rates. Rank 1 trains the Transformer of the first seed.
        words = ["compare", "--config", str(self.file), "--set", "train.steps=6", "--set", "train.eval_every=3",
                 "--seeds", "1,2,3", "--learning-rates", "1e-3,3e-3", "--keep-models", "--out"]
        one = self.results(1, *words, str(self.folder / "one"))
        two = self.results(2, *words, str(self.folder / "two"))
        self.assertEqual(self.without_times(two), self.without_times(one))
        self.assertTrue((self.folder / "two" / "report.html").exists())
        self.assertIn("transformer seed 1: validation loss", self.notes[0], "rank 0 tells of the runs of others")
        self.assertNotIn("validation loss", self.notes[1])
        curves = [(self.folder / name / "curves.csv").read_text() for name in ("one", "two")]
        self.assertEqual(curves[1], curves[0])
        for model in ("diffllama-seed3", "transformer-seed1"):
            exact, mine = (weights_of(self.folder / name / "models" / model) for name in ("one", "two"))
            self.assertTrue(all(torch.equal(mine[name], exact[name]) for name in exact), model)

    def test_compare_with_a_rank_that_fails(self):
        self.write_text()
        results = self.finish(self.start(2, lambda rank: [
            "--config", str(self.file), "--set", "train.steps=3", "--as-given", "--models",
            "diffllama,transformer:data.valid_fraction=0"], [*PROGRAM, "compare"]))
        self.assertEqual([code for code, _, _ in results], [1, 2], results)
        self.assertIn(ENDED, results[0][2])
        self.assertIn("rank 1 of 2: data.valid_fraction: expected validation data to compare models", results[1][2])

    def test_processes_that_do_not_meet(self):
        def words(rank):
            return ["--config", str(self.file), "--out", str(self.folder / "out")]

        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            (code, _, error), = self.finish(self.start(2, words, ranks=[0], port=port))
            self.assertEqual(code, 1)
            self.assertIn(f"rank 0 of 2: MASTER_PORT: port {port} of 127.0.0.1 is in use by another process", error)
        started = time.monotonic()
        results = self.finish(self.start(4, words, ranks=[0, 2], DIFFATTN_TIMEOUT="8"))
        self.assertEqual([code for code, _, _ in results], [1, 1])
        self.assertRegex(results[0][2], "rank 0 of 4: rank 1, 3 of 4 did not come to 127.0.0.1:[0-9]+ within 8 s")
        self.assertRegex(results[1][2], "rank 1, 3 of 4 did not come|rank 0 has ended while this one waited")
        (code, _, error), = self.finish(self.start(2, words, ranks=[1], DIFFATTN_TIMEOUT="2"))
        self.assertEqual(code, 1)
        self.assertRegex(error, "rank 1 of 2: rank 0 is missing: nobody answered at 127.0.0.1:[0-9]+ within 2 s")
        self.assertLess(time.monotonic() - started, 60)

    def test_settings_of_the_group(self):
        self.assertEqual(distributed.backend_of(cuda=True, nccl=True), "cpu:gloo,cuda:nccl")
        self.assertEqual(distributed.backend_of(cuda=True, nccl=False), "cpu:gloo")
        self.assertEqual(distributed.backend_of(cuda=False, nccl=True), "cpu:gloo")
        self.assertEqual(distributed.timeout_of({}), 60)
        self.assertEqual(distributed.timeout_of({"DIFFATTN_TIMEOUT": "600"}), 600)
        for text in ("0", "a minute", "-1"):
            with self.assertRaisesRegex(RuntimeError, "DIFFATTN_TIMEOUT: expected a number of seconds above 0, got"):
                distributed.timeout_of({"DIFFATTN_TIMEOUT": text})

    def test_a_folder_that_holds_a_run(self):
        out = self.train("out", 2, "train.steps=2", "train.checkpoint_every=2", "train.eval_every=0")
        results = self.finish(self.start(2, lambda rank: ["--config", str(self.file), "--out", str(out)]))
        self.assertEqual([code for code, _, _ in results], [2, 1], results)
        self.assertIn("expected a folder without a run, got one that holds a run", results[0][2])
        self.assertIn(ENDED, results[1][2])

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
        out = self.train("out", 1, "train.steps=1", "train.eval_every=0")
        new, old = ["--config", str(out / "config.toml"), "--out", str(self.folder / "new")], ["--resume", str(out)]
        for code, _, error in self.finish(self.start(2, lambda rank: old if rank else new)):
            self.assertEqual(code, 1)
            self.assertIn("--resume, --from, --change-batch-size or --dry-run: expected the same on all ranks", error)

    def test_the_others_stop_when_a_rank_is_killed(self):
        out = self.folder / "out"
        processes = self.start(2, lambda rank: ["--config", str(self.file), "--out", str(out), "--set",
                                                "train.steps=1000000", "--set", "train.eval_every=0"])
        self.wait_for(out / "checkpoints" / "latest")
        processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for rank, (code, _, error) in enumerate(self.finish(processes)):
            if rank == 1:
                continue
            self.assertEqual(code, 1, error)
            self.assertRegex(error, f"rank {rank} of 2.*{ENDED}")
        self.assertLess(time.monotonic() - killed, 60)
        self.assertTrue((out / "checkpoints" / "latest").exists())

    def torchrun(self, *words):
        """Starts torchrun with two processes of `train`."""
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
             "-m", "diffattn", "train", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, path):
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)

    def test_torchrun_restarts_a_run_whose_process_is_killed(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "config.toml").write_text(RUN)
        run = self.torchrun("--resume", str(out), "--set", "train.steps=400", "--set", "train.eval_every=0", "--set",
                            "train.shard=gradients")
        self.wait_for(out / "checkpoints" / "latest")
        workers = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        self.assertEqual(len(workers), 2)
        os.kill(int(workers[1]), signal.SIGKILL)
        _, error = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0, error)
        self.assertRegex(error, "continues after step [1-9][0-9]*")
        self.assertEqual((out / "checkpoints" / "latest").read_text().strip(), "step-400")

    def test_torchrun_stops_at_sigterm_with_a_checkpoint(self):
        out = self.folder / "out"
        run = self.torchrun("--config", str(self.file), "--out", str(out), "--set", "train.steps=1000000", "--set",
                            "train.checkpoint_every=1000000", "--set", "train.eval_every=0")
        self.wait_for(out / "metrics.jsonl")
        time.sleep(0.5)
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=120)
        self.assertRegex(error, "stopped at step [0-9]+; continue with")
        self.assertTrue((out / "checkpoints" / "latest").exists(), error)


if __name__ == "__main__":
    unittest.main()
