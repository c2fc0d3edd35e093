# SPDX-License-Identifier: Apache-2.0
"""Tests `diffattn analyze`: every output for every kind of model, numbers that agree with each other
and with their definitions, and error messages."""
import csv
import json
import math
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
SMALL = ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=4",
         "model.initializer_range=0.4", "train.steps=1", "train.batch_size=2"]
NEEDLE = ["task=needle", "needle.length=24", "needle.needles=3", "needle.keys=8", "needle.values=8", "needle.noise=8"]
STATISTICS = ["sparsity", "focus", "mean_abs", "negative_mass", "entropy", "sink_mass", "row_max", "noise_cancelled",
              "lambda", "similarity"]


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                          **kwargs)


def by_definition(maps):
    """Computes the statistics of a causal map from its entries."""
    rows = len(maps["p1"])
    entries = rows * (rows + 1) / 2
    out = dict.fromkeys(STATISTICS, 0.0)
    for m in range(rows):
        a = maps.get("difference", maps["p1"])[m][:m + 1]
        total = sum(map(abs, a))
        out["sparsity"] += sum(abs(x) < 1e-3 for x in a) / entries
        out["focus"] += sum(abs(x) > 0.5 for x in a) / entries
        out["mean_abs"] += total / entries
        out["negative_mass"] += sum(max(-x, 0) for x in a) / rows
        out["entropy"] -= sum(abs(x) / total * math.log(abs(x) / total) for x in a if x) / rows
        out["sink_mass"] += a[0] / rows
        out["row_max"] += max(a) / rows
        if "p2" in maps:
            scale = maps["lambda"][m if len(maps["lambda"]) > 1 else 0]
            pairs = list(zip(maps["p1"][m], maps["p2"][m]))
            out["noise_cancelled"] += sum(min(x, max(scale * y, 0)) for x, y in pairs) / rows
            out["lambda"] += scale / rows
            out["similarity"] += sum(min(x, y) for x, y in pairs) / rows
    return out


class Analyze(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.corpus = cls.folder / "corpus.txt"
        cls.corpus.write_text("alpha beta gamma delta " * 60)
        cls.text = cls.train("text", *SMALL, f"data.train={cls.corpus}", "train.seq_len=64")
        cls.needle = cls.train("needle", *SMALL, *NEEDLE)
        cls.plain = cls.train("transformer", *SMALL, *NEEDLE, "model.attention=transformer")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def train(cls, name, *settings):
        out = cls.folder / name
        result = program("train", "--out", out, *(part for one in settings for part in ("--set", one)))
        assert result.returncode == 0, result.stderr
        return out / "model"

    def analyze(self, *arguments):
        result = program("analyze", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def numbers(self, *arguments):
        return json.loads(self.analyze(*arguments, "--json"))

    def assert_fails(self, *arguments, says):
        result = program("analyze", *arguments)
        self.assertIn(result.returncode, (1, 2), result.stdout)
        self.assertRegex(result.stderr, says)
        self.assertEqual(result.stdout, "")

    def assert_statistics_hold(self, model):
        found = {(row["layer"], row["head"]): row for row in model["statistics"]}
        self.assertEqual(len(found), model["layers"] * model["heads"])
        maps = model["maps"]
        for row, hidden in ((row, row[m + 1:]) for m, row in enumerate(maps["p1"])):
            self.assertAlmostEqual(sum(row), 1, places=4)
            self.assertFalse(any(hidden))
        shown = found[maps["layer"], maps["head"]]
        for key, wanted in by_definition(maps).items():
            if shown[key] is None:
                self.assertNotIn("p2", maps)
            else:
                self.assertAlmostEqual(shown[key], wanted, delta=2e-5 * max(1, abs(wanted)), msg=key)

    def test_numbers_of_a_text_by_definition(self):
        out = self.numbers("--model", self.text, "--text", "alpha beta <b>", "--layer", 1, "--head", 1)
        model = out["models"][0]
        self.assertEqual("".join(model["queries"]), "alpha beta <b>")
        self.assert_statistics_hold(model)
        maps = model["maps"]
        for p1, p2, difference in zip(maps["p1"], maps["p2"], maps["difference"]):
            for x, y, z in zip(p1, p2, difference):
                self.assertAlmostEqual(x - maps["lambda"][0] * y, z, places=6)

    def test_attentions_of_the_family(self):
        # The other presets differ from these only inside their layers, which the C++ tests cover.
        for preset in ("transformer", "microsoft_v2", "introspective"):
            with self.subTest(preset):
                model = self.plain
                if preset != "transformer":
                    model = self.train(preset, *SMALL, *NEEDLE, f"model.attention={preset}")
                page = self.folder / f"{preset}.html"
                parts = self.numbers("--model", model, "--task", "needle", "--examples", 1, "--layer", 1, "--head", 0,
                                     "--out", page)["models"]
                self.assertGreater(page.stat().st_size, 50000)
                self.assert_statistics_hold(parts[0])
                self.assertEqual(len(parts), 3 if preset == "introspective" else 1)
                self.assertEqual(bool(parts[0]["lambda"]), preset not in ("transformer", "introspective"))
                if preset == "introspective":  # path 2 sees three keys of every token
                    self.assertEqual(len(parts[2]["keys"]), 3 * len(parts[2]["queries"]))

    def test_threshold_of_sparsity(self):
        model = self.numbers("--model", self.text, "--text", "alpha beta", "--threshold", 0.1,
                             "--layer", 0, "--head", 0)
        part = model["models"][0]
        entries = [abs(x) for m, row in enumerate(part["maps"]["difference"]) for x in row[:m + 1]]
        expected = sum(x < 0.1 for x in entries) / len(entries)
        self.assertAlmostEqual(part["statistics"][0]["sparsity"], expected, places=6)

    def test_token_lambda_is_per_head(self):
        model = self.folder / "microsoft_v2" / "model"
        if not model.exists():
            model = self.train("v2", *SMALL, *NEEDLE, "model.attention=microsoft_v2")
        out = self.numbers("--model", model, "--task", "needle", "--layer", 0, "--head", 0)
        part = out["models"][0]
        self.assertEqual(len(part["lambda"][0]["heads"]), part["heads"])
        self.assertIsNone(part["lambda"][0]["init"])
        self.assertEqual(len(part["maps"]["lambda"]), len(part["queries"]))

    def test_settings_of_a_task_are_read_without_a_run_file(self):
        alone = self.folder / "alone" / "model"
        shutil.copytree(self.needle, alone)
        settings = [part for one in [*NEEDLE[1:], "needle.length=20"] for part in ("--set", one)]
        result = program("analyze", "--model", alone, "--task", "needle", "--examples", 3, *settings, "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        longer = self.numbers("--model", self.needle, "--task", "needle")  # needle.length=24
        self.assertEqual(len(json.loads(result.stdout)["models"][0]["queries"]),
                         len(longer["models"][0]["queries"]) - 4)

    def test_encoder_and_cross_attention(self):
        classifier = self.train("classifier", *SMALL, "task=classify", "classify.backbone=encoder")
        part = self.numbers("--model", classifier, "--task", "classify", "--layer", 0, "--head", 0)["models"][0]
        self.assertGreater(part["maps"]["p1"][0][-1], 0)  # the first token sees the last
        summarizer = self.train("summarizer", *SMALL, "task=summarize")
        page, png = self.folder / "summarizer.html", self.folder / "cross.png"
        out = self.numbers("--model", summarizer, "--task", "summarize", "--examples", 1, "--layer", 0, "--head", 1,
                           "--out", page, "--png", png, "--part", "cross-attention")
        names = [part["name"].split(", ")[1] for part in out["models"]]
        self.assertEqual(names, ["encoder", "decoder", "cross-attention"])
        encoder, decoder, cross = out["models"]
        self.assertEqual(cross["queries"], decoder["queries"])
        self.assertEqual(cross["keys"], encoder["queries"])
        self.assertEqual(len(cross["maps"]["p1"]), len(decoder["queries"]))
        for row in cross["maps"]["p1"]:
            self.assertAlmostEqual(sum(row), 1, places=4)
        self.assert_statistics_hold(decoder)
        self.assert_fails("--model", summarizer, "--task", "summarize", "--part", "middle", "--ascii",
                          says="--part.*encoder, decoder, cross-attention.*'middle'")
        self.writes_no_more_than_it_can_read(summarizer)

    def writes_no_more_than_it_can_read(self, summarizer):
        short = self.folder / "short"
        shutil.copytree(summarizer, short)
        config = json.loads((short / "config.json").read_text())
        del config["eos_token_id"]  # it writes until the limit
        (short / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=32)))
        parts = self.numbers("--model", short, "--prompt-ids", "5,7,9")["models"]
        self.assertEqual([len(part["queries"]) for part in parts], [3, 32, 32])

    def test_pictures(self):
        png, svg = self.folder / "head.png", self.folder / "head.svg"
        self.analyze("--model", self.needle, "--task", "needle", "--png", png, "--svg", svg, "--theme", "dark")
        width, height = self.png_size(png)
        self.assertGreater(width, 2.2 * height)  # three maps side by side
        self.assertEqual(svg.read_text().count("map 2"), 2)
        self.analyze("--model", self.needle, "--task", "needle", "--png", png, "--map", "difference")
        width, height = self.png_size(png)
        self.assertLess(width, 1.5 * height)
        plain = self.analyze("--model", self.needle, "--task", "needle", "--ascii", "--layer", 1, "--head", 1)
        self.assertNotIn("\x1b", plain)
        self.assertIn("layer 1, head 1", plain)
        self.assertRegex(plain, r"[.+#][,=-]|[,=-][.+#]")  # both signs, side by side

    def test_colours_on_a_terminal_that_has_them(self):
        for environment, coloured in (({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
                                      ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
            outside, inside = pty.openpty()
            command = [PROGRAM, "analyze", "--model", str(self.needle), "--prompt-ids", "5,7,9", "--ascii"]
            kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
            with subprocess.Popen(command, stdout=inside, env={**kept, **environment}) as process:
                os.close(inside)
                text = b""
                try:
                    while chunk := os.read(outside, 65536):
                        text += chunk
                except OSError:  # the program has closed the terminal
                    pass
            os.close(outside)
            self.assertEqual(process.returncode, 0)
            self.assertEqual(b"\x1b[48;5;" in text, coloured)

    def test_the_table_has_every_statistic_in_100_columns(self):
        above, names, _ = self.table_with_its_numbers("--task", "needle")
        self.assertEqual(above.split(), "mean negative sink row noise answer noise".split())
        self.assertEqual(names.split(), "layer head sparse focus abs mass entropy mass max cancel lambda similar "
                                        "mass mass".split())
        _, _, cells = self.table_with_its_numbers("--prompt-ids", 5)  # one token: the entropy is a rounding error
        self.assertRegex(" ".join(cells), r"\de-\d")

    def table_with_its_numbers(self, *text):
        """Checks the table against --json. Returns the two heading lines and all cells."""
        rows = self.numbers("--model", self.needle, *text)["models"][0]["statistics"]
        table = self.analyze("--model", self.needle, *text).splitlines()
        self.assertLessEqual(max(map(len, table)), 100, "\n".join(table))
        begin = next(i for i, line in enumerate(table) if line.startswith("layer head")) + 1
        all_cells = []
        for row, line in zip(rows, table[begin:begin + len(rows)], strict=True):
            layer, head, *cells = line.removesuffix(" *").split()
            self.assertEqual((int(layer), int(head)), (row["layer"], row["head"]))
            wanted = [row[key] for key in (*STATISTICS, "answer_mass", "noise_mass") if key in row]
            for cell, value in zip(cells, wanted, strict=True):
                minus = cell.startswith("-")
                if 0 < abs(value) < 1e-3:  # two digits, one for negative numbers
                    delta = abs(value) * (0.34 if minus else 0.051)
                else:
                    delta = 5.1e-4 if minus else 5.1e-5
                self.assertAlmostEqual(float(cell), value, delta=delta)
            all_cells += cells
        return *table[begin - 2:begin], all_cells

    def test_statistics_take_memory_linear_in_the_text(self):
        model = self.train("long", *SMALL, *NEEDLE, "model.num_hidden_layers=1", "model.max_position_embeddings=8192")

        def peak(tokens):
            ids = ",".join(str(i % 20) for i in range(tokens))
            code = ("import resource, subprocess, sys\nsubprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
                    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            command = ["python3", "-c", code, PROGRAM, "analyze", "--model", model, "--prompt-ids", ids]
            return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        # One map of 8192 tokens has 262,144 KiB.
        self.assertLess(peak(8192) - peak(16), 100000)

    def png_size(self, path):
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        at, pixels = 8, b""
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + length]
            self.assertEqual(struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0], zlib.crc32(kind + body))
            pixels += body if kind == b"IDAT" else b""
            at += 12 + length
        width, height = struct.unpack(">II", data[16:24])
        self.assertEqual(len(zlib.decompress(pixels)), height * (3 * width + 1))
        return width, height

    def test_csv_and_json_are_the_same_numbers(self):
        table = self.folder / "needle.csv"
        out = self.numbers("--model", self.needle, "--task", "needle", "--csv", table)
        with open(table, newline="") as file:
            lines = list(csv.DictReader(file))
        rows = out["models"][0]["statistics"]
        self.assertEqual(list(lines[0]), ["layer", "head", *STATISTICS, "answer_mass", "noise_mass"])
        self.assertEqual([{key: float(value) for key, value in line.items()} for line in lines], rows)

    def test_two_checkpoints(self):
        other = self.train("longer", *SMALL, *NEEDLE, "train.steps=4", "train.checkpoint_every=2")
        first = self.folder / "longer" / "checkpoints" / "step-2"
        page, table = self.folder / "two.html", self.folder / "two.csv"
        out = self.numbers("--model", first, "--compare", other, "--task", "needle", "--out", page, "--csv", table,
                           "--png", self.folder / "two.png")
        self.assertEqual([model["name"] for model in out["models"]], ["longer step-2", "longer"])
        self.assertNotEqual(out["models"][0]["statistics"], out["models"][1]["statistics"])
        self.assertTrue(table.read_text().startswith("model,layer,head,"))
        header = json.loads(re.search(r'id="report">(.*?)</script>', page.read_text()).group(1))
        self.assertEqual(len(header["models"]), 2)
        self.assertEqual(len(header["sequences"]), 1)
        self.assert_fails("--model", self.text, "--compare", self.folder / "nothing", "--text", "a", says="nothing")

    def test_the_needle_is_marked(self):
        model = self.numbers("--model", self.needle, "--task", "needle")["models"][0]
        queries = model["queries"]
        kinds = {kind: [r for r in model["regions"] if r["kind"] == kind] for kind in ("answer", "other", "noise")}
        asked = [queries[i + 1] for i, token in enumerate(queries) if token == "?"]
        self.assertEqual(sorted(queries[r["begin"]] for r in kinds["answer"]), sorted(set(asked)))
        covered = sum(r["end"] - r["begin"] for rs in kinds.values() for r in rs)
        self.assertEqual(covered, 24)
        self.assertTrue(all(queries[i].startswith("n") for r in kinds["noise"] for i in range(r["begin"], r["end"])))

    def test_a_whole_data_set_is_its_pieces_together(self):
        data = self.folder / "two.jsonl"
        texts = ["alpha beta", "gamma delta epsilon zeta"]
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        whole = self.numbers("--model", self.text, "--data", data)["models"][0]["statistics"]
        sums, rows = 0.0, 0
        for text in texts:
            one = self.folder / "one.jsonl"
            one.write_text(json.dumps({"text": text}) + "\n")
            part = self.numbers("--model", self.text, "--data", one)["models"][0]
            tokens = len(part["queries"])
            self.assertEqual(tokens, len(text) + 1)  # with the end of the text
            sums += tokens * part["statistics"][0]["entropy"]
            rows += tokens
        self.assertAlmostEqual(whole[0]["entropy"], sums / rows, places=6)

    def test_bad_input(self):
        model = ["--model", self.text]
        self.assert_fails(*model, "--text", "x" * 65, says="text: expected at most 64 tokens.*got 65")
        self.assert_fails(*model, "--text", "", says="text: expected at least one token")
        self.assert_fails(*model, "--data", self.corpus, "--seq-len", 65,
                          says="--seq-len: expected at most 64, the most that .* reads, got 65")
        fewer = self.folder / "fewer"
        shutil.copytree(self.needle, fewer)
        shutil.copy(self.text / "tokenizer.json", fewer)
        self.assert_fails("--model", fewer, "--data", self.corpus,
                          says=f"{self.corpus}: expected ids below")
        self.assert_fails(*model, "--prompt-ids", "5,999", says="--prompt-ids: expected ids below 257.*got 999")
        self.assert_fails(*model, "--prompt-ids", "5,-1", says="got -1")
        self.assert_fails(*model, "--text", "abc", "--layer", 2, says="--layer: expected an integer in .0, 1., .*got 2")
        self.assert_fails(*model, "--text", "abc", "--head", 7, says="--head: expected an integer in .0, 1., .*got 7")
        self.assert_fails(*model, says="one of --text, --prompt-ids, --input, --task and --data")
        self.assert_fails(*model, "--text", "abc", "--text", "abc", says="--text: expected one value, got 2")
        self.assert_fails(*model, "--text", "abc", "--prompt-ids", "1",
                          says="expected at most one of --text, .*, got --text and --prompt-ids")
        self.assert_fails("--model", self.needle, "--text", "abc", says="no tokenizer.json; give --prompt-ids")
        self.assert_fails("--model", self.folder / "missing", "--text", "abc", says="missing")
        self.assert_fails(*model, "--input", self.folder / "missing.txt", says="missing.txt")
        (self.folder / "empty.txt").write_text("")
        self.assert_fails(*model, "--input", self.folder / "empty.txt", says="empty.txt: expected at least one token")
        self.assert_fails(*model, "--task", "needle", says=r"needle 0: expected at most 64 tokens.*got \d+")
        self.assert_fails(*model, "--task", "needle", "--set", "needle.lenght=3", says="needle.length")
        for option in ("--out", "--csv", "--png", "--svg"):
            self.assert_fails(*model, "--text", "abc", option, self.folder / "no" / "file",
                              says="/no: .*No such file or directory")
        self.assert_fails("--model", self.plain, "--task", "needle", "--map", "2", "--png", self.folder / "x.png",
                          says="map 2")
        none = self.folder / "none"
        none.mkdir()
        config = json.loads((self.text / "config.json").read_text())
        (none / "config.json").write_text(json.dumps(dict(config, model_type="mamba")))
        self.assert_fails("--model", none, "--text", "abc", says="model_type.*mamba")

    def test_options_that_would_be_ignored_are_refused(self):
        model, text = ["--model", self.text], ["--text", "abc"]
        for arguments, says in (
                ([*text, "--set", "needle.length=3"], "--set requires .*--task"),
                (["--task", "needle", "--set", "train.steps=3"], "--set: expected needle.KEY=VALUE"),
                ([*text, "--csv", "-"], "expected a file"),
                ([*text, "--threshold", "nan"], "--threshold: expected a finite number above 0"),
                ([*text, "--examples", 2], "--examples requires .*--task"),
                ([*text, "--seed", 2], "--seed requires .*--task"),
                (["--task", "needle", "--data", self.corpus, "--examples", 2], "--(examples|data) excludes"),
                ([*text, "--seq-len", 8], "--seq-len requires .*--data"),
                ([*text, "--map", "1"], "--map requires --png, --svg or --ascii"),
                ([*text, "--theme", "dark"], "--theme requires --png"),
                ([*text, "--part", "decoder"], "--part requires --png"),
                ([*text, "--range", 0.2], "--range requires --png"),
                ([*text, "--linear", "--out", self.folder / "x.html"], "--linear requires --png"),
                ([*text, "--ascii", "--json"], "--(ascii|json) excludes"),
                (["--prompt-ids", "5,7", "--summary", "a"], "--summary requires --text or --input"),
                ([*text, "--summary", "a"], "--summary: expected an encoder-decoder")):
            with self.subTest(arguments):
                self.assert_fails(*model, *arguments, says=says)

    def test_no_noise_mass_where_no_noise_is_known(self):
        settings = ("pairs=2", "key_parts=4", "values=8", "questions=2")
        report = self.numbers("--model", self.needle, "--task", "recall",
                              *(part for one in settings for part in ("--set", f"recall.{one}")))
        rows = report["models"][0]["statistics"]
        self.assertEqual(set(rows[0]), {"layer", "head", *STATISTICS, "answer_mass"})

    def test_one_token_says_so(self):
        page = self.folder / "one.html"
        png = self.folder / "one.png"
        self.analyze("--model", self.text, "--prompt-ids", "65", "--out", page, "--png", png, "--ascii")
        self.assertIn("A single token sees only itself", page.read_text())

    def test_ids_are_labels_without_a_tokenizer(self):
        out = self.numbers("--model", self.needle, "--prompt-ids", "5,7,9")
        self.assertEqual(out["models"][0]["queries"], ["5", "7", "9"])

    def test_text_from_a_file_and_from_standard_input(self):
        path = self.folder / "some.txt"
        path.write_text("some text\n")
        from_file = self.numbers("--model", self.text, "--input", path)["models"]
        result = program("analyze", "--model", self.text, "--input", "-", "--json", input="some text\n")
        self.assertEqual(json.loads(result.stdout)["models"], from_file)
        self.assertEqual("".join(from_file[0]["queries"]), "some text")


if __name__ == "__main__":
    unittest.main()
