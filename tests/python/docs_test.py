# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and the code in the documentation."""
import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ["DIFFATTN_PROGRAM"])


def blocks(file, language):
    """Returns the code blocks of a language."""
    text = (ROOT / file).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"{file} has no {language}"
    return found


class Documents(unittest.TestCase):
    def run_blocks(self, file):
        torch.manual_seed(0)
        names = {}
        with contextlib.redirect_stdout(io.StringIO()):
            for block in blocks(file, "python"):
                if "transformers" in block or "hf_layers" in block:
                    self.assertEqual(file, "docs/python.md")  # hf_test.py runs these blocks
                    continue
                exec(compile(block, file, "exec"), names)  # fails the test if it raises
        return names

    def test_readme(self):
        self.assertEqual(self.run_blocks("README.md")["out"].shape, (2, 128, 8, 128))

    def test_python_page(self):
        self.assertEqual(self.run_blocks("docs/python.md")["maps"].shape, (2, 8, 3, 32, 32))

    def test_migration_page(self):
        self.run_blocks("docs/migration.md")

    def test_cpp_page_names_what_the_headers_have(self):
        text, checked, listed = (ROOT / "docs/cpp.md").read_text(), 0, []
        for header, names in re.findall(r"^\| `(diffattn/[\w/]+\.h)` \| (.*?) \|", text, re.MULTILINE):
            declared = (ROOT / "include" / header).read_text()
            listed.append(header)
            for name in re.findall(r"`(\w+)", names):
                self.assertTrue(re.search(rf"\b{name}\b", declared), f"{header} has no {name}")
                checked += 1
        self.assertGreater(checked, 30)
        public = (str(path.relative_to(ROOT / "include")) for path in (ROOT / "include").rglob("*.h"))
        self.assertEqual(sorted(listed), sorted(public))  # every public header once

    def test_tutorial(self):
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("skipped: transformers is not installed")
        script = "set -euo pipefail\n" + "\n".join(blocks("docs/tutorial.md", "sh"))
        path = f"{PROGRAM.parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True,
                                    env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"},
                                    timeout=600)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            for made in ("runs/a/metrics.jsonl", "runs/a/model/config.json", "report.html"):
                self.assertGreater((pathlib.Path(folder) / made).stat().st_size, 100, made)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
