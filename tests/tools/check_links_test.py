# SPDX-License-Identifier: Apache-2.0
"""tools/check_links.py finds missing files and headings, and nothing else."""
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_links.py"


def broken(files):
    spec = importlib.util.spec_from_file_location("check_links", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tool.broken_links(pathlib.Path(folder).resolve())[1]


class CheckLinks(unittest.TestCase):
    def test_links_that_resolve(self):
        files = {"a.md": "[b](docs/b.md) [c](docs/b.md#λ-of-a-head-2) [d](#here)\n# Here\n",
                 "docs/b.md": "## λ, of a `head` 2\n[up](../a.md) ![x](https://example.org/x.png)\n"}
        self.assertEqual(broken(files), [])

    def test_missing_file(self):
        self.assertEqual(len(broken({"a.md": "[b](b.md)\n"})), 1)

    def test_missing_heading(self):
        self.assertEqual(len(broken({"a.md": "[b](b.md#two)\n", "b.md": "# One\n"})), 1)

    def test_code_is_no_link(self):
        self.assertEqual(broken({"a.md": "```\n[b](b.md)\n```\n`[b](b.md)`\n"}), [])


if __name__ == "__main__":
    unittest.main()
