# SPDX-License-Identifier: Apache-2.0
"""scripts/make_corpus with made-up packages: kinds, splits, duplicates, errors, and the same bytes twice."""
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("DIFFATTN_PROGRAM", "")

WORDS = "the driver reads a page from the buffer and writes its length into the header of that frame".split()


def paragraphs(seed, count):
    """Made-up prose, different for each seed."""
    lines = []
    for i in range(count):
        turn = (7 * seed + 3 * i) % len(WORDS)
        lines.append(f"Section {seed}.{i} says how " + " ".join(WORDS[turn:] + WORDS[:turn]) + f" in case {seed * i}.")
    return "\n\n".join(lines) + "\n"


def ar_member(name, content):
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def tar_of(files, mode="w:xz"):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo("./" + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def debian_package(files):
    return b"!<arch>\n" + ar_member("debian-binary", b"2.0\n") + ar_member("data.tar.xz", tar_of(files))


def wheel(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def documents_in(file):
    """The documents of a token file with tokens of two bytes, each as bytes."""
    tokens, documents = struct.unpack_from("<QQ", file, 16)
    ends = struct.unpack_from(f"<{documents}Q", file, len(file) - 8 * documents)
    assert ends[-1] == tokens
    return [file[64 + 2 * begin:64 + 2 * end] for begin, end in zip((0, *ends), ends)]


class MakeCorpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.packages = self.root / "packages"
        self.packages.mkdir()
        self.listed = {"vocab_size": 400, "sample_mb": 1, "packages": []}

    def add(self, name, file, content, split, kinds, **more):
        (self.packages / file).write_bytes(content)
        source = "debian" if file.endswith(".deb") else "pypi"
        self.listed["packages"].append({"source": source, "name": name, "version": "1.0", "file": file,
                                        "sha256": hashlib.sha256(content).hexdigest(), "split": split,
                                        "kinds": kinds, **more})

    def add_two(self):
        manual = ".TH TOOL 1\n.SH NAME\ntool \\- reads frames\n.PP\n" + paragraphs(1, 8)
        page = "<html><head><title>x</title></head><body><h1>Frames</h1><p>" + paragraphs(2, 8) + "</p></body></html>"
        driver = "/* Copyright nobody */\nint read_page(void);\n\n" + "/* " + paragraphs(3, 8) + " */\n"
        self.add("tool-doc", "tool-doc_1.0_all.deb", debian_package({
            "usr/share/man/man1/tool.1.gz": gzip.compress(manual.encode(), mtime=0),
            "usr/share/doc/tool/page.html": page.encode(),
            "usr/share/doc/tool/copyright": paragraphs(9, 8).encode(),
            "usr/share/doc/tool/table.txt": b"0 1 2 3 4 5 6 7\n" * 100,
            "usr/share/doc/tool/page.de.txt": b"Der Treiber liest eine Seite aus dem Puffer.\n" * 20,
            "usr/share/doc/tool/example.tar.gz": b"",
            "usr/src/tool.tar.xz": tar_of({"tool/driver.c": driver.encode()})}),
            "train", ["manual", "prose", "c"])
        code = '"""' + paragraphs(4, 8) + '"""\n'
        self.add("made", "made-1.0-py3-none-any.whl", wheel({
            "made/__init__.py": code, "made/copy.py": code,
            "made/near.py": code + "\n\nx = 'a line that no other module of the package has in it'\n",
            "made/latin.py": b"# \xff\n" * 200, "made-1.0.dist-info/METADATA": paragraphs(5, 8)}), "test", ["python"])

    def run_tool(self, *arguments, out="out", **environment):
        (self.root / "list.json").write_text(json.dumps(self.listed))
        return subprocess.run([sys.executable, ROOT / "scripts/make_corpus", "--list", self.root / "list.json",
                               "--packages", self.packages, "--out", self.root / out, "--jobs", "1",
                               *(arguments or ["--text-only"])], capture_output=True, text=True,
                              env={**os.environ, **environment})

    def records(self, name, out="out"):
        return [json.loads(line) for line in (self.root / out / "text" / name).read_text().splitlines()]

    def test_kinds_splits_and_duplicates(self):
        self.add_two()
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        files = {str(f.relative_to(self.root / "out/text")) for f in (self.root / "out/text").rglob("*.jsonl")}
        self.assertEqual(files, {"train/manual.jsonl", "train/prose.jsonl", "train/c.jsonl", "test/python.jsonl"})
        self.assertEqual([r["path"] for r in self.records("test/python.jsonl")], ["made/__init__.py"])
        [manual] = self.records("train/manual.jsonl")
        self.assertIn("NAME\ntool - reads frames", manual["text"])
        [prose] = self.records("train/prose.jsonl")
        self.assertTrue(prose["text"].startswith("Frames\n\nSection 2.0"), prose["text"][:80])
        [driver] = self.records("train/c.jsonl")
        self.assertEqual(driver["path"], "usr/src/tool.tar.xz/tool/driver.c")
        self.assertTrue(driver["text"].startswith("int read_page"), driver["text"][:80])
        counts = json.loads((self.root / "out/corpus.json").read_text())["counts"]
        self.assertEqual(counts["train"]["prose"], {"documents": 1, "bytes": len(prose["text"].encode())})

    def test_text_of_the_test_split_stays_out_of_training(self):
        page = paragraphs(1, 8).encode()
        self.add("first", "first_1.0_all.deb", debian_package({"a.txt": page, "b.txt": paragraphs(2, 8).encode()}),
                 "train", ["prose"])
        self.add("second", "second_1.0_all.deb", debian_package({"c.txt": page}), "test", ["prose"])
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual([r["path"] for r in self.records("train/prose.jsonl")], ["b.txt"])
        self.assertEqual([r["path"] for r in self.records("test/prose.jsonl")], ["c.txt"])

    def test_share_takes_some_files_by_their_paths(self):
        files = {f"doc/{i}.txt": paragraphs(i, 8).encode() for i in range(1, 41)}
        self.add("large", "large_1.0_all.deb", debian_package(files), "train", ["prose"], share=0.5)
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertTrue(8 < len(self.records("train/prose.jsonl")) < 32)

    def test_errors_name_the_package(self):
        self.add_two()
        self.listed["packages"][0]["sha256"] = "0" * 64
        done = self.run_tool()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "package tool-doc: file .*: expected sha256 0{64}, got [0-9a-f]{64}")
        self.listed["packages"][0]["split"] = "training"
        self.assertIn("package tool-doc: split: expected one of", self.run_tool().stderr)
        self.listed["packages"] = [{"source": "pypi", "name": "made", "split": "train", "kinds": ["rust"]}]
        self.assertIn("package made: kinds: expected some of", self.run_tool().stderr)

    def test_lists_that_cannot_be(self):
        self.add_two()
        good = self.listed["packages"]
        for changes, message in (({"name": "made"}, "package made: expected each name once"),
                                 ({"name": "--help"}, "name: expected one that begins with a letter or digit"),
                                 ({"name": None}, "name: expected one that begins with a letter or digit"),
                                 ({"file": "../list.json"}, "file: expected a name without folders"),
                                 ({"file": ".."}, "file: expected a name without folders")):
            self.listed["packages"] = [{**good[0], **changes}, good[1]]
            done = self.run_tool()
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.listed = []
        self.assertIn("packages: expected a list of objects", self.run_tool().stderr)

    def test_files_with_odd_names_and_damaged_files(self):
        page = gzip.compress(paragraphs(1, 8).encode(), mtime=0)
        self.add("odd", "odd_1.0_all.deb", debian_package({
            "doc/caf\udce9.txt": paragraphs(2, 8).encode(),  # Latin-1
            "doc/damaged.txt.gz": page[:20] + b"\xff" * 20 + page[40:],
            "doc/huge.txt.xz": lzma.compress(bytes(65 << 20))}), "train", ["prose"])
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([r["path"] for r in self.records("train/prose.jsonl")], ["doc/caf\ufffd.txt"])

    def test_nothing_is_left_of_another_list(self):
        self.add_two()
        self.assertEqual(self.run_tool().returncode, 0)
        del self.listed["packages"][0]
        self.assertEqual(self.run_tool().returncode, 0)
        files = {str(f.relative_to(self.root / "out/text")) for f in (self.root / "out/text").rglob("*.jsonl")}
        self.assertEqual(files, {"test/python.jsonl"})

    def test_a_file_that_is_no_package(self):
        self.add("broken", "broken_1.0_all.deb", b"!<arch>\n" + ar_member("data.tar.xz", b"no tar"), "train", ["c"])
        done = self.run_tool()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "package broken: file .*: expected an archive, got")
        member = ar_member("other", b"").replace(b"0         `", b"-60       `")
        for name, content in (("ends", b"!<arch>\n" + member), ("cut", wheel({"a.py": paragraphs(1, 8)})[:-40])):
            self.listed["packages"] = []
            self.add(name, f"{name}_1.0.{'deb' if name == 'ends' else 'whl'}", content, "train", ["c"])
            done = self.run_tool()
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "make_corpus: (package|file) .*: expected ")
            self.assertNotIn("Traceback", done.stderr)

    def test_a_package_that_no_registry_has(self):
        self.listed["packages"] = [{"source": "debian", "name": "no-such-package-of-diffattn", "version": "9",
                                    "split": "train", "kinds": ["c"]}]
        done = self.run_tool()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "package no-such-package-of-diffattn: expected version 9 from debian, got: ")

    def registries(self):
        """Made-up apt-get and pip that have only version 2.0. Returns the environment that finds them."""
        new = self.root / "registries"
        (new / "pip").mkdir(parents=True)
        client = f"#!{sys.executable}\n" + """import pathlib, sys
name, _, version = sys.argv[-1].replace("==", "=").partition("=")
if version not in ("", "2.0"):
    sys.exit(f"no version {version}")
file = {"tool-doc": "tool-doc_1%3a2.0_all.deb", "made": "made-2.0-py3-none-any.whl"}[name]
pathlib.Path(file).write_bytes(b"new " + name.encode())
"""
        for file in (new / "apt-get", new / "pip/__main__.py"):
            file.write_text(client)
            file.chmod(0o755)
        (new / "pip/__init__.py").touch()
        return {"PATH": f"{new}:{os.environ['PATH']}", "PYTHONPATH": str(new)}

    def test_pin_takes_what_the_registries_have_today(self):
        self.add_two()
        self.listed["packages"][1]["share"] = 0.5
        before = self.listed["packages"]
        done = self.run_tool("--pin", **self.registries())
        self.assertEqual(done.returncode, 0, done.stderr)
        pinned = json.loads((self.root / "list.json").read_text())
        self.assertEqual({**pinned, "packages": []}, {**self.listed, "packages": []})
        found = [("1:2.0", "tool-doc_1%3a2.0_all.deb", b"new tool-doc"),
                 ("2.0", "made-2.0-py3-none-any.whl", b"new made")]
        for old, new, (version, file, content) in zip(before, pinned["packages"], found, strict=True):
            sha256 = hashlib.sha256(content).hexdigest()
            self.assertEqual(new, {**old, "version": version, "file": file, "sha256": sha256})
            self.assertEqual((self.packages / file).read_bytes(), content)

    @unittest.skipUnless(PROGRAM, "without the program there are no token files")
    def test_the_same_list_gives_the_same_bytes(self):
        self.add_two()
        files = {f"doc/{i}.txt": paragraphs(i, 8).encode() for i in range(11, 17)}
        self.add("valid", "valid_1.0_all.deb", debian_package(files), "valid", ["prose"])
        for out in ("one", "two"):
            done = self.run_tool("--program", PROGRAM, out=out)
            self.assertEqual(done.returncode, 0, done.stderr)
        first, second = (json.loads((self.root / out / "corpus.json").read_text()) for out in ("one", "two"))
        self.assertEqual(first, second)
        self.assertIn("train.tokens", first["sha256"])
        # The documents of valid.tokens are mixed.
        self.assertNotEqual(first["sha256"]["valid.tokens"], first["sha256"]["tokens/valid/prose.tokens"])
        self.assertIn("tokens/test/python.tokens", first["sha256"])
        self.assertGreater(first["counts"]["test"]["python"]["tokens"], 100)
        self.assertNotIn("train_part.tokens", first["sha256"])

    @unittest.skipUnless(PROGRAM, "without the program there are no token files")
    def test_part_takes_a_share_of_the_training_documents(self):
        files = {f"doc/{i}.txt": paragraphs(i, 8).encode() for i in range(1, 41)}
        self.add("large", "large_1.0_all.deb", debian_package(files), "train", ["prose"])
        documents = {}
        for share in ("0.25", "0.5", "1"):
            done = self.run_tool("--program", PROGRAM, "--part", share)
            self.assertEqual(done.returncode, 0, done.stderr)
            whole, part = ((self.root / "out" / name).read_bytes() for name in ("train.tokens", "train_part.tokens"))
            documents[share] = [documents_in(file) for file in (whole, part)]
        for share, (whole, part) in documents.items():
            self.assertTrue(set(part) <= set(whole))
            self.assertLess(abs(len(part) - 40 * float(share)), 12 if share != "1" else 1)
        self.assertLess(set(documents["0.25"][1]), set(documents["0.5"][1]))
        self.assertEqual(self.run_tool("--program", PROGRAM).returncode, 0)
        self.assertFalse((self.root / "out/train_part.tokens").exists())

    def test_without_the_program_nothing_is_removed(self):
        self.add_two()
        self.assertEqual(self.run_tool().returncode, 0)
        (self.root / "no_program").write_text("")
        (self.root / "broken").write_text("#!/no/such/interpreter\n")
        (self.root / "broken").chmod(0o755)
        for name in ("missing", "no_program", "broken"):
            done = self.run_tool("--program", str(self.root / name))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "(?m)^make_corpus: --program: expected a program.*, got.*")
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual((self.root / "out/corpus.json").exists(), name != "broken")

    def test_a_folder_that_cannot_be_made_is_named(self):
        self.add_two()
        (self.root / "file").write_text("")
        done = self.run_tool(out="file")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "(?m)^make_corpus: .*file")
        self.assertNotIn("Traceback", done.stderr)

    def test_a_part_that_cannot_be(self):
        for arguments, message in ((["--part", "1.5"], "expected a number above 0 and at most 1, got 1.5"),
                                   (["--part", "0.5", "--text-only"], "--part: expected token files, got --text-only")):
            done = self.run_tool(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
