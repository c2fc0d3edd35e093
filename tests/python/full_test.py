# SPDX-License-Identifier: Apache-2.0
"""Tests the C++ library inside the Python process: load, generate, train, analyze, convert; Ctrl-C and the GIL."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch

import diffattn

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
CONFIG = {"task": "lm", "seed": 3,
          "model": {"attention": "diffllama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "tie_word_embeddings": True},
          "data": {"tokenizer": "bytes"},
          "train": {"steps": 6, "batch_size": 2, "seq_len": 64, "peak_tflops": 0.1}}


def program(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Full(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        cls.corpus = cls.folder / "corpus.txt"
        cls.corpus.write_text(pathlib.Path(__file__).read_text() * 4)
        cls.outcome = diffattn.train(CONFIG, cls.folder / "run", settings={"data.train": cls.corpus})
        cls.model = diffattn.load(cls.outcome["model"])

    def test_train(self):
        self.assertEqual((self.outcome["outcome"], self.outcome["step"]), ("done", 6))
        longer = diffattn.train(resume=self.folder / "run", settings={"train.steps": 7})
        self.assertEqual(longer["step"], 7)
        wider = {"train.steps": 8, "train.batch_size": 4}
        with self.assertRaisesRegex(ValueError, "--change-batch-size"):
            diffattn.train(resume=self.folder / "run", settings=wider)
        again = diffattn.train(resume=self.folder / "run", from_checkpoint="step-6", change_batch_size=True,
                               settings=wider)
        self.assertEqual((again["step"], again["tokens"]), (8, self.outcome["tokens"] // 6 * (6 + 2 * 2)))
        with self.assertRaisesRegex(RuntimeError, "step-5: expected .*, got no such folder"):
            diffattn.train(resume=self.folder / "run", from_checkpoint="step-5")
        plan = diffattn.train(CONFIG, dry_run=True, settings={"data": {"train": self.corpus}, "train.steps": 3})
        self.assertEqual(plan["steps"], 3)

    def test_wrong_settings_are_named(self):
        with self.assertRaisesRegex(ValueError, "diffattn: .*train.stepz.*train.steps"):
            diffattn.train({"train": {"stepz": 1}}, self.folder / "other")
        with self.assertRaisesRegex(ValueError, "--out or --resume"):
            diffattn.train(CONFIG)
        with self.assertRaisesRegex(RuntimeError, "no_such.txt"):
            diffattn.train(CONFIG, self.folder / "other", settings={"data.train": "no_such.txt"})

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "AddressSanitizer manages the memory")
    def test_a_verb_without_memory_says_what_to_change(self):
        code = ("import sys, diffattn\n"
                "try:\n    diffattn.train(sys.argv[1] + '/config.toml', sys.argv[1] + '_large',\n"
                "                   settings={'train.batch_size': 4096})\n"
                "except RuntimeError as error:\n    print(error)\n")
        result = subprocess.run(
            [sys.executable, "-c", code, self.folder / "run"], capture_output=True, text=True, timeout=300,
            env={**os.environ, "LD_PRELOAD": os.environ["DIFFATTN_ALLOCATION_LIMIT"],
                 "DIFFATTN_TEST_ALLOCATION": str(1 << 25)})
        self.assertRegex(result.stdout, r"^diffattn: .*\ndiffattn: To use less memory, lower train.batch_size .*\n$",
                         result.stderr)

    def test_generate_equals_the_program(self):
        want = program("generate", "--model", self.outcome["model"], "--prompt", "def ", "--max-new-tokens", 12)
        self.assertEqual(self.model.generate("def ", max_new_tokens=12), want["results"][0]["text"])
        ids = self.model.generate_ids([self.model.encode("def ")], max_new_tokens=12)
        self.assertEqual(ids, [want["results"][0]["ids"]])
        self.assertEqual(self.model.decode(self.model.encode("naïve")), "naïve")
        both = self.model.generate(["def ", "import json"], max_new_tokens=5)
        self.assertEqual(len(both), 2)
        with self.assertRaisesRegex(RuntimeError, "top_p"):
            self.model.generate("x", temperature=1.0, top_p=2.0)

    def test_logits_and_config(self):
        ids = torch.tensor([self.model.encode("def ")])
        logits = self.model.logits(ids)
        self.assertEqual(logits.shape, (1, 4, self.model.config["vocab_size"]))
        self.assertFalse(logits.requires_grad)
        first, = self.model.generate_ids(ids.tolist(), max_new_tokens=1)
        self.assertEqual(first, [int(logits[0, -1].argmax())])
        with self.assertRaisesRegex(RuntimeError, "argument 'ids': expected int64"):
            self.model.logits(ids.float())

    def test_text_arrives_in_pieces(self):
        pieces = []
        text = self.model.generate("def ", max_new_tokens=12, on_text=lambda row, piece: pieces.append((row, piece)))
        self.assertEqual("".join(piece for _, piece in pieces), text)
        self.assertEqual({row for row, _ in pieces}, {0})

        def fail(row, piece):
            raise KeyError("mine")
        with self.assertRaisesRegex(KeyError, "mine"):
            self.model.generate("def ", max_new_tokens=12, on_text=fail)

    def test_a_missing_folder_is_named(self):
        with self.assertRaisesRegex(RuntimeError, "no/such/folder") as caught:
            diffattn.load("no/such/folder")
        self.assertNotIn("Exception raised from", str(caught.exception))

    def test_analyze(self):
        page = self.folder / "page.html"
        result = diffattn.analyze(self.model, text="import json", out=page, layer=0, head=1)
        want = program("analyze", "--model", self.outcome["model"], "--text", "import json", "--layer", 0, "--head", 1)
        self.assertEqual(result, want)
        self.assertGreater(page.stat().st_size, 10_000)
        with self.assertRaisesRegex(RuntimeError, "--layer: expected an integer in"):
            diffattn.analyze(self.model, text="x", layer=9)

    def test_convert(self):
        there, back = self.folder / "there", self.folder / "back"
        report = diffattn.convert(self.outcome["model"], there, to="microsoft")
        self.assertEqual((report["from"], report["to"]), ("diffllama", "microsoft"))
        diffattn.convert(there, back, to="diffllama")
        weights = [(folder / "model.safetensors").read_bytes()
                   for folder in (pathlib.Path(self.outcome["model"]), back)]
        self.assertEqual(*weights)
        with self.assertRaisesRegex(diffattn.ConversionError, "--force"):
            diffattn.convert(there, back, to="diffllama")
        with self.assertRaises(ValueError):
            diffattn.convert(there, back, to="no_such_layout")
        import diffattn.convert as old  # a module before
        with self.assertWarnsRegex(DeprecationWarning, "call diffattn.convert"):
            old.convert(there, self.folder / "again", to="diffllama", dry_run=True)

    def test_other_threads_run_meanwhile(self):
        def counted():
            """How often this thread runs while another one generates."""
            count, done = 0, threading.Event()
            worker = threading.Thread(target=lambda: (self.model.generate_ids([[1]], max_new_tokens=200), done.set()))
            worker.start()
            while not done.is_set():
                count += 1
                time.sleep(0.0005)
            worker.join()
            return count
        # A busy machine may run this thread seldom during one call, but not during each of twenty.
        self.assertTrue(any(counted() > 10 for _ in range(20)))

    def interrupted(self, code, started=lambda: True):
        """Runs code in another Python, sends SIGINT after it printed "ready" and `started`, and returns its output."""
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env={**os.environ, "FOLDER": str(self.folder)})
        self.assertEqual(child.stdout.readline(), "ready\n")
        deadline = time.monotonic() + 300
        while not started() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        return child.communicate(timeout=300)

    def test_control_c_stops_generation(self):
        out, err = self.interrupted(
            "import diffattn, os\n"
            "model = diffattn.load(os.environ['FOLDER'] + '/run/model')\n"
            "try:\n"
            "    print('ready', flush=True)\n"
            "    model.generate_ids([[1]] * 4, max_new_tokens=1 << 20)\n"
            "except KeyboardInterrupt:\n    print('stopped')\n")
        self.assertEqual(out, "stopped\n", err)

    def test_control_c_saves_a_training(self):
        shutil.copytree(self.folder / "run", self.folder / "stopped")
        log = self.folder / "stopped" / "metrics.jsonl"
        size = log.stat().st_size
        out, err = self.interrupted(
            "import diffattn, os\n"
            "try:\n"
            "    print('ready', flush=True)\n"
            "    diffattn.train(resume=os.environ['FOLDER'] + '/stopped', settings={'train.steps': 1 << 20})\n"
            "except KeyboardInterrupt as error:\n    print(error)\n", started=lambda: log.stat().st_size > size)
        self.assertRegex(out, r"stopped at step \d+; continue with diffattn.train\(resume=", err)


class OperatorsOnly(unittest.TestCase):
    def test_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(os.environ["DIFFATTN_LIBRARY"])
            os.symlink(library, f"{folder}/libdiffattn.so")
            result = subprocess.run(
                [sys.executable, "-c", "import diffattn; diffattn.load('x')"], capture_output=True, text=True,
                timeout=300, env={**os.environ, "DIFFATTN_LIBRARY": f"{folder}/libdiffattn.so"})
            self.assertIn("this installation has only the operators", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
