# SPDX-License-Identifier: Apache-2.0
"""Tests the pages that compare and train write: what they say must agree with their numbers."""
import base64
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import zlib

PROGRAM = os.environ["DIFFATTN_PROGRAM"]

TINY = ["model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=4", "train.batch_size=4",
        "train.eval_batches=1", "train.eval_every=2", "train.warmup_steps=1", "train.steps=4"]
SUMMARY = TINY + ["summarize.sentences=4", "summarize.selected=2", "summarize.words=3"]


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=120, encoding="utf-8",
                          **kwargs)


def settings(*texts):
    return [word for text in texts for word in ("--set", text)]


def header_of(page):
    return json.loads(re.search(r'id="report">(.*?)</script>', page.read_text()).group(1))


def maps_of(page):
    found = re.findall(r'class="map">(.*?)</script>', page.read_text())
    return [json.loads(text) for text in found]


def question_row(page, index, header):
    """Returns A in the question's row of the map with that index, of a text of at most 256 tokens."""
    sequence = header["sequences"][index["sequence"]]
    level, = (level for level in index["levels"] if level["level"] == 0)
    assert level["format"] == "f32"
    text = re.search(rf'id="{level["block"]}">(.*?)</script>', page.read_text()).group(1)
    block, cells = zlib.decompress(base64.b64decode(text)), index["rows"] * index["columns"]

    def row_of(plane):
        if not level["planes"].get(plane):  # a tile of zeros is left out
            return [0.0] * index["columns"]
        (_, _, offset, _), = level["planes"][plane]
        first = sequence["question"] * index["columns"]
        return [struct.unpack("<f", block[offset + cell:offset + 4 * cells:cells])[0]
                for cell in range(first, first + index["columns"])]

    p1 = row_of("p1")
    if not index["lambda"]:
        return p1
    scale = index["lambda"][sequence["question"] if len(index["lambda"]) > 1 else 0]
    return [a - scale * b for a, b in zip(p1, row_of("p2"), strict=True)]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.corpus = cls.folder / "corpus.txt"
        cls.corpus.write_text("the quick brown fox jumps over the lazy dog\n" * 60)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def compare(self, name, *arguments):
        out = self.folder / name
        result = program("compare", *arguments, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout, out / "report.html"

    def test_an_example_of_summaries_is_read_out(self):
        text, page = self.compare("summaries", "--task", "summarize", *settings(*SUMMARY), "--seeds", "1,2")
        header = header_of(page)
        document, right, ours, theirs = header["examples"][0]["lines"]
        self.assertEqual([right["label"], ours["label"], theirs["label"]],
                         ["right summary", "diffllama", "transformer"])
        self.assertEqual(len(document["words"]), 4 * 5)
        marked = [word for word, mark in document["words"] if mark == "answer"]
        self.assertEqual([word for word in marked if not word.startswith("KEEP")],
                         [word for word, _ in right["words"]])
        for line in (ours, theirs):
            for i, (word, mark) in enumerate(line["words"]):
                same = i < len(right["words"]) and word == right["words"][i][0]
                self.assertEqual(mark, "" if same else "wrong")
        sequence, = header["sequences"]
        # The decoder has written the start token and one sentence: it must find the second one.
        self.assertEqual(sequence["question"], 4)
        answer, = [region for region in sequence["regions"] if region["kind"] == "answer"]
        self.assertEqual(sequence["columns"][answer["begin"] + 1:answer["end"]],
                         [word for word, _ in right["words"]][4:])
        self.assertEqual([model["name"] for model in header["models"]],
                         ["diffllama, cross-attention", "transformer, cross-attention"])
        self.assertEqual(len(maps_of(page)), 2 * (2 + 4))
        self.assertEqual(header["tables"][-1]["name"], "Every number")
        self.assertIn("standard deviation of 2 seeds", header["verdict"][0])
        self.assertIn(header["verdict"][0], text)
        self.assertIn("report.html (", text)
        for command in header["commands"]:
            self.assertIn(command["command"], text)
        self.assertIn("--seeds 3,4,5,6,7", header["commands"][0]["command"])

    def test_the_verdict_and_the_marks_follow_the_numbers(self):
        for seeds in ("1", "1,2,3"):
            _, page = self.compare(f"verdict {seeds}", "--task", "recall", *settings(*TINY), "--seeds", seeds)
            header = header_of(page)
            results = json.loads((page.parent / "results.json").read_text())
            ours, theirs = (results["models"][name]["accuracy"] for name in ("diffllama", "transformer"))
            spread = max(ours["spread"], theirs["spread"])
            different = len(results["seeds"]) > 1 and abs(ours["mean"] - theirs["mean"]) > spread
            self.assertEqual("is better by more than the spread" in header["verdict"][0], different)
            if len(results["seeds"]) == 1:
                self.assertIn("one seed says nothing about the spread.", header["verdict"][0])
            for curves in header["curves"]:
                for series in curves["series"]:
                    bands = "low" in series
                    self.assertEqual(bands, len(results["seeds"]) > 1, (curves["name"], series["name"]))
                    if not bands:
                        continue
                    for low, mean, high in zip(series["low"], series["y"], series["high"], strict=True):
                        self.assertLessEqual(low, mean + 1e-9)
                        self.assertLessEqual(mean, high + 1e-9)
                    self.assertLess(series["low"], series["high"])  # somewhere the seeds differ
            columns = {column["label"]: column["better"] for column in header["tables"][0]["columns"]}
            self.assertEqual(columns["accuracy"], "higher" if different else "neither")
            self.assertEqual(columns["ms per step"], "neither")
            for table in header["tables"] if seeds == "1" else []:
                self.assertEqual({column["better"] for column in table["columns"]}, {"neither"})
            self.assertNotIn("always", " ".join(header["notes"]))

    def test_every_task_has_maps(self):
        tasks = {"lm": [f"data.train={self.corpus}", "train.seq_len=32", "data.valid_fraction=0.2"],
                 "classify": [], "recall": [], "needle": ["needle.length=32"]}
        for task, more in tasks.items():
            _, page = self.compare(task, "--task", task, *settings(*TINY, *more), "--models", "diffllama,transformer")
            header = header_of(page)
            self.assertEqual([model["name"] for model in header["models"]], ["diffllama", "transformer"], task)
            self.assertEqual(len(maps_of(page)), 2 * (2 + 4), task)
            self.assertEqual(len(header["examples"]), 0 if task == "lm" else 1)
            if task == "lm":
                self.assertIn("".join(header["sequences"][0]["rows"])[:16], self.corpus.read_text())
            else:
                self.assertIn("question", header["sequences"][0])

    def assert_opens_on_the_answer(self, page, layer=None):
        header = header_of(page)
        for number, model in enumerate(header["models"]):
            maps = [index for index in maps_of(page) if index["model"] == number]
            self.assertEqual(len(maps), model["layers"] * model["heads"])
            answers = [region for region in header["sequences"][maps[0]["sequence"]]["regions"]
                       if region["kind"] == "answer"]
            self.assertTrue(answers)
            rows = [question_row(page, index, header) for index in maps]
            masses = [sum(sum(row[region["begin"]:region["end"]]) for region in answers)
                      for row, index in zip(rows, maps, strict=True) if layer in (None, index["layer"])]
            self.assertIn(layer, (None, maps[0]["layer"]))
            self.assertGreater(masses[0], max(masses) - 1e-5, (page, model["name"], masses))

    def test_pages_open_the_head_with_most_weight_on_the_answer(self):
        sharp = ["model.initializer_range=0.4", "needle.length=32"]
        _, page = self.compare("opened", "--task", "needle", *settings(*TINY, *sharp), "--samples", 1, "--keep-models")
        self.assert_opens_on_the_answer(page)
        for model in (page.parent / "models").iterdir():
            for layer in (None, 0, 1):
                opened = self.folder / f"{model.name}{layer}.html"
                result = program("analyze", "--model", model / "model", "--task", "needle", "--out", opened,
                                 *([] if layer is None else ["--layer", layer]))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assert_opens_on_the_answer(opened, layer)

    def test_a_stopped_comparison_says_how_to_continue(self):
        out = self.folder / "stopped"
        for folder, says in (([], "nothing was written"), (["--out", out], "the same command continues with")):
            with subprocess.Popen([PROGRAM, "compare", "--task", "recall", *settings(*TINY, "train.steps=1000000"),
                                   *folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                while "step 2:" not in process.stderr.readline():
                    self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                printed, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, printed), (1, ""), errors)
            self.assertIn(f"compare: stopped by a signal; {says}", errors)
        self.assertFalse((out / "report.html").exists())

    def test_a_curriculum_is_explained_where_validation_can_rise(self):
        curriculum = ["curriculum.steps=2", "curriculum.length=16", "needle.length=32"]
        _, page = self.compare("curriculum", "--task", "needle", *settings(*TINY, *curriculum), "--samples", 1)
        notes = {curves["name"]: curves["note"] for curves in header_of(page)["curves"]}
        self.assertIn("first 2 steps train on texts of 16 tokens", notes["validation loss"])
        self.assertEqual(notes["training loss"], "")

    def test_training_writes_a_page_and_samples(self):
        out = self.folder / "run"
        prompts = "the quick\nlazy"
        given = settings(*TINY, f"data.train={self.corpus}", "train.seq_len=32", "data.valid_fraction=0.2",
                         "train.log_every=1", f"train.sample_prompts={prompts}", "train.checkpoint_every=2")
        result = program("train", "--out", out, *given)
        self.assertEqual(result.returncode, 0, result.stderr)
        header = header_of(out / "report.html")
        curves = {curves["name"]: curves["series"] for curves in header["curves"]}
        self.assertEqual(list(curves), ["loss", "validation accuracy", "learning rate", "gradient norm", "λ per layer"])
        self.assertEqual([series["x"] for series in curves["loss"]], [[1, 2, 3, 4], [2, 4]])
        self.assertEqual([series["name"] for series in curves["λ per layer"]], ["layer 0", "layer 1"])
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(curves["learning rate"][0]["y"],
                         [line["learning_rate"] for line in lines if "learning_rate" in line])
        norms = [(line["step"], line["gradient_norm"]) for line in lines if "gradient_norm" in line]
        drawn = curves["gradient norm"][0]
        self.assertEqual(list(zip(drawn["x"], drawn["y"], strict=True)), norms)
        self.assertEqual(len(norms), 4)
        self.assertIn("Step 4 of 4", header["verdict"][0])
        samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
        self.assertEqual([(sample["step"], sample["prompt"]) for sample in samples],
                         [(2, "the quick"), (2, "lazy"), (4, "the quick"), (4, "lazy")])
        self.assertEqual(header["examples"][0]["name"], "Samples of step 4")
        self.assertEqual([line["label"] for line in header["examples"][0]["lines"]], ["the quick", "lazy"])
        self.assertIn("step 2: the quick", result.stderr)
        result = program("train", "--resume", out, "--set", "train.steps=6")
        self.assertEqual(result.returncode, 0, result.stderr)
        samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
        self.assertEqual([sample["step"] for sample in samples], [2, 2, 4, 4, 6, 6])
        self.assertIn("Step 6 of 6", header_of(out / "report.html")["verdict"][0])

    def test_the_page_of_a_run_exists_after_the_first_evaluation(self):
        page = self.folder / "going" / "report.html"
        command = [PROGRAM, "train", "--out", page.parent, *settings(
            *TINY, f"data.train={self.corpus}", "train.seq_len=32", "data.valid_fraction=0.2", "train.steps=1000000",
            "train.eval_every=5")]
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
            while not page.exists():
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            header = header_of(page)
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        curves = {curves["name"]: curves["series"] for curves in header["curves"]}
        self.assertEqual(curves["loss"][-1]["x"][0], 5)
        self.assertRegex(header["verdict"][0], r"^Step \d+ of 1000000")

    def test_samples_leave_the_training_as_it_is(self):
        losses = []
        for name, more in (("plain", []), ("sampled", ["train.sample_prompts=fox"])):
            out = self.folder / name
            result = program("train", "--out", out, *settings(*TINY, f"data.train={self.corpus}", "train.seq_len=32",
                                                              "data.valid_fraction=0.2", "train.log_every=1", *more))
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            losses.append([line["loss"] for line in lines if "loss" in line])
        self.assertEqual(losses[0], losses[1])


if __name__ == "__main__":
    unittest.main()
