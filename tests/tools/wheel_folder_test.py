# SPDX-License-Identifier: Apache-2.0
"""tools/wheel_folder.py keeps a build folder only while sources, torch and options have the same contents."""
import importlib.util
import os
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "wheel_folder.py"


def load_tool():
    spec = importlib.util.spec_from_file_location("wheel_folder", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


class WheelFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.torch = self.root / "site" / "torch"
        self.version = self.torch / "version.py"
        self.header = self.torch / "include" / "torch" / "torch.h"
        self.source = self.root / "src" / "ops" / "a.cpp"
        for path, text in ((self.version, "2.11.0"), (self.header, "int t;\n"), (self.source, "int a;\n"),
                           (self.root / "CMakeLists.txt", "project(a)\n")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.tool = load_tool()

    def kept(self, *words):
        """Whether the folder, with an object in it, survives."""
        folder = self.root / "build"
        made_with = self.tool.fingerprint(self.root, self.torch, words)
        kept = self.tool.prepare(folder, made_with)
        self.assertEqual((folder / "a.o").is_file(), kept)
        (folder / "a.o").write_text("")
        return kept

    def test_nothing_changed(self):
        self.assertFalse(self.kept("CUDA=OFF"))
        self.assertTrue(self.kept("CUDA=OFF"))
        os.utime(self.source)
        self.assertTrue(self.kept("CUDA=OFF"))

    def test_each_change_empties_the_folder(self):
        self.kept("CUDA=OFF")
        self.assertFalse(self.kept("CUDA=ON"))
        times = self.source.stat()
        self.source.write_text("int b;\n")
        os.utime(self.source, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertFalse(self.kept("CUDA=ON"))
        (self.source.parent / "b.cpp").write_text("")
        self.assertFalse(self.kept("CUDA=ON"))
        self.version.write_text("2.11.1")
        self.assertFalse(self.kept("CUDA=ON"))
        self.header.write_text("long t;\n")
        self.assertFalse(self.kept("CUDA=ON"))
        self.assertTrue(self.kept("CUDA=ON"))

    def test_a_folder_without_a_stamp_is_emptied(self):
        self.kept()
        (self.root / "build" / self.tool.STAMP).unlink()
        self.assertFalse(self.kept())

    def test_every_source_folder_exists(self):
        for name in self.tool.SOURCES:
            self.assertTrue((TOOL.parents[1] / name).exists(), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
