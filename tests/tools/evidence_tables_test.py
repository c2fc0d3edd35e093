# SPDX-License-Identifier: Apache-2.0
"""benchmarks/evidence_tables.py on made-up runs, and on runs of the program beside its own results.json."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("DIFFATTN_PROGRAM", "")


def saved_run(model, seed, losses, rate=0.001, metrics=(), needles=(), steps=40, finite=True):
    """A saved run whose validation losses after each fourth of its updates are `losses`."""
    config = (f'task = "lm"\nseed = {seed}\n\n[model]\nattention = "{model}"\nhidden_size = 384\n\n[train]\n'
              f"steps = {steps}\nbatch_size = 10\naccumulate = 1\nseq_len = 1000\nlearning_rate = {rate}\n")
    points = [[steps * (i + 1) // len(losses), loss, loss, 0.5] for i, loss in enumerate(losses)]
    last = losses[-1]
    total = last * 100 if isinstance(last, float) else last
    return {"key": {"config": config},
            "result": {"seed": seed, "curve": points, "valid": [total, 50, 100, 1],
                       "metrics": list(metrics), "needles": list(needles), "attention_logits": [9, 8, 7, 1.5],
                       "hidden_states": [0, 0, 0, 0], "train_seconds": 30.0, "machine": "a GPU", "finite": finite}}


class EvidenceTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def run_tool(self, *folders):
        return subprocess.run([sys.executable, ROOT / "benchmarks/evidence_tables.py", *(folders or [self.root])],
                              capture_output=True, text=True)

    def lines(self, *folders):
        done = self.run_tool(*folders)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_rates(self):
        for model, losses in (("transformer", {0.001: 4.5, 0.002: 4.25, 0.004: 4.75}),
                              ("diffllama", {0.001: 4.5, 0.002: 4.25, 0.004: "nan"}),
                              ("microsoft_v2", {0.001: 4.5, 0.004: 4.0})):
            for rate, loss in losses.items():
                run = saved_run(model, 1011, [5.0, loss], rate)
                self.write(f"runs/{model}_at_{rate}-0123456789abcdef-seed1011.json", run)
        lines = self.lines()
        self.assertIn("## lm, width 384, 0.4 million tokens (a GPU)", lines)
        self.assertIn("| validation loss at rate | 0.001 | 0.002 | 0.004 |", lines)
        self.assertIn("| transformer | 4.5000 | **4.2500** | 4.7500 |", lines)
        self.assertIn("| diffllama | 4.5000 | **4.2500** | not finite |", lines)
        self.assertIn("| microsoft_v2 | 4.5000 | – | **4.0000** |", lines)
        notes = [line for line in lines if "at the end of those tried" in line]
        self.assertEqual(notes, ["diffllama: the best rate, 0.002, is at the end of those tried.",
                                 "microsoft_v2: the best rate, 0.004, is at the end of those tried."])

    def test_seeds(self):
        for model, ends in (("transformer", (4.0, 4.2, 4.1)), ("diffllama", (3.8, 3.9, 4.0)),
                            ("microsoft_v2", (4.0, 4.5, 4.25))):
            for seed, end in zip((11, 12, 13), ends):
                metrics = [["test.c.bits_per_byte", end / 4], ["test.prose.bits_per_byte", end / 2],
                           ["test.bits_per_byte", end / 3], ["loss_at.1", 9.0], ["loss_at.2", end]]
                run = saved_run(model, seed, [6.0, 5.0, 4.5, end], metrics=metrics, finite=seed != 12)
                self.write(f"stage{seed}/runs/{model}_train.learning_rate_0.001-0123456789abcdef-seed{seed}.json", run)
        lines = self.lines()
        self.assertIn("| transformer | 0.001 | 4.0000 / 4.2000 / 4.1000 | 4.1000 ± 0.1000 | 1.000 ± 0.000 | 1.5 |",
                      lines)
        shares = [0.75 + 0.25 * (4.5 - base) / (4.5 - end) for base, end in ((4.0, 3.8), (4.2, 3.9), (4.1, 4.0))]
        share = f"{statistics.fmean(shares):.3f} ± {statistics.stdev(shares):.3f}"
        self.assertIn(f"| diffllama | 0.001 | 3.8000 / 3.9000 / 4.0000 | **3.9000 ± 0.1000** | {share} | 1.5 |", lines)
        # Seeds 12 and 13 of V2 never reach the Transformer's loss.
        self.assertIn("| microsoft_v2 | 0.001 | 4.0000 / 4.5000 / 4.2500 | 4.2500 ± 0.2500 | – | 1.5 |", lines)
        self.assertIn("diffllama beside transformer: -0.2000, lower by more than the spread.", lines)
        self.assertIn("microsoft_v2 beside transformer: +0.1500, no difference beyond the spread.", lines)
        self.assertIn("Updates that were not finite were left out: transformer seed 12, diffllama seed 12, "
                      "microsoft_v2 seed 12.", lines)
        self.assertIn("| bits per byte, test | prose | c | all |", lines)
        self.assertIn("| diffllama | **1.9500 ± 0.0500** | **0.9750 ± 0.0250** | **1.3000 ± 0.0333** |", lines)
        self.assertIn("| loss with up to n tokens of context | 1 | 2 |", lines)
        self.assertIn("| validation loss after million tokens | 0.1 | 0.2 | 0.3 | 0.4 |", lines)
        self.assertIn("| magnitudes | largest logit | median logit |", lines)

    def test_one_seed_decides_nothing(self):
        for model, end in (("transformer", 4.0), ("diffllama", 3.0)):
            self.write(f"runs/{model}-seed11.json", saved_run(model, 11, [5.0, end]))
        lines = self.lines()
        self.assertIn("diffllama beside transformer: -1.0000, one seed says nothing about the spread.", lines)
        self.assertFalse(any("**" in line for line in lines))

    def test_needles(self):
        # needles, asked, depth, right, questions, first right, first questions, answer, noise, strongest answer
        for model, right in (("transformer", 5), ("diffllama", 9)):
            for seed in (11, 12):
                answer = right / 10 + (seed - 11) / 10
                cells = [[2, 2, 0.0, right + seed - 11, 10, 1, 1, answer, 0.5 - answer / 2, 0.6],
                         [2, 2, 1.0, 10, 10, 1, 1, answer, 0.5 - answer / 2, 0.6]]
                self.write(f"runs/{model}-seed{seed}.json", saved_run(model, seed, [5.0, 4.0], needles=cells))
        lines = self.lines()
        self.assertIn("| needles | 2 | attention to the answer | to noise |", lines)
        self.assertIn("| transformer | 0.775 ± 0.035 | 0.550 ± 0.071 | 0.225 ± 0.035 |", lines)
        self.assertIn("| diffllama | **0.975 ± 0.035** | **0.950 ± 0.071** | **0.025 ± 0.035** |", lines)

    def test_rounding(self):
        for seed, change in ((11, 0.01), (12, 0.03)):
            for model, factor in (("diffllama", 1), ("transformer", 10)):
                for options, activations in (("", "exact"), ("--quantize-activations", "int4")):
                    quantized = {"weights": "int4", "activations": activations, "loss": 4 + change * factor}
                    self.write(f"models/{model}-seed{seed}/c-int4{options}.json", {"loss": 4.0, "quantized": quantized})
        lines = self.lines()
        self.assertIn("| weights | activations | model | loss on c |", lines)
        self.assertIn("| int4 | exact | diffllama | **0.0200 ± 0.0141** |", lines)
        self.assertIn("| int4 | int4 | transformer | 0.2000 ± 0.1414 |", lines)

    def test_errors(self):
        self.assertIn("expected runs of compare, got none", self.run_tool().stderr)
        for stage in ("one", "two"):
            self.write(f"{stage}/runs/diffllama-seed11.json", saved_run("diffllama", 11, [5.0, 4.0]))
        done = self.run_tool()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "two/runs/diffllama-seed11.json: expected each run once, got .*one/runs")

    @unittest.skipUnless(PROGRAM, "without the program there are no runs of it")
    def test_agrees_with_compare(self):
        text = self.root / "text.txt"
        text.write_text("".join(f"Line {i} of {i * i % 97} lines is {i * 7 % 13} words long.\n" for i in range(2000)))
        (self.root / "run.toml").write_text(f"""task = "lm"
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
[data]
train = "{text}"
valid_fraction = 0.2
[train]
steps = 12
batch_size = 2
seq_len = 64
warmup_steps = 2
eval_every = 3
eval_batches = 2
""")
        done = subprocess.run([PROGRAM, "compare", "--config", self.root / "run.toml", "--models",
                               "transformer,diffllama", "--learning-rates", "0.003,0.01", "--rate-steps", "6",
                               "--seeds", "11,12", "--test", text, "--out", self.root / "out"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads((self.root / "out/results.json").read_text())
        lines = self.lines(self.root / "out")
        for name, model in results["models"].items():
            tried = {t["learning_rate"]: f"{t['valid_loss']:.4f}" for t in model["tried_rates"]}
            best = model["learning_rate"]
            self.assertIn(f"| {name} | " + " | ".join(f"**{loss}**" if rate == best else loss
                                                      for rate, loss in tried.items()) + " |", lines)
            row = next(line for line in lines if line.startswith(f"| {name} | {best:g} |"))
            loss, share = model["valid_loss"], model["metrics"]["tokens_to_baseline.share"]
            self.assertIn(f"{loss['mean']:.4f} ± {loss['spread']:.4f}", row)
            if None not in share["values"]:
                self.assertIn(f"{share['mean']:.3f} ± {share['spread']:.3f}", row)
            bits = model["metrics"]["test.text.bits_per_byte"]
            self.assertTrue(any(line.startswith(f"| {name} |") and f"{bits['mean']:.4f} ± {bits['spread']:.4f}" in line
                                for line in lines))


if __name__ == "__main__":
    unittest.main()
