# SPDX-License-Identifier: Apache-2.0
"""Tests generated tasks, comparisons, classification and summaries with tiny models."""
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]

TINY = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=4",
        "train.batch_size=8", "train.eval_batches=1", "train.eval_every=10", "train.warmup_steps=1",
        "train.learning_rate=1e-2"]
NEEDLE = TINY + ["needle.length=16", "needle.keys=6", "needle.values=4", "needle.noise=4",
                 "needle.questions=2", "train.steps=20"]

# Embeddings are 0 and the norm has no epsilon, so the first layer divides 0 by 0.
NOT_FINITE = ["model.initializer_range=0", "model.rms_norm_eps=0"]


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=120,
                          encoding="utf-8", **kwargs)


def settings(*texts):
    return [word for text in texts for word in ("--set", text)]


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def test_needles(self):
        out = self.folder / "needles"
        result = program("compare", "--task", "needle", *settings(*NEEDLE), "--seeds", "1,2", "--models",
                         "transformer,diffllama,microsoft_v2,diffllama:head_norm=false:lambda_init=0.5",
                         "--samples", 4, "--out", out, "--keep-models", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report, json.loads((out / "results.json").read_text()))
        self.assertEqual(report["baseline"], "transformer")
        self.assertEqual(len(report["models"]), 4)
        base = report["models"]["transformer"]
        for name, model in report["models"].items():
            self.assertLess(abs(model["parameters"] / base["parameters"] - 1), 0.005, name)
            self.assertEqual(len(model["loss"]["values"]), 2)
            self.assertGreater(model["times"]["step_seconds"], 0)
            self.assertGreater(model["memory_bytes"], 4 * model["parameters"])
            for run in model["runs"]:
                self.assertEqual([point["step"] for point in run["curve"]], [10, 20])
                self.assertEqual({cell["needles"] for cell in run["needles"]}, {1, 2, 4, 6})
                for cell in run["needles"]:
                    self.assertLessEqual(cell["answer"] + cell["noise"], 1 + 1e-6)
            self.assertGreater(model["metrics"]["logits_top1"]["mean"],
                               model["metrics"]["logits_median"]["mean"])
            self.assertIn("seed = 1\n", model["config"])
        self.assertEqual(base["metrics"]["negative_mass"]["mean"], 0)
        self.assertIsNone(base["metrics"]["noise_cancelled"]["mean"])
        self.assertGreater(report["models"]["diffllama"]["metrics"]["noise_cancelled"]["mean"], 0)
        self.assertNotEqual(report["models"]["diffllama"]["loss"]["values"], base["loss"]["values"])
        page = (out / "report.html").read_text()
        self.assertIn("Accuracy by number of needles", page)
        self.assertEqual(len((out / "curves.csv").read_text().splitlines()), 1 + 4 * 2 * 2)
        self.assertEqual(len(list((out / "models").glob("*/model/config.json"))), 8)

    def test_paths_of_introspective_attention(self):
        """Paths count from 0, and path i sees i + 1 keys of every token."""
        out = self.folder / "paths"
        result = program("compare", *settings(*NEEDLE, "train.steps=1"), "--models", "introspective",
                         "--samples", 1, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        page = (out / "report.html").read_text()
        report = json.loads(re.search(r'id="report">(.*?)</script>', page).group(1))
        self.assertEqual([model["name"] for model in report["models"]],
                         [f"introspective, path {i}" for i in range(3)])
        for i, sequence in enumerate(report["sequences"]):
            columns = sequence.get("columns") or sequence["rows"]
            self.assertEqual(len(columns), (i + 1) * len(sequence["rows"]))
            marked = [range(region["begin"], region["end"]) for region in sequence["regions"]]
            self.assertEqual([at for part in marked for at in part], list(range(16 * (i + 1))))
            self.assertEqual({region["kind"] for region in sequence["regions"]}, {"answer", "other", "noise"})

    def test_same_arguments_give_the_same_numbers(self):
        runs = [program("compare", *settings(*NEEDLE), "--samples", 2, "--jobs", jobs, "--threads", 2,
                        "--json") for jobs in (1, 2)]
        losses = [[m["loss"]["values"] for m in json.loads(run.stdout)["models"].values()]
                  for run in runs]
        self.assertEqual(losses[0], losses[1])

    def test_each_model_gets_its_best_learning_rate(self):
        result = program("compare", *settings(*NEEDLE), "--models", "transformer", "--samples", 1,
                         "--learning-rates", "1e-9,1e-2", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["models"]["transformer"]["learning_rate"], 0.01)
        result = program("compare", *settings(*NEEDLE, *NOT_FINITE), "--models", "transformer",
                         "--samples", 1, "--learning-rates", "1e-3,1e-2")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stderr, "--learning-rates: expected .*one with which transformer")

    def test_when_accuracy_came(self):
        never = "transformer:train.learning_rate=1e-9"
        task = ["needle.needles=1", "needle.min_needles=1", "needle.asked=1", "needle.questions=1",
                "needle.values=2", "needle.length=4", "curriculum.length=4", "train.steps=60"]
        result = program("compare", *settings(*NEEDLE, *task),
                         "--models", f"transformer,{never}", "--samples", 1, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        learnt, other = json.loads(result.stdout)["models"].values()
        curve = learnt["runs"][0]["curve"]
        first = next(point["step"] for point in curve if point["valid_accuracy"] >= 0.9)
        self.assertGreater(first, curve[0]["step"])
        self.assertEqual(learnt["metrics"]["steps_to_0.9"]["mean"], first)
        self.assertIsNone(other["metrics"]["steps_to_0.9"]["mean"])
        # One seed that never reaches it leaves no mean, but the values of the others stay.
        result = program("compare", *settings(*NEEDLE, *task, "train.steps=20"), "--models", "transformer",
                         "--seeds", "1,2,4,6,8", "--samples", 1, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        model, = json.loads(result.stdout)["models"].values()
        steps = [next((point["step"] for point in run["curve"] if point["valid_accuracy"] >= 0.9), None)
                 for run in model["runs"]]
        self.assertIn(None, steps)
        self.assertNotEqual(set(steps), {None})
        self.assertEqual(model["metrics"]["steps_to_0.9"]["values"], steps)

    def test_updates_that_were_left_out_are_told(self):
        lost = "transformer:" + ":".join(NOT_FINITE)
        result = program("compare", *settings(*NEEDLE), "--models", f"transformer,{lost}", "--samples", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        told = [line for line in result.stdout.splitlines() if "not finite" in line]
        self.assertEqual(told, [f"{lost}: updates of seed 11 were not finite and were left out."])

    def test_seed_of_the_run_file(self):
        file = self.folder / "run.toml"
        file.write_text('task = "needle"\nseed = 5\n')
        result = program("compare", "--config", file, *settings(*NEEDLE, "train.steps=2"), "--models",
                         "transformer", "--samples", 1, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["seeds"], [5])

    def test_what_to_type_next_is_the_same_comparison(self):
        file = self.folder / "recall.toml"
        file.write_text('task = "needle"\n')
        tiny = settings(*TINY, "recall.pairs=2", "train.steps=2")
        given = ["--config", file, "--task", "recall", *tiny, "--learning-rates", "0.01,0.02", "--as-given",
                 "--models", "transformer,diffllama:head_norm=false"]
        result = program("compare", *given, "--out", self.folder / "next")
        self.assertEqual(result.returncode, 0, result.stderr)
        luck, = [line for line in result.stdout.splitlines() if "is it luck?" in line]
        self.assertIn(" ".join(map(str, ["compare", *given, "--seeds"])), luck)
        part, = [line for line in result.stdout.splitlines() if "which part does it?" in line]
        self.assertEqual(part.count("--models"), 1)

    def test_table(self):
        result = program("compare", "--task", "recall", *settings(*TINY, "recall.pairs=2",
                                                                  "train.steps=5"))
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("parameters", "valid_loss", "accuracy", "ms per step", "one seed"):
            self.assertIn(word, result.stdout)

    def test_a_folder_that_cannot_be_made_is_known_before_training(self):
        (self.folder / "file").write_text("")
        many = [setting for setting in NEEDLE if "train.steps" not in setting] + ["train.steps=1000000000"]
        for name, word in (("file/out", "could not create the folder"), ("file", "could not create the folder")):
            result = program("compare", *settings(*many), "--out", self.folder / name)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(word, result.stderr)

    def test_wrong_use_names_the_argument(self):
        for arguments, word in ((["--task", "dance"], "--task"),
                                (["--models", "nothing", *settings(*NEEDLE)], "nothing"),
                                (["--models", "diffllama:head_norm"], "key=value"),
                                (["--models", "diffllama,diffllama"], "twice"),
                                (["--models", "transformer:head_norm=false", *settings(*NEEDLE)],
                                 "head_norm"),
                                (["--models", "dance"], "--models: expected one of microsoft_v1"),
                                (["--models", "diffllama,dance:head_norm=false"], "introspective"),
                                (["--learning-rates", "0.01,0", *settings(*NEEDLE)], "--learning-rates"),
                                (["--learning-rates", "-1", *settings(*NEEDLE)], "--learning-rates"),
                                (["--learning-rates", "nan", *settings(*NEEDLE)], "--learning-rates"),
                                (["--seeds", "3,-1"], "--seeds: expected an integer of at least 0, got '-1'"),
                                (["--set", "needle.needle=3"], "needle.needles"),
                                (["--set", "needle.needles=6", "--set", "needle.keys=4"],
                                 "needle.keys")):
            result = program("compare", *arguments)
            self.assertEqual(result.returncode, 1 if "transformer:" in arguments[1] else 2, arguments)
            self.assertIn(word, result.stderr, arguments)
            self.assertNotIn("terminate called", result.stderr)


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.texts = cls.folder / "texts.jsonl"
        cls.texts.write_text("".join(json.dumps({"text": text * 2, "label": label}) + "\n"
                                     for text, label in [("aab", "good"), ("xyx", "bad")] * 20))
        cls.documents = cls.folder / "documents.jsonl"
        cls.documents.write_text("".join(
            json.dumps({"document": f"{word} and more", "summary": word}) + "\n"
            for word in ["one", "two", "six"] * 10))

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def train(self, name, *texts):
        out = self.folder / name
        result = program("train", "--out", out, *settings(*TINY, *texts), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return out / "model", json.loads(result.stdout)

    def test_classification(self):
        model, report = self.train("classify", "task=classify", f"data.train={self.texts}",
                                   f"data.valid={self.texts}", "train.seq_len=16", "train.steps=40",
                                   "classify.class_weights=balanced")
        self.assertEqual(report["valid_accuracy"], 1.0)
        config = json.loads((model / "config.json").read_text())
        self.assertEqual(config["id2label"], {"0": "bad", "1": "good"})
        lines = [b'{"text": "aabaab", "label": "good"}', b'{"text": ""}', b'{"txt": "a"}', b'no',
                 b'{"text": "aab\xff"}', b'{"text": "aab", "label": "never"}',
                 b'{"text": "' + b"x" * 40 + b'"}', b'', b'{"text": "xyx", "label": "bad"}']
        (self.folder / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        result = program("classify", "--model", model, "--input", self.folder / "in.jsonl", "--explain")
        self.assertEqual(result.returncode, 1)
        answers = {}
        for line in result.stdout.splitlines():
            answer = json.loads(line)
            answers[answer["line"]] = answer
        self.assertEqual(sorted(answers), [1, 2, 3, 4, 5, 6, 7, 9])
        self.assertEqual(answers[1]["label"], "good")
        self.assertAlmostEqual(sum(answers[1]["probabilities"].values()), 1)
        self.assertEqual(answers[9]["label"], "bad")
        self.assertEqual(answers[7]["truncated_from"], 40)
        self.assertEqual(len(answers[1]["tokens"]), 6)
        self.assertIn("weight", answers[1]["tokens"][0])
        for line, word in ((2, "text"), (3, "text"), (4, "byte"), (5, "UTF-8"), (6, "never")):
            self.assertIn(word, answers[line]["error"], line)
            self.assertIn(f"line {line}:", result.stderr)
        with open("/dev/full", "w") as full:
            lost = subprocess.run([PROGRAM, "classify", "--model", model, "--input", self.texts], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(lost.returncode, 1)
        self.assertIn("standard output", lost.stderr)
        whole = program("classify", "--model", model, "--input", "-", "--json", input='{"text": "aab"}\n')
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertEqual(json.loads(whole.stdout)["results"][0]["label"], "good")
        result = program("classify", "--model", model, "--input", "-", "--top-tokens", 3, input="{}")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--explain", result.stderr)
        measured = program("eval", "--model", model, "--data", self.texts, "--json")
        self.assertEqual(measured.returncode, 0, measured.stderr)
        self.assertEqual(json.loads(measured.stdout)["macro_f1"], 1.0)
        self.assertNotIn("perplexity", measured.stdout)  # labels of texts have none
        shown = program("eval", "--model", model, "--data", self.texts, "--quantize", "int8")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("accuracy", shown.stdout)
        self.assertNotIn("perplexity", shown.stdout)
        self.assertEqual([json.loads(measured.stdout)[key] for key in ("skipped_lines", "truncated")],
                         [0, 0])
        (self.folder / "faulty.jsonl").write_bytes(b"\n".join([lines[0], lines[3], lines[6].replace(
            b"}", b', "label": "bad"}')]) + b"\n")
        faulty = program("eval", "--model", model, "--data", self.folder / "faulty.jsonl",
                         "--skip-bad", "--json")
        self.assertEqual(faulty.returncode, 0, faulty.stderr)
        self.assertEqual([json.loads(faulty.stdout)[key] for key in ("skipped_lines", "truncated")],
                         [1, 1])
        self.assertIn("diffattn: skipped 1 bad line\n", faulty.stderr)
        self.assertIn("diffattn: truncated 1 text to 16 tokens\n", faulty.stderr)
        self.refuses_ids_that_the_model_does_not_know(model)
        self.refuses_probabilities_that_are_not_finite(model)
        self.reads_lines_in_bounded_memory_and_reports_failed_reads("classify", model, "text")
        hidden = program("classify", "--model", model, "--input", "-",
                         input='{"text": "aab", "label": "\\u001b[2J\\u0007"}\n')
        self.assertIn(r"got '\x1b[2J\x07'", hidden.stderr)  # also where no terminal is

    def reads_lines_in_bounded_memory_and_reports_failed_reads(self, verb, model, key):
        arguments = [PROGRAM, verb, "--model", str(model), "--truncate", "--input", "-"]
        folder = os.open(self.folder, os.O_RDONLY)
        failed = subprocess.run(arguments, stdin=folder, capture_output=True, text=True, timeout=120, check=False)
        os.close(folder)
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertEqual(failed.stderr, "diffattn: standard input: expected a file or a pipe, got a directory\n")
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b"never read")  # so that closing our end resets the connection
            ours.sendall(b'{"%s": "six"}\n' % key.encode())
            ours.close()
            reset = subprocess.run(arguments, stdin=theirs, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(reset.returncode, 1, reset.stderr)
        self.assertEqual(reset.stderr, "diffattn: standard input: read failed: Connection reset by peer\n")
        self.assertEqual([json.loads(line)["line"] for line in reset.stdout.splitlines()], [1])
        small = b'{"%s": "six"}\n' % key.encode()
        alone, code, answers = self.peak(arguments, [small])
        self.assertEqual((code, len(answers)), (0, 1))
        peak, code, answers = self.peak(arguments, [b"a" * (1 << 20)] * 400 + [b"\n", small])
        self.assertEqual((code, len(answers)), (1, 2))
        self.assertEqual(answers[0]["error"], f"expected at most {64 << 20} bytes, got more")
        self.assertEqual(answers[1]["line"], 2)
        self.assertNotIn("error", answers[1])
        self.assertLess(peak - alone, 256)
        # A batch of long lines keeps the tokens that the model reads. All tokens of these take 256 MiB.
        peak, code, answers = self.peak(arguments, [small.replace(b"six", b"a" * (4 << 20))] * 8)
        self.assertEqual((code, len(answers)), (0, 8))
        self.assertLess(peak - alone, 128)

    def peak(self, arguments, pieces):
        """Runs a verb on pieces of standard input. Returns its peak memory in MiB, exit code and answers."""
        with tempfile.TemporaryFile() as out, subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=out,
                                                               stderr=subprocess.DEVNULL) as process:
            for piece in pieces:
                process.stdin.write(piece)
            process.stdin.close()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            return usage.ru_maxrss / 1024, process.returncode, [json.loads(line) for line in out.read().splitlines()]

    def refuses_probabilities_that_are_not_finite(self, model):
        other = self.folder / "overflowing"
        shutil.copytree(model, other)
        data = (other / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        (other / "model.safetensors").write_bytes(data[:begin] + struct.pack("<f", 3e38) * ((len(data) - begin) // 4))
        result = program("classify", "--model", other, "--input", "-", "--json", "--explain",
                         input='{"text": "aab", "label": "good"}\n')
        self.assertEqual(result.returncode, 3, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["metrics"], {})
        self.assertEqual(report["results"][0].keys(), {"line", "error"})
        self.assertIn("line 1: expected finite probabilities, got others, because numbers in the model overflow",
                      result.stderr)
        result = program("eval", "--model", other, "--data", self.texts)
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertIn("the loss was not finite", result.stderr)

    def refuses_ids_that_the_model_does_not_know(self, model):
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        tokenizer["added_tokens"].append({
            "id": 300, "content": "ZZ", "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False})
        other = self.folder / "other"
        shutil.copytree(model, other)
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        result = program("classify", "--model", other, "--input", "-",
                         input='{"text": "aZZ"}\n{"text": "aab"}\n')
        self.assertEqual(result.returncode, 1, result.stderr)
        first, second = map(json.loads, result.stdout.splitlines())
        self.assertIn("got 300", first["error"])
        self.assertEqual(second["label"], "good")

    def test_summaries(self):
        model, report = self.train("summarize", "task=summarize", f"data.train={self.documents}",
                                   f"data.valid={self.documents}", "train.seq_len=20", "train.steps=80",
                                   "data.skip_bad=true")
        self.assertEqual(report["valid_accuracy"], 1.0)
        lines = [json.dumps({"document": "two and more", "summary": "two"}), "{}",
                 json.dumps({"document": "six " * 10})]
        for beams in (1, 3):
            result = program("summarize", "--model", model, "--input", "-", "--beams", beams,
                             "--max-new-tokens", 6, "--no-repeat-ngram", 3, "--json",
                             input="\n".join(lines))
            self.assertEqual(result.returncode, 1, result.stderr)
            answer = json.loads(result.stdout)
            self.assertEqual(answer["faults"], 2)
            first, second, third = answer["results"]
            self.assertIn("document", second["error"])
            self.assertEqual(third["truncated_from"], 40)
            self.assertLessEqual(len(third["ids"]), 6)
            self.assertEqual(first["summary"], "two")
            self.assertEqual(first["rouge1"], 1.0)
            self.assertEqual(answer["metrics"]["measured"], 1)
        faulty = self.folder / "faulty_documents.jsonl"
        faulty.write_bytes(b"\n".join([b'{"document": ""}', b'{"document": "six\xff"}', b"no",
                                       b'{"document": 6}', b"", b'{"document": "six and more"}']))
        result = program("summarize", "--model", model, "--input", faulty)
        self.assertEqual(result.returncode, 1, result.stderr)
        answers = {answer["line"]: answer for answer in map(json.loads, result.stdout.splitlines())}
        self.assertEqual(sorted(answers), [1, 2, 3, 4, 6])
        for line, word in ((1, "document"), (2, "UTF-8"), (3, "byte"), (4, "document")):
            self.assertIn(word, answers[line]["error"], line)
            self.assertIn(f"line {line}:", result.stderr)
        self.assertEqual(answers[6]["summary"], "six")
        fine = program("summarize", "--model", model, "--input", "-", "--truncate", input=lines[2])
        self.assertEqual(fine.returncode, 0, fine.stderr)
        self.reads_lines_in_bounded_memory_and_reports_failed_reads("summarize", model, "document")
        endless = self.folder / "endless.json"
        endless.write_text((model / "tokenizer.json").read_text().replace("<|endoftext|>", "<|mark|>"))
        refused = program("train", "--dry-run", *settings("task=summarize", *TINY,
                                                          f"data.train={self.documents}",
                                                          f"data.tokenizer={endless}"))
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("data.tokenizer", refused.stderr)

    def test_a_classifier_needs_two_labels(self):
        path = self.folder / "alike.jsonl"
        path.write_text('{"text": "a", "label": "x"}\n' * 3)
        result = program("train", "--dry-run", *settings("task=classify", f"data.train={path}", *TINY))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, f"diffattn: {path}: expected texts with at least 2 labels, got 1\n")

    def test_models_of_other_tasks_are_refused(self):
        model, _ = self.train("needle", "task=needle", *[s for s in NEEDLE if "=" in s][len(TINY):])
        self.assertFalse((model / "tokenizer.json").exists())
        for verb, word in (("classify", "id2label"), ("summarize", "model_type")):
            result = program(verb, "--model", model, "--input", "-", input="{}")
            self.assertEqual(result.returncode, 1, verb)
            self.assertIn(word, result.stderr)
        for verb, *rest in (("eval", "--data", self.texts), ("classify", "--input", self.texts),
                            ("summarize", "--input", self.texts), ("generate", "--prompt", "a"),
                            ("analyze", "--text", "a", "--out", self.folder / "maps.html")):
            result = program(verb, "--model", model.parent, *rest)  # a run folder stands for its model
            self.assertEqual(result.returncode, 1, verb)
            self.assertIn(f"diffattn: {model}", result.stderr, verb)
        result = program("generate", "--model", model, "--prompt-ids", "5,7", "--stop", "x")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("has no tokenizer.json, which --stop needs", result.stderr)

    def test_dry_run_of_a_generated_task(self):
        result = program("train", "--dry-run", "--json", *settings("task=needle", *NEEDLE))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIsNone(json.loads(result.stdout)["train_tokens"])
        self.assertGreater(json.loads(result.stdout)["memory_bytes"], 0)

    def test_the_estimate_of_memory_of_classifiers_and_summarisers(self):
        sizes = ("model.hidden_size=256", "model.num_hidden_layers=4", "model.num_attention_heads=8",
                 "train.eval_every=0", "train.steps=2")
        for task, own in (("classify", ("classify.length=256", "train.batch_size=8", "classify.backbone=encoder")),
                          ("summarize", ("summarize.sentences=32", "summarize.selected=16", "train.batch_size=4"))):
            out = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"
            choice = settings(f"task={task}", *sizes, *own)
            told = program("train", "--dry-run", "--json", *choice)
            self.assertEqual(told.returncode, 0, told.stderr)
            estimate = json.loads(told.stdout)["memory_bytes"] / 2**20
            result = program("train", "--out", out, *choice)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"(?m)^memory +about \d+ MiB$")
            measured = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["memory_mib"]
            self.assertLess(abs(estimate / measured - 1), 0.15,
                            f"{task} {own}: {estimate:.0f} MiB told, {measured:.0f} taken")


if __name__ == "__main__":
    unittest.main()
