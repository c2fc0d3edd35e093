# SPDX-License-Identifier: Apache-2.0
"""Runs the examples in the docstrings, and checks that everything public has one."""
import contextlib
import doctest
import inspect
import io
import json
import pathlib
import tempfile
import unittest

import diffattn_program.convert
import torch

import diffattn
import diffattn.analysis
import diffattn.bench
import diffattn.generator
import diffattn.model
import diffattn.options
import diffattn.parallel
import diffattn.verbs

try:
    import diffattn.hf
    HF = [diffattn.hf]
except ImportError as missing:
    print(f"skipped: {missing}")
    HF = []

MODULES = [diffattn, diffattn.ops, diffattn.nn.attention, diffattn.nn.cache, diffattn.nn.presets, diffattn.model,
           diffattn.generator, diffattn.analysis, diffattn.verbs, diffattn.parallel, diffattn.bench,
           diffattn_program.convert, *HF]
WITHOUT = {"ConversionError", "Options", "DiffAttention.extra_repr"}  # an error, a table, and torch's own method
CONFIG = {"task": "lm", "data": {"tokenizer": "bytes"},
          "model": {"attention": "diffllama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                    "num_attention_heads": 4},
          "train": {"steps": 2, "batch_size": 2, "seq_len": 64, "peak_tflops": 0.1}}


def public(module):
    """Yields the public functions and classes of a module with their names, and the methods of the classes."""
    for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
        thing = getattr(module, name)
        if getattr(thing, "__module__", None) != module.__name__ or not (inspect.isfunction(thing)
                                                                         or inspect.isclass(thing)):
            continue
        yield name, thing
        if inspect.isclass(thing) and name not in WITHOUT:
            for method, function in vars(thing).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.scratch = pathlib.Path(holder.name)
        (cls.scratch / "corpus.txt").write_text(pathlib.Path(__file__).read_text())
        cls.folder = diffattn.train(CONFIG, cls.scratch / "run",
                                    settings={"data.train": cls.scratch / "corpus.txt"})["model"]
        rows = [{"text": "fine", "label": "good", "document": "a cat", "summary": "cat"},
                {"text": "poor", "label": "bad", "document": "a dog", "summary": "dog"}] * 4
        lines = cls.scratch / "lines.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        cls.classifier, cls.summarizer = (
            diffattn.train({**CONFIG, "task": task}, cls.scratch / task,
                           settings={"data.train": lines, "data.valid": lines})["model"]
            for task in ("classify", "summarize"))

    def test_every_example(self):
        finder, runner = doctest.DocTestFinder(recurse=True), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        output, failed, tried = io.StringIO(), 0, 0
        for module in MODULES:
            names = {"torch": torch, "diffattn": diffattn, "scratch": self.scratch, "model_folder": self.folder,
                     "classifier_folder": self.classifier, "summarizer_folder": self.summarizer}
            for test in finder.find(module, module.__name__, globs=names):
                test.globs = names  # the examples of a module share their names
                with contextlib.redirect_stdout(output):
                    result = runner.run(test, out=output.write, clear_globs=False)
                failed, tried = failed + result.failed, tried + result.attempted
        self.assertEqual(failed, 0, output.getvalue())
        self.assertGreater(tried, 60)

    def test_everything_public_has_an_example(self):
        seen, wrong = 0, []
        for module in MODULES:
            for name, thing in public(module):
                if name in WITHOUT:
                    continue
                where = f"{module.__name__}.{name}"
                if ">>>" not in (thing.__doc__ or ""):
                    wrong.append(where)
                seen += 1
        self.assertEqual(wrong, [])
        self.assertGreater(seen, 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
