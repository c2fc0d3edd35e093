# SPDX-License-Identifier: Apache-2.0
"""Checks an installed package as a new user would use it. wheel_test.py runs it in an empty environment."""
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import torch

import diffattn

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "fixtures" / "golden" / "diffllama_gqa"
SERVER_LIBRARY = "libmicrohttpd.so.12"
HAS_PROGRAM = diffattn.info()["program"] is not None  # otherwise only the operators are there for this torch


def only_if(condition):
    """Leaves a test out, without counting it as skipped, where it has nothing to test."""
    return lambda test: test if condition else None


def command(*words):
    result = subprocess.run(["diffattn", *map(str, words)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{words}: {result.returncode}\n{result.stderr}"
    return result.stdout


def first_block(page, pattern):
    """Returns the first part of a page of this repository that a pattern finds."""
    return re.search(pattern, (ROOT / page).read_text(), re.DOTALL).group(1)


class Installed(unittest.TestCase):
    """The tests run in the order of their names, in an empty folder."""

    def test_1_import_and_readme(self):
        self.assertNotIn(str(ROOT), diffattn.__file__)
        self.assertEqual(diffattn.info()["built_for_torch"].split(".")[:2], torch.__version__.split(".")[:2])
        names = {}
        exec(first_block("README.md", "```python\n(.*?)```"), names)
        self.assertEqual(names["out"].shape, (2, 128, 8, 128))
        self.assertEqual(names["lam"].grad.shape, ())

    @only_if(HAS_PROGRAM)
    def test_2_info(self):
        info = json.loads(command("info", "--json"))
        self.assertEqual(info["torch"].split(".")[:2], torch.__version__.split(".")[:2], info)
        self.assertTrue(command("--version").startswith(f"diffattn {diffattn.__version__}"))

    @only_if(HAS_PROGRAM)
    def test_3_train_generate_analyze(self):
        shutil.copytree(pathlib.Path(json.__file__).parent, "corpus", ignore=shutil.ignore_patterns("__pycache__"))
        pathlib.Path("run.toml").write_text(first_block("docs/tutorial.md", "<<'TOML'\n(.*?)TOML\n"))
        command("train", "--config", "run.toml", "--out", "runs/a", "--set", "train.steps=20")
        text = json.loads(command("generate", "--model", "runs/a/model", "--prompt", "def ", "--max-new-tokens", "20",
                                  "--json"))["results"][0]["text"]
        model = diffattn.load("runs/a/model")
        self.assertEqual(model.generate("def ", max_new_tokens=20), text)
        more = diffattn.train(resume="runs/a", settings={"train.steps": 22})
        self.assertEqual(more["step"], 22)
        self.assertIn("models", diffattn.analyze(model, text="import json", out="report.html"))

    @only_if(HAS_PROGRAM)
    def test_4_serve(self):
        try:
            ctypes.CDLL(SERVER_LIBRARY)
        except OSError:
            self.skipTest(f"skipped: {SERVER_LIBRARY} is not installed")
        sys.path.append(str(ROOT / "tests" / "serve"))
        from server import Server
        with Server("runs/a/model") as server:
            answer = server.complete(prompt="def ", max_tokens=20, temperature=0)
            self.assertEqual(server.stop(), 0)
        expected = diffattn.load("runs/a/model").generate("def ", max_new_tokens=20)
        self.assertEqual(answer["choices"][0]["text"], expected)

    @only_if(HAS_PROGRAM)
    def test_4_serve_without_its_library(self):
        hidden = pathlib.Path("hidden").resolve()
        hidden.mkdir()
        (hidden / SERVER_LIBRARY).touch()  # the loader finds this empty file first
        result = subprocess.run(["diffattn", "serve", "--model", "runs/a/model", "--port", "0"], capture_output=True,
                                text=True, timeout=300, env={**os.environ, "LD_LIBRARY_PATH": str(hidden)})
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"cannot load {SERVER_LIBRARY}", result.stderr)
        self.assertIn("apt-get install libmicrohttpd12", result.stderr)

    def test_4_convert(self):
        model = pathlib.Path("runs/a/model") if HAS_PROGRAM else GOLDEN
        command("convert", "--to", "microsoft", model, "microsoft")
        diffattn.convert("microsoft", "diffllama", to="diffllama")
        self.assertEqual(pathlib.Path("diffllama/model.safetensors").read_bytes(),
                         (model / "model.safetensors").read_bytes())

    def test_5_diffllama(self):
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("skipped: transformers is not installed")
        from transformers import AutoModelForCausalLM, DiffLlamaConfig, DiffLlamaForCausalLM
        config = DiffLlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                 vocab_size=300)
        models = [DiffLlamaForCausalLM(config).eval()]
        if HAS_PROGRAM:
            models.append(AutoModelForCausalLM.from_pretrained("runs/a/model").eval())
        prompt = torch.tensor([list(b"def main")])
        for model in models:
            want = model(prompt).logits
            diffattn.hf.accelerate(model)
            torch.testing.assert_close(model(prompt).logits, want, rtol=0, atol=2e-5)

    @only_if(not HAS_PROGRAM)
    def test_5_without_the_full_library(self):
        with self.assertRaisesRegex(RuntimeError, "only the operators"):
            diffattn.load("runs/a/model")
        result = subprocess.run(["diffattn", "info"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("only the operators", result.stderr)

    def test_6_licences(self):
        files = {path.name for path in importlib.metadata.files("diffattn") if "licenses" in path.parts}
        self.assertLessEqual({"LICENSE", "THIRD_PARTY.md", "third_party.txt"}, files)


if __name__ == "__main__":
    unittest.main(verbosity=2)
