# SPDX-License-Identifier: Apache-2.0
"""Runs the example notebook, cell by cell, as a notebook does."""
import ast
import importlib.util
import json
import os
import pathlib
import unittest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples" / "attention.ipynb"
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def run_cell(source, names):
    """Runs a cell and returns the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None


class Notebook(unittest.TestCase):
    def test_every_cell(self):
        names, shown, skipped = {}, [], []
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] != "code":
                continue
            self.assertEqual(cell["outputs"], [])
            if "transformers" in source and importlib.util.find_spec("transformers") is None:
                skipped.append(source)
                continue
            shown.append(run_cell(source, names))
        pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
        self.assertEqual(len(pages), 1)
        self.assertIn("<iframe", pages[0])
        self.assertLess(names["loss"].item(), 2.0)
        if skipped:
            self.skipTest("skipped: transformers is not installed")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
