# SPDX-License-Identifier: Apache-2.0
"""Runs verbs with several processes over Gloo and compares losses and files with those of one process."""
import json
import os
import socket
import subprocess
import unittest
import unittest.mock

import torch
from process_jobs import PROGRAM, Jobs, weights_of


class Distributed(Jobs):
    def test_losses_are_those_of_one_process(self):
        settings = ["train.steps=50", "train.eval_every=25", "train.checkpoint_every=50"]
        one = self.train("one", 1, *settings)
        for size, shard in ((2, "none"), (2, "optimizer"), (2, "gradients"), (2, "parameters"), (4, "none"),
                            (4, "optimizer"), (4, "gradients"), (4, "parameters")):
            with self.subTest(size=size, shard=shard):
                many = self.train(f"{shard}-{size}", size, *settings, f"train.shard={shard}")
                self.assert_same_course(many, one)
                weights, others = weights_of(one), weights_of(many)
                self.assertEqual(weights.keys(), others.keys())
                for name, weight in weights.items():
                    torch.testing.assert_close(others[name], weight, rtol=0, atol=1e-4)

    def test_a_group_of_one_process_gives_the_same_bits(self):
        out = str(self.folder / "group")
        (code, _, error), = self.finish(self.start(1, lambda rank: [
            "--config", str(self.file), "--out", out, "--set", "train.shard=gradients"]))
        self.assertEqual(code, 0, error)
        self.assert_same_bits(self.folder / "group", self.train("alone", 1))
        info = json.loads(self.finish(self.start(1, lambda rank: ["--json"], [*PROGRAM, "info"]))[0][1])
        self.assertEqual(info["job"]["processes"], 1)

    def test_accumulated_micro_batches(self):
        settings = ["train.accumulate=3", "train.batch_size=4", "train.steps=8", "train.checkpoint_every=8"]
        one = self.train("one", 1, *settings)
        self.assert_same_course(self.train("two", 2, *settings, "train.shard=gradients"), one)
        # Layers run a second time in the backward, and their weights come for every micro-batch.
        self.assert_same_course(self.train("three", 2, *settings, "train.shard=parameters",
                                           "train.activation_checkpointing=true", "train.stats_every=4"), one)

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

    def test_resume_with_as_many_processes_gives_the_same_bits(self):
        for shard in ("gradients", "parameters"):
            whole = self.train(f"{shard}-whole", 2, f"train.shard={shard}")
            halves = f"{shard}-halves"
            self.train(halves, 2, f"train.shard={shard}", "train.steps=10")
            self.assert_same_bits(self.train(halves, 2, "train.steps=20", resume=True), whole)

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

    def test_classes_with_weights(self):
        self.write_examples("classify", "dropout = 0.0\nclass_weights = \"balanced\"")
        one = self.train("one", 1)
        self.assert_same_course(self.train("micro", 1, "train.batch_size=4", "train.accumulate=2"), one)
        self.assert_same_course(self.train("two", 2), one)
        self.assert_same_course(self.train("both", 2, "train.shard=parameters", "train.batch_size=4",
                                           "train.accumulate=2"), one)

    def test_summaries(self):
        self.write_examples("summarize", "")
        # Documents and summaries have several lengths, so ranks have different shares of the maps' rows.
        settings = ["train.sparsity_weight=0.1", "train.focus_weight=0.1"]
        one = self.train("one", 1, *settings)
        self.assert_same_course(self.train("two", 2, "train.shard=gradients", *settings), one)

    def random_states(self, folder, step):
        files = (folder / "checkpoints" / f"step-{step}").glob("rank-*/random.safetensors")
        return {path.parent.name: path.read_bytes() for path in files}

    def test_every_process_draws_its_own_dropout(self):
        self.write_examples("classify", "dropout = 0.5")
        out = self.train("out", 2, "train.steps=10")
        states = self.random_states(out, 10)
        self.assertEqual(len(states), 2)
        self.assertEqual(len(set(states.values())), 2, "both ranks drew the same")
        self.train("out", 4, "train.steps=20", resume=True)
        states = self.random_states(out, 20)
        self.assertEqual(len(states), 4)
        self.assertEqual(len(set(states.values())), 4, "new ranks drew the same as others")

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
        plan = ["train", "--config", str(self.file), "--set", "train.batch_size=4096", "--dry-run"]
        alone, each = self.results(1, *plan), self.results(2, *plan)
        self.assertEqual((alone["processes"], each["processes"]), (1, 2))
        self.assertLess(each["memory_bytes"], alone["memory_bytes"], "a process has half of the rows")
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


if __name__ == "__main__":
    unittest.main()
