# SPDX-License-Identifier: Apache-2.0
"""Tests what `compare --task lm` and `eval` measure of language models, and comparisons that continue."""
import contextlib
import csv
import json
import math
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
DIGITS = 'digits, "0" to "9"'  # the name of a file that CSV must quote
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()


def text_of(seed, words):
    """Words of which each decides the next one in most places."""
    state, chosen = seed, []
    for _ in range(words):
        state = (state * 7 + 3) % 101
        chosen.append(WORDS[state % len(WORDS)])
    return " ".join(chosen) + "\n"


def program(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=240, encoding="utf-8")


def on_terminal(*arguments):
    """Runs the program with standard error on a terminal. Returns exit code, standard output and what it shows."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryFile() as out, open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=out, stderr=theirs,
                                   env={**os.environ, "TERM": "xterm", "COLUMNS": "80"})
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the program has closed the terminal
            while piece := terminal.read(1 << 16):
                shown += piece
        code = process.wait(timeout=240)
        out.seek(0)
        return code, out.read().decode(), shown.decode()


def header_of(page):
    """Returns what a page shows beside its maps."""
    text = page.read_text()
    begin = text.index('id="report">') + len('id="report">')
    return json.loads(text[begin:text.index("</script>", begin)])


class Language(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        (cls.folder / "train.txt").write_text(text_of(1, 4000))
        (cls.folder / "test").mkdir()
        (cls.folder / "test/words.txt").write_text(text_of(5, 300))
        (cls.folder / f"test/{DIGITS}.txt").write_text("0123456789 " * 100)
        settings = ["model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=4",
                    "train.batch_size=4", "train.seq_len=32", "train.eval_batches=1", "train.eval_every=5",
                    "train.steps=30", "train.warmup_steps=1", "train.learning_rate=1e-2",
                    f"data.train={cls.folder / 'train.txt'}", "data.valid_fraction=0.1"]
        cls.given = ["--task", "lm", *(word for text in settings for word in ("--set", text)),
                     "--models", "diffllama,transformer"]
        cls.measured = [*cls.given, "--test", cls.folder / "test", "--seeds", "1,2", "--out", cls.folder / "out"]
        cls.result = program("compare", *cls.measured, "--keep-models", "--json")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def report(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)
        return json.loads(self.result.stdout)

    def test_a_comparison_measures_language(self):
        report = self.report()
        self.assertEqual(report["tokens"], 30 * 4 * 32)
        self.assertAlmostEqual(report["epochs"], report["tokens"] / report["corpus_tokens"])
        self.assertIn("validation loss of", report["found"][0])
        for model in report["models"].values():
            metrics = model["metrics"]
            for name in ("loss_at.1", "loss_at.8", "loss_at.32", "bits_per_byte", "test.bits_per_byte",
                         "repeated.first", "repeated.second", "logits_top1", "hidden_median"):
                self.assertGreater(metrics[name]["mean"], 0, name)
            self.assertNotIn("loss_at.64", metrics)
            # A byte is a token here.
            for loss, bits in zip(model["valid_loss"]["values"], metrics["bits_per_byte"]["values"], strict=True):
                self.assertAlmostEqual(bits, loss / math.log(2), places=5)
            # Digits never occur in training.
            self.assertGreater(metrics[f"test.{DIGITS}.bits_per_byte"]["mean"],
                               2 * metrics["test.words.bits_per_byte"]["mean"])

    def test_tokens_to_the_loss_of_the_baseline(self):
        models = self.report()["models"]
        base = models["transformer"]["runs"]
        for model in models.values():
            told = model["metrics"]["tokens_to_baseline"]["values"]
            for run, other, tokens in zip(model["runs"], base, told, strict=True):
                goal = other["curve"][-1]["valid_loss"]
                reached = [p["step"] for p in run["curve"] if p["valid_loss"] <= goal]
                if not reached:
                    self.assertIsNone(tokens)
                    continue
                self.assertLessEqual(tokens, reached[0] * 4 * 32)
                self.assertGreater(tokens, (reached[0] - 5) * 4 * 32)
        shares = models["transformer"]["metrics"]["tokens_to_baseline.share"]["values"]
        self.assertTrue(all(share <= 1 for share in shares), shares)

    def test_machine_versions_and_time(self):
        report = self.report()
        environment = report["environment"]
        info = json.loads(program("info", "--json").stdout)
        self.assertEqual((environment["cpu"], environment["gpu"]), (info["cpu"]["model"], None))
        self.assertEqual((environment["diffattn"], environment["torch"]), (info["version"], info["torch"]))
        self.assertEqual(environment["threads"], info["cpu"]["threads"])
        runs = [run for model in report["models"].values() for run in model["runs"]]
        self.assertEqual({run["machine"] for run in runs}, {environment["cpu"]})
        seconds = report["times"]["train_seconds"]
        self.assertGreater(seconds, 0)
        self.assertAlmostEqual(seconds, sum(run["train_seconds"] for run in runs))
        self.assertAlmostEqual(report["times"]["train_hours"], seconds / 3600)
        line = f"Trained on {environment['cpu']} with {environment['threads']} thread"
        self.assertIn(line, header_of(self.folder / "out/report.html")["notes"][-1])
        shown = program("compare", *self.measured)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, re.escape(line) + r"s?, diffattn .*, torch .* All runs together took \d")

    def test_the_page_and_the_table_have_the_numbers(self):
        models = self.report()["models"]
        header = header_of(self.folder / "out/report.html")
        self.assertIn("loss by position", [curves["name"] for curves in header["curves"]])
        [table] = [one for one in header["tables"] if one["name"] == "Bits per byte of texts that no model has seen"]
        self.assertEqual([column["label"] for column in table["columns"]],
                         ["model", DIGITS, "±", "words", "±", "all", "±"])
        for row in table["rows"]:
            for kind, at in ((f"{DIGITS}.", 1), ("words.", 3), ("", 5)):
                bits = models[row[0]]["metrics"][f"test.{kind}bits_per_byte"]
                self.assertEqual(row[at:at + 2], [bits["mean"], bits["spread"]])
        with (self.folder / "out/numbers.csv").open(newline="") as file:
            numbers = {tuple(row[:3]): float(row[3]) for row in csv.reader(file) if row[3] != "value"}
        for model, told in models.items():
            for seed, bits in zip("12", told["metrics"][f"test.{DIGITS}.bits_per_byte"]["values"], strict=True):
                self.assertAlmostEqual(numbers[model, seed, f"test.{DIGITS}.bits_per_byte"], bits)
        shown = program("compare", *self.measured)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for words in ("test.words.bits_per_byte", "tokens_to_baseline.share", "repeated.second"):
            self.assertIn(words, shown.stdout)

    def test_a_comparison_continues_with_the_runs_that_are_missing(self):
        first = self.report()
        shutil.copytree(self.folder / "out", self.folder / "continued")
        measured, runs = [*self.measured[:-1], self.folder / "continued"], self.folder / "continued/runs"
        self.assertEqual(len(list(runs.iterdir())), 4)
        (runs / "diffllama-seed2.json").unlink()
        code, out, errors = on_terminal("compare", *measured, "--json")
        self.assertEqual(code, 0, errors)
        self.assertEqual(errors.count(f", from {runs}"), 3)
        self.assertIn(" 120/120 ", errors)  # the bar counts the updates of all runs
        second = json.loads(out)
        for name, model in first["models"].items():
            self.assertEqual(model["metrics"], second["models"][name]["metrics"])
            self.assertEqual([run["curve"] for run in model["runs"]],
                             [run["curve"] for run in second["models"][name]["runs"]])
        # Other settings train again.
        other = program("compare", *measured, "--set", "train.learning_rate=2e-2", "--json")
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertNotIn(", from ", other.stderr)

    def test_other_texts_train_again(self):
        text, test = self.folder / "changing.txt", self.folder / "changing_test.txt"
        text.write_text(text_of(1, 2000))
        test.write_text(text_of(5, 300))
        words = [*self.given, "--set", f"data.train={text}", "--set", "train.steps=2",
                 "--test", test, "--out", self.folder / "changing"]
        for change, continues in ((lambda: None, False), (lambda: None, True),
                                  (lambda: text.write_text(text_of(2, 2000)), False),
                                  (lambda: test.write_text(text_of(6, 300)), False)):
            change()
            result = program("compare", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(", from " in result.stderr, continues, result.stderr)

    def test_a_damaged_result_names_its_file(self):
        out = self.folder / "damaged"
        (out / "runs").mkdir(parents=True)
        (out / "runs/diffllama-seed11.json").write_text("{")
        result = program("compare", *self.given, "--out", out)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "diffllama-seed11.json: expected the result of a run, got")

    def test_tried_rates_are_told(self):
        result = program("compare", *self.given[:-1], "transformer", "--learning-rates", "1e-9,1e-2", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        [low, high] = report["models"]["transformer"]["tried_rates"]
        tried = report["models"]["transformer"]["times"]["tried_seconds"]
        self.assertGreater(tried, 0)
        self.assertGreater(report["times"]["train_seconds"], tried)
        self.assertEqual([low["learning_rate"], high["learning_rate"]], [1e-9, 1e-2])
        self.assertLess(high["valid_loss"], low["valid_loss"])
        out = self.folder / "short_trials"
        short = program("compare", *self.given[:-1], "transformer", "--learning-rates", "1e-9,1e-2", "--rate-steps", 4,
                        "--out", out, "--json")
        self.assertEqual(short.returncode, 0, short.stderr)
        [run] = json.loads(short.stdout)["models"]["transformer"]["runs"]
        self.assertEqual(run["curve"][-1]["step"], 30)
        for rate in ("1e-09", "0.01"):
            [trial] = (out / "runs").glob(f"transformer_at_{rate}-*-seed1011.json")
            self.assertEqual(json.loads(trial.read_text())["result"]["curve"][-1][0], 4)
        self.assertEqual(program("compare", *self.given, "--rate-steps", 4).returncode, 2)

    def test_texts_that_cannot_be_read_are_known_before_training(self):
        (self.folder / "empty").mkdir(exist_ok=True)
        (self.folder / "twins").mkdir()
        for name in ("a.txt", "a.md"):
            (self.folder / "twins" / name).write_text("text")
        many = [*self.given, "--set", "train.steps=1000000000"]
        for path, words in ((self.folder / "empty", "expected at least one file of text, got none"),
                            (self.folder / "twins", "a.txt: expected a name that no other text has"),
                            (self.folder / "nowhere.txt", "nowhere.txt")):
            result = program("compare", *many, "--test", path)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(words, result.stderr)
        result = program("compare", "--task", "recall", "--test", self.folder / "test")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("--test: expected task lm, got recall", result.stderr)

    def test_run_files_of_the_evidence(self):
        examples = pathlib.Path(__file__).resolve().parents[2] / "examples/evidence"
        for file, parameters, tokens in (("lm_10m", 10.6e6, 200e6), ("lm_50m", 50.8e6, 250e6),
                                         ("continue", 0, 10e6), ("needles", 0, 0)):
            more = [f"data.train={self.folder / 'train.txt'}", "data.valid=", "data.tokenizer=bytes",
                    "model.vocab_size=16384"]
            if file == "continue":
                more[-1:] = [f"model.from={self.folder / 'out/models/diffllama-seed1/model'}",
                             "model.max_position_embeddings=1024"]
            result = program("train", "--config", examples / f"{file}.toml", "--dry-run", "--json",
                             *(word for text in ["train.device=cpu", "train.dtype=float32", *more]
                               if file != "needles" or not text.startswith("data.") for word in ("--set", text)))
            self.assertEqual(result.returncode, 0, f"{file}: {result.stderr}")
            report = json.loads(result.stdout)
            if parameters:
                embeddings = 16384 * (384 if file == "lm_10m" else 640)
                self.assertAlmostEqual((report["parameters"] - embeddings) / parameters, 1, delta=0.01)
            if tokens:
                self.assertAlmostEqual(report["steps"] * report["tokens_per_step"] / tokens, 1, delta=0.01)

    def test_widths_of_single_runs(self):
        """docs/results.md trains microsoft_v2 alone at the width that compare finds beside the Transformer."""
        root = pathlib.Path(__file__).resolve().parents[2]
        width = re.search(r"microsoft_v2:\S+ --as-given \\\s+--set model.intermediate_size=(\d+)",
                          (root / "docs/results.md").read_text())[1]
        count = {}
        for model, more in (("transformer", []), ("microsoft_v2", [f"model.intermediate_size={width}"])):
            result = program("train", "--config", root / "examples/evidence/lm_10m.toml", "--dry-run", "--json",
                             *(word for text in [f"model.attention={model}", "train.device=cpu", "train.dtype=float32",
                                                 f"data.train={self.folder / 'train.txt'}", "data.valid=",
                                                 "data.tokenizer=bytes", "model.vocab_size=16384", *more]
                               for word in ("--set", text)))
            self.assertEqual(result.returncode, 0, result.stderr)
            count[model] = json.loads(result.stdout)["parameters"]
        layers, each = 6, 3 * 384  # feed-forward parameters of a layer and unit of width
        # compare takes the multiple of 8 nearest to equal counts.
        self.assertLessEqual(abs(count["microsoft_v2"] - count["transformer"]), 4 * layers * each)

    def test_trained_models_are_compared_as_they_are(self):
        self.report()
        wide = program("compare", *self.given[:-1], "transformer", "--set", "model.hidden_size=32", "--out",
                       self.folder / "wide", "--keep-models", "--set", "train.steps=1")
        self.assertEqual(wide.returncode, 0, wide.stderr)
        models = (f"transformer:from={self.folder / 'wide/models/transformer-seed11/model'},"
                  f"diffllama:from={self.folder / 'out/models/diffllama-seed1/model'}")
        result = program("compare", *self.given[:-1], models, "--set", "train.steps=1")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, "--models: diffllama:from=.*: expected as many parameters as .*--as-given")
        result = program("compare", *self.given[:-1], models, "--set", "train.steps=1", "--as-given", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([model["parameters_of_baseline"] == 1
                          for model in json.loads(result.stdout)["models"].values()], [True, False])

    def test_commands_of_the_evidence(self):
        """Runs the headers of the run files with a program that only writes down its arguments."""
        examples = pathlib.Path(__file__).resolve().parents[2] / "examples/evidence"
        work = self.folder / "evidence"
        models = {name: {"learning_rate": rate} for name, rate in
                  (("transformer", 1e-3), ("diffllama", 2e-3), ("microsoft_v2", 4e-3))}
        for size in ("lm_10m", "lm_50m"):
            for model in models:
                (work / f"runs/{size}/models/{model}-seed11/model").mkdir(parents=True)
            (work / f"runs/{size}/results.json").write_text(json.dumps({"models": models}))
        stub = work / "bin/diffattn"
        stub.parent.mkdir()
        stub.write_text(f'#!/bin/sh\necho "$@" >> {work}/calls\n')
        stub.chmod(0o755)
        for file in examples.glob("*.toml"):
            commands = re.findall(r"(?m)^#   (.+)$", file.read_text())
            (work / "calls").write_text("")
            subprocess.run(["bash", "-euc", "\n".join(commands)], cwd=work, check=True,
                           env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"})
            calls = [line.split() for line in (work / "calls").read_text().splitlines()]
            [compared] = [call for call in calls if call[0] == "compare"]
            self.assertEqual(compared[1:3], ["--config", f"examples/evidence/{file.name}"])
            evaluated = [" ".join(call) for call in calls if call[0] == "eval"]
            if file.stem not in ("lm_10m", "lm_50m"):
                self.assertEqual(evaluated, [])
                continue
            self.assertEqual(len(set(evaluated)), 3 * 4 * 2 * 2)
            self.assertIn(f"eval --model runs/{file.stem}/models/diffllama-seed11/model --data "
                          "corpus/tokens/test/python.tokens --quantize int4 --quantize-activations "
                          "--device cuda --json", evaluated)
            self.assertEqual(len(list(work.glob(f"runs/{file.stem}/models/*/*.json"))), len(evaluated))
            if file.stem == "lm_50m":
                rates = re.findall(r"learning_rate=([\d.]+)", compared[compared.index("--models") + 1])
                for rate, model in zip(rates, models.values(), strict=True):
                    self.assertAlmostEqual(float(rate), model["learning_rate"] * 0.6)

    def train_source(self, out, rate=1e-3):
        """Trains a model from which comparisons start. Returns its folder, which does not name the rate."""
        source = program("compare", *self.given[:-1], "transformer", "--set", "train.steps=1", "--seeds", 1,
                         "--set", f"train.learning_rate={rate}", "--keep-models", "--out", out)
        self.assertEqual(source.returncode, 0, source.stderr)
        return out / "models/transformer-seed1/model"

    def test_a_source_that_was_trained_again_trains_again(self):
        model = self.train_source(self.folder / "source")
        words = [*self.given[:-1], f"transformer:from={model}", "--set", "train.steps=1",
                 "--out", self.folder / "from"]
        for change, continues in ((lambda: None, False), (lambda: None, True),
                                  (lambda: self.train_source(self.folder / "source", 2e-3), False)):
            change()
            result = program("compare", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(", from " in result.stderr, continues, result.stderr)
        # So does another configuration with the same weights.
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
        result = program("compare", *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn(", from ", result.stderr)

    def test_a_result_of_another_version_trains_again(self):
        out = self.folder / "versions"
        words = [*self.given[:-1], "transformer", "--set", "train.steps=1", "--out", out]
        self.assertEqual(program("compare", *words).returncode, 0)
        [file] = (out / "runs").iterdir()
        saved = json.loads(file.read_text())
        saved["key"]["version"] -= 1
        file.write_text(json.dumps(saved))
        result = program("compare", *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn(", from ", result.stderr)

    def test_models_of_similar_names_have_files_of_their_own(self):
        folders = [self.train_source(self.folder / name) for name in ("twin/a", "twin_a")]
        out = self.folder / "similar"
        result = program("compare", *self.given[:-1], ",".join(f"transformer:from={path}" for path in folders),
                         "--set", "train.steps=1", "--keep-models", "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(list((out / "runs").iterdir())), 2)
        self.assertEqual(len(list((out / "models").iterdir())), 2)

    def test_matched_widths_are_aligned_where_the_tolerance_allows(self):
        sizes = ["model.hidden_size=128", "model.num_hidden_layers=4", "model.vocab_size=2048", "train.steps=1"]
        result = program("compare", *self.given[:-1], "transformer,microsoft_v2", "--json",
                         *(word for size in sizes for word in ("--set", size)))
        self.assertEqual(result.returncode, 0, result.stderr)
        models = json.loads(result.stdout)["models"]
        widths = [int(re.search(r"intermediate_size = (\d+)", model["config"])[1]) for model in models.values()]
        self.assertLess(widths[1], widths[0])
        self.assertEqual([width % 8 for width in widths], [0, 0], widths)
        self.assertAlmostEqual(models["microsoft_v2"]["parameters_of_baseline"], 1, delta=0.005)

    def evaluate(self, *more):
        self.report()
        model = self.folder / "out/models/diffllama-seed1/model"
        return program("eval", "--model", model, "--data", self.folder / "test/words.txt", *more)

    def test_evaluation_tells_bits_per_byte(self):
        result = self.evaluate("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["bytes"], report["tokens"] - 1)  # the end of the text has no bytes
        self.assertAlmostEqual(report["bits_per_byte"],
                               report["loss"] / math.log(2) * report["tokens"] / report["bytes"], places=5)
        told = self.report()["models"]["diffllama"]["metrics"]["test.words.bits_per_byte"]["values"][0]
        self.assertAlmostEqual(report["bits_per_byte"], told, places=4)
        self.assertRegex(self.evaluate().stdout, r"(?m)^bits/byte +\d+\.\d+$")

    def test_evaluation_with_rounded_weights(self):
        changes = []
        for weights in ("int8", "int4"):
            result = self.evaluate("--quantize", weights, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            rounded = report["quantized"]
            self.assertEqual((rounded["weights"], rounded["matrices"]), (weights, 2 * 7))
            self.assertAlmostEqual(rounded["loss_increase"], rounded["loss"] - report["loss"], places=9)
            self.assertEqual(rounded["activations"], "exact")
            changes.append(abs(rounded["loss_increase"]))
            both = json.loads(self.evaluate("--quantize", weights, "--quantize-activations", "--json").stdout)
            self.assertEqual(both["quantized"]["activations"], weights)
            self.assertEqual(both["loss"], report["loss"])
            self.assertNotEqual(both["quantized"]["loss"], rounded["loss"])
        self.assertTrue(0 < changes[0] < changes[1], changes)
        self.assertRegex(self.evaluate("--quantize", "int4").stdout,
                         r"(?m)^int4 +exact +\d\.\d+ +[-+]\d\.\d+ +\d\.\d+$")
        self.assertEqual(self.evaluate("--quantize-activations").returncode, 2)
        self.assertEqual(self.evaluate("--quantize", "int3").returncode, 2)


if __name__ == "__main__":
    unittest.main()
