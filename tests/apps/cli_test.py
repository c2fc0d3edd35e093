# SPDX-License-Identifier: Apache-2.0
"""Tests the program from outside: help, JSON, exit codes and outputs that cannot be written."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
VERBS = ("info", "selftest", "bench", "train", "eval", "generate", "serve", "convert", "classify", "compare",
         "summarize", "analyze", "tokenize", "help", "version", "completion")
COMPUTING = ("selftest", "train", "eval", "generate", "classify", "summarize", "compare", "analyze", "bench attention",
             "bench module", "bench step", "bench generate", "serve")


def run(*arguments, **kwargs):
    environment = dict(os.environ, **kwargs.pop("env", {}))
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          env=environment, **kwargs)


class Program(unittest.TestCase):
    def test_help_names_every_verb_and_an_example(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for verb in VERBS:
            self.assertIn(verb, result.stdout)
        self.assertIn("Example:", result.stdout)

    def test_each_verb_has_help_with_an_example(self):
        benchmarks = [["bench", name] for name in ("attention", "module", "step", "generate")]
        for words in [[], *([verb] for verb in VERBS), *benchmarks]:
            result = run(*words, "--help")
            self.assertEqual(result.returncode, 0, words)
            self.assertIn("Example:\n  diffattn ", result.stdout, words)
            for line in result.stdout.splitlines():
                self.assertLessEqual(len(line), 80, words)

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^diffattn \d+\.\d+\.\d+\n$")
        self.assertEqual(run("version").stdout, run("--version").stdout)

    def test_help_is_a_verb(self):
        for words in ([], ["train"], ["bench"], ["bench", "step"], ["help"]):
            result = run("help", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout, run(*words, "--help").stdout, words)
        result = run("help", "trian")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "diffattn: help: expected a verb, got 'trian'; did you mean 'train'?\n")

    def test_mistyped_verbs_and_options_name_the_nearest(self):
        for arguments, message in (
                (["tran"], "expected a verb, got 'tran'; did you mean 'train'?"),
                (["gen"], "expected a verb, got 'gen'; did you mean 'generate'?"),
                (["dance"], "expected a verb, got 'dance'"),
                (["--verison"], "no such option: --verison; did you mean '--version'?"),
                (["generate", "--modle", "x", "--prompt", "a"],
                 "generate: no such option: --modle; did you mean '--model'?"),
                (["generate", "--model", "x", "--prompt", "a", "--max-new-token=3"],
                 "generate: no such option: --max-new-token; did you mean '--max-new-tokens'?"),
                (["train", "--otu", "x"], "train: no such option: --otu; did you mean '--out'?"),
                (["bench", "step", "--sqe", "4"], "bench step: no such option: --sqe; did you mean '--seq'?"),
                (["bench", "stpe"], "bench: expected one of attention, module, step, generate, serve, got 'stpe'; "
                                    "did you mean 'step'?"),
                (["info", "--something-else"], "info: no such option: --something-else"),
                (["info", "more"], "info: expected no more arguments, got 'more'")):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr.splitlines()[0], "diffattn: " + message, arguments)

    def test_every_verb_that_computes_takes_threads(self):
        for verb in COMPUTING:
            self.assertIn("--threads", run(*verb.split(), "--help").stdout, verb)

    def test_the_standard_library_comes_before_torch(self):
        """libtorch_cpu.so exports parts of its own libstdc++. The linker takes the first library, and
        mixing std::filesystem of two of them crashes."""
        if shutil.which("readelf") is None:
            self.skipTest("skipped: readelf is not installed")
        table = subprocess.run(["readelf", "-d", PROGRAM], capture_output=True, text=True,
                               check=True).stdout
        names = re.findall(r"NEEDED.*\[(lib.*?)\.so", table)
        self.assertLess(names.index("libstdc++"), names.index("libtorch"), names)

    def test_wrong_use_is_exit_code_2_and_says_what(self):
        for arguments in ([], ["unknown"], ["info", "--unknown"], ["selftest", "extra"],
                          ["info", "selftest"], ["--json"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertNotEqual(result.stderr, "", arguments)
            self.assertNotIn("terminate called", result.stderr)
        self.assertIn("'unknown'", run("unknown").stderr)
        self.assertIn("analyze", run().stderr)

    def test_wrong_values_say_what_was_expected_and_what_came(self):
        generate = ("generate", "--model", "nowhere", "--prompt", "a")
        for option, value, expected in (
                ("--temperature", "nan", "a finite number of at least 0"),
                ("--temperature", "-1", "a finite number of at least 0"),
                ("--repetition-penalty", "inf", "a finite number above 0"),
                ("--max-new-tokens", "1.5", "an integer in [0, "),
                ("--max-new-tokens", "9999999999999999999", "an integer in [0, "),
                ("--stop", "", "a text"),
                ("--prompt-ids", "5,x", "")):
            result = run(*generate, option, value)
            self.assertEqual(result.returncode, 2, (option, value))
            for text in ("diffattn: ", option, expected, value, "diffattn generate --help"):
                self.assertIn(text, result.stderr, (option, value))
            self.assertLess(len(result.stderr), 200, result.stderr)
        for seed in ("-1", "18446744073709551616"):
            result = run(*generate, "--temperature", "1", "--seed", seed)
            self.assertEqual(result.returncode, 2, seed)
            self.assertIn("2^64", result.stderr)
        self.assertIn("--model: expected a value, got none", run("generate", "--model").stderr)
        for words in (["--unknown"], ["train", "--unknown"]):
            self.assertRegex(run(*words).stderr, "^diffattn: [a-z].*--unknown\n")
        self.assertIn("'diffattn bench step --help'", run("bench", "step", "--repeat", "0").stderr)

    def test_failure_to_write_is_exit_code_1(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "info"], stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output", result.stderr)


class Completion(unittest.TestCase):
    def complete(self, *words):
        """Returns what bash offers after these words; the last one is being typed."""
        line = " ".join(words)
        script = (f"source <({PROGRAM} completion bash)\nCOMP_WORDS=({line})\n"
                  f"[[ '{words[-1]}' ]] || COMP_WORDS+=('')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
                  "_diffattn\nprintf '%s\\n' \"${COMPREPLY[@]}\"")
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.stderr, "", words)
        return result.stdout.split()

    def test_bash_completes_verbs_options_and_values(self):
        self.assertEqual(sorted(self.complete("diffattn", "")), sorted(VERBS))
        self.assertEqual(self.complete("diffattn", "to"), ["tokenize"])
        self.assertEqual(self.complete("diffattn", "bench", "st"), ["step"])
        self.assertEqual(self.complete("diffattn", "generate", "--to"), ["--top-k", "--top-p"])
        self.assertEqual(self.complete("diffattn", "generate", "--top-k", "3", "--mod"), ["--model"])
        self.assertEqual(self.complete("diffattn", "generate", "--dtype", ""), ["float32", "bfloat16", "float16"])
        self.assertEqual(self.complete("diffattn", "bench", "step", "--attention", "di")[:1], ["diffllama"])
        self.assertEqual(self.complete("diffattn", "train", "--config", ""), [])  # bash completes files itself
        self.assertEqual(self.complete("diffattn", "completion", "z"), ["zsh"])

    def test_every_shell_knows_every_option(self):
        for shell in ("bash", "zsh", "fish"):
            script = run("completion", shell)
            self.assertEqual(script.returncode, 0, script.stderr)
            for name in ("no-repeat-ngram", "keep-models", "stats-batches", "max-shard-mib", "min-frequency"):
                self.assertIn(f"-l {name} " if shell == "fish" else f"--{name}", script.stdout, shell)
            if shutil.which(shell):
                check = subprocess.run([shell, "-n"], input=script.stdout, capture_output=True, text=True, timeout=60,
                                       check=False)
                self.assertEqual((check.returncode, check.stderr), (0, ""), shell)
        self.assertEqual(run("completion", "tcsh").returncode, 2)


class Info(unittest.TestCase):
    def test_json_has_what_the_text_shows(self):
        info = json.loads(run("info", "--json").stdout)
        text = run("info").stdout
        self.assertIn(info["version"], text)
        self.assertIn(info["torch"], text)
        self.assertIn(info["cpu"]["model"], text)
        self.assertGreaterEqual(info["cpu"]["cores"], 1)
        names = [backend["name"] for backend in info["backends"]]
        self.assertIn("reference", names)
        for choice in info["choice"]:
            self.assertIn(choice["backend"], names)
            self.assertTrue(choice["why"])
        self.assertEqual({c["dtype"] for c in info["choice"] if c["device"] == "cpu"},
                         {"float32", "bfloat16", "float16", "float64"})

    def test_types_that_a_backend_never_takes_are_not_blamed_on_the_machine(self):
        info = json.loads(run("info", "--json", env={"DIFFATTN_BACKEND": ""}).stdout)
        why = {c["dtype"]: c["why"] for c in info["choice"] if c["device"] == "cpu"}
        self.assertRegex(why["float32"], r"\bamx\b[^;]* not take it")
        self.assertRegex(why["float64"], r"\bavx2 do not take it")
        self.assertNotRegex(why["bfloat16"], r"\bamx\b[^;]* not take it")

    def test_environment_lowers_the_choice(self):
        info = json.loads(run("info", "--json", env={"DIFFATTN_BACKEND": "composed"}).stdout)
        self.assertEqual({c["backend"] for c in info["choice"]}, {"composed"})

    def test_unknown_backend_is_an_error_that_lists_the_names(self):
        result = run("info", env={"DIFFATTN_BACKEND": "nonsense"})
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"DIFFATTN_BACKEND.*: expected one of: .*reference.*, got 'nonsense'")


class Tokenize(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = lambda name: os.path.join(self.folder.name, name)
        os.mkdir(self.path("text"))
        with open(self.path("text/a.txt"), "w") as file:
            file.write("the head of the differential head\n" * 40)
        with open(self.path("text/b.jsonl"), "w") as file:
            file.write('{"text": "the second head"}\n{"txt": 1}\n' * 5)

    def tokenize(self, *arguments):
        return run("tokenize", self.path("text"), *arguments)

    def test_from_text_to_a_run(self):
        names = self.path("t.json"), self.path("c.tokens")
        result = self.tokenize("--learn", names[0], "--vocab-size", "270", "--out", names[1], "--skip-bad", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        said = json.loads(result.stdout)
        self.assertEqual((said["vocab_size"], said["documents"], said["skipped_lines"]), (270, 6, 5))
        self.assertLess(said["tokens"], said["bytes"] / 2)  # merges were learnt
        config = ["--set", f"data.train={names[1]}", "--out", self.path("run"), "--dry-run", "--json"]
        for tokenizer, code in ((names[0], 0), ("bytes", 1)):  # the file has another tokenizer's tokens
            result = run("train", "--set", f"data.tokenizer={tokenizer}", *config)
            self.assertEqual(result.returncode, code, result.stderr)

    def test_what_is_refused(self):
        made = self.path("t.json")
        self.assertEqual(self.tokenize("--learn", made, "--skip-bad").returncode, 0)
        for arguments, code, said in (
                ([], 2, "expected --learn FILE or --tokenizer FILE"),
                (["--tokenizer", made], 2, "--tokenizer requires --out"),
                (["--learn", made, "--skip-bad"], 1, "--force replaces it"),
                (["--learn", made, "--force"], 1, "b.jsonl: line 2: "),
                (["--tokenizer", made, "--out", self.path("none/c"), "--skip-bad"], 1, "none"),
                (["--tokenizer", made, "--out", "x", "--nfc"], 2, "--nfc requires --learn"),
                (["--learn", self.path("u.json"), "--vocab-size", "9"], 2, "--vocab-size: expected an integer in")):
            result = self.tokenize(*arguments)
            self.assertEqual(result.returncode, code, arguments)
            self.assertIn(said, result.stderr, arguments)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["t.json", "text"])  # no partial files


class Bench(unittest.TestCase):
    ARGUMENTS = ("bench", "attention", "--seq", "16", "--head-dim", "8", "--heads", "1",
                 "--repeat", "2", "--threads", "1", "--dtype", "float32")

    def test_every_route_gives_the_same_numbers(self):
        report = json.loads(run(*self.ARGUMENTS, "--json").stdout)
        self.assertEqual(len(report["points"]), 5)  # two masks x two passes, and decode
        for point in report["points"]:
            names = [row["route"] for row in point["routes"]]
            self.assertEqual((names[0], names[-1], len(names)), ("fused", "plain attention", 9))
            for row in point["routes"]:
                self.assertGreater(row["ms"], 0)
                self.assertAlmostEqual(row["ms"], (row["ms_fastest"] + row["ms_slowest"]) / 2)  # two runs
                self.assertLess(row.get("difference", 0.0), 1e-5, row["route"])

    def test_packed_documents_biases_and_a_lambda_of_each_token(self):
        report = json.loads(run(*self.ARGUMENTS, "--mask", "varlen,bias,tensor", "--lambda", "token", "--batch", "2",
                                "--pass", "forward,backward", "--json").stdout)
        self.assertEqual(len(report["points"]), 6)
        for point in report["points"]:
            names = [row["route"] for row in point["routes"]]
            self.assertEqual("two calls, padded batch" in names, point["mask"] == "varlen")
            for row in point["routes"]:
                self.assertLess(row.get("difference", 0.0), 1e-5, (point["mask"], row["route"]))

    def test_routes_can_be_chosen(self):
        report = json.loads(run(*self.ARGUMENTS, "--pass", "forward", "--mask", "full", "--route", "four,naive",
                                "--json").stdout)
        self.assertEqual([row["route"] for row in report["points"][0]["routes"]], ["fused", "naive", "four calls"])
        self.assertIn("--route: expected a part of a route's name in the table, got 'xyz'",
                      run(*self.ARGUMENTS, "--route", "xyz").stderr)

    def test_table_and_csv(self):
        table = run(*self.ARGUMENTS, "--pass", "forward", "--mask", "full")
        self.assertEqual(table.returncode, 0)
        self.assertRegex(table.stdout, r"fused is \d+\.\d\dx as fast as the fastest other route \(.+\),\s+\d")
        self.assertNotIn("\033", table.stdout + table.stderr)  # no bar without a terminal
        csv = run(*self.ARGUMENTS, "--pass", "forward", "--mask", "full", "--csv").stdout
        self.assertEqual(len(csv.splitlines()), 10)

    def test_wrong_values_are_exit_code_2(self):
        for arguments in (["--seq", "0"], ["--seq", "x"], ["--dtype", "int8"], ["--mask", "half"],
                          ["--threads", "-1"], ["--head-dim", "99999999999999999999"]):
            self.assertEqual(run("bench", "attention", *arguments).returncode, 2, arguments)
        for option, value in (("--repeat", "1.5"), ("--seq", "16,0")):
            self.assertRegex(run("bench", "step", option, value).stderr,
                             rf"^diffattn: {option}: expected an integer in \[1, \d+\], got '")

    def test_unknown_benchmarks_are_named_beside_those_that_exist(self):
        for arguments, came in (([], ""), (["foo", "--seq", "16"], ", got 'foo'"), (["--seq", "16"], ", got '--seq'")):
            result = run("bench", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr, "diffattn: bench: expected one of attention, module, step, generate, serve"
                             f"{came}\nRun 'diffattn bench --help' for its options.\n")

    def test_help_of_generation_does_not_speak_of_training(self):
        self.assertNotIn("training", run("bench", "generate", "--help").stdout)
        self.assertIn("mixed precision", run("bench", "step", "--help").stdout)

    def test_medians_have_the_digits_of_their_spread(self):
        model = ("--hidden", "32", "--intermediate", "32", "--heads", "4", "--layers", "1", "--vocab", "64",
                 "--repeat", "1", "--threads", "1", "--attention", "transformer")
        for arguments in (["step", "--seq", "8"], ["generate", "--prompt", "8", "--new-tokens", "2"]):
            table = run("bench", *arguments, *model).stdout
            # Median, fastest and slowest are one run.
            self.assertRegex(table, r"(?m)^  transformer .* (\d+\.\d{3}) +\1-\1 ")
            self.assertLessEqual(max(map(len, table.splitlines())), 80)

    def test_a_profile_names_the_longest_parts_of_a_step(self):
        model = ("--hidden", "32", "--intermediate", "32", "--heads", "4", "--layers", "1", "--vocab", "64", "--seq",
                 "8", "--repeat", "1", "--threads", "1", "--attention", "transformer")
        text = run("bench", "step", *model, "--profile").stdout
        table = text.split("longest parts of a step of transformer:")[1]
        parts = re.findall(r"(?m)^ +(\d+\.\d\d) ms +[1-9]\d* x  \S", table)
        self.assertGreater(len(parts), 5, text)
        self.assertEqual(parts, sorted(parts, key=float, reverse=True))
        point, = json.loads(run("bench", "step", *model, "--profile", "--json").stdout)["points"]
        row, = point["routes"]
        self.assertIn("aten::mm", [entry["name"] for entry in row["profile"]["entries"]])
        head, values = run("bench", "step", *model, "--csv").stdout.splitlines()
        row = dict(zip(head.split(","), values.split(","), strict=True))
        self.assertEqual((row["batch"], row["seq"], row["attention"]), ("1", "8", "transformer"))
        self.assertLessEqual(float(row["ms_fastest"]), float(row["ms_slowest"]))

    def test_one_kind_of_output_at_a_time(self):
        for verb in ("attention", "module", "step", "generate"):
            result = run("bench", verb, "--csv", "--json")
            self.assertEqual(result.returncode, 2, verb)
            self.assertRegex(result.stderr, "--(csv|json) excludes --(csv|json)")
        result = run("bench", "step", "--profile", "--csv")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "--(csv|profile) excludes --(csv|profile)")

    def test_steps_of_longer_sequences_take_more_memory(self):
        for extra in ([], ["--checkpointing", "--keep-attention", "nothing,results"]):
            report = json.loads(run("bench", "step", "--seq", "256,2048", "--hidden", "64", "--intermediate",
                                    "128", "--heads", "4", "--layers", "2", "--vocab", "256", "--repeat", "1",
                                    "--threads", "1", "--json", *extra).stdout)
            short, long = ([row["peak_memory_mib"] for row in point["routes"]] for point in report["points"])
            for less, more in zip(short, long):
                self.assertGreater(more, 2 * less, (extra, short, long))
        self.assertEqual([row["route"] for row in report["points"][0]["routes"]][:2],
                         ["diffllama keeping nothing", "diffllama keeping results"])
        result = run("bench", "step", "--keep-attention", "sums")
        self.assertEqual(result.returncode, 2)
        self.assertIn("requires --checkpointing", result.stderr)

    def test_generation_does_not_count_its_warm_up(self):
        # The first call of a process takes longer than 64 later tokens. A busy machine can only slow runs
        # down, so we take the fastest of a few.
        rows = [json.loads(run("bench", "generate", "--prompt", "8", "--new-tokens", "64", "--hidden", "32",
                               "--intermediate", "32", "--heads", "4", "--layers", "1", "--vocab", "64",
                               "--repeat", "1", "--threads", "1", "--json").stdout)["points"][0]["routes"][0]
                for _ in range(4)]
        first, all_tokens = (min(row[key] for row in rows) for key in ("ms_first_token", "ms"))
        self.assertLess(first, all_tokens)


class Refusals(unittest.TestCase):
    def test_devices_that_are_not_there(self):
        for verb in (["bench", "attention"], ["bench", "module"], ["bench", "step"], ["bench", "generate"],
                     ["generate", "--model", "x", "--prompt", "a"], ["eval", "--model", "x", "--data", "x"],
                     ["classify", "--model", "x", "--input", "x"]):
            result = run(*verb, "--device", "cuda:999")
            self.assertEqual(result.returncode, 2, verb)
            self.assertRegex(result.stderr,
                             "^diffattn: --device: expected (cpu, because|at most cuda:).*, got 'cuda:999'\n")
        self.assertIn("--device: expected cpu, cuda or cuda:N, got 'tpu'\n",
                      run("bench", "step", "--device", "tpu").stderr)
        result = run("train", "--set", "train.device=tpu", "--set", "task=needle", "--out", "/nowhere/run")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "diffattn: train.device: expected cpu, cuda or cuda:N, got 'tpu'\n")

    def test_options_that_would_be_ignored(self):
        prompt = ["generate", "--model", "x", "--prompt", "a"]
        for arguments, sentence in ((prompt + ["--seed", "4"],
                                     "--seed: expected --temperature, --top-k, --top-p or --samples with it, got none"),
                                    (prompt + ["--temperature", "0", "--samples", "2"],
                                     "--samples: expected --temperature above 0, got 0"),
                                    (["summarize", "--model", "x", "--input", "-", "--length-penalty", "2"],
                                     "--length-penalty requires --beams"),
                                    (prompt + ["--temperature", "0", "--top-k", "3", "--seed", "4"],
                                     "--top-k: expected --temperature above 0, got 0"),
                                    (prompt + ["--temperature", "0", "--top-p", "0.5"],
                                     "--top-p: expected --temperature above 0, got 0"),
                                    (prompt + ["--temperature", "0", "--seed", "4"],
                                     "--seed: expected --temperature above 0, got 0"),
                                    (["summarize", "--model", "x", "--input", "-", "--beams", "1",
                                      "--length-penalty", "2"],
                                     "--length-penalty: expected --beams above 1, got 1"),
                                    (["compare", "--task", "recall", "--samples", "4"],
                                     "--samples: expected task needle, got recall"),
                                    (["compare", "--keep-models"], "--keep-models requires --out")):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(sentence, result.stderr)


class BenchModule(unittest.TestCase):
    ARGUMENTS = ("bench", "module", "--seq", "16", "--embed-dim", "32", "--heads", "4",
                 "--kv-heads", "2", "--repeat", "2", "--threads", "1", "--batch", "2")

    def test_every_route_gives_the_same_numbers_for_every_mask(self):
        masks = "causal,full,window,left_padding,right_padding,boolean,additive"
        report = json.loads(run(*self.ARGUMENTS, "--mask", masks, "--pass",
                                "forward,backward,decode", "--json").stdout)
        self.assertEqual(len(report["points"]), 15)  # seven masks x two passes, and decode
        for point in report["points"]:
            self.assertEqual(point["routes"][0]["route"], "fused")
            self.assertEqual(len(point["routes"]), 8)
            for row in point["routes"]:
                self.assertGreater(row["ms"], 0)
                self.assertIn("peak_memory_mib", row)
                self.assertLess(row["difference"], 1e-5, (point["mask"], row["route"]))

    def test_table_and_csv_of_chosen_routes(self):
        arguments = (*self.ARGUMENTS, "--pass", "forward", "--route", "fused,two_calls",
                     "--preset", "microsoft_v2", "--no-rotary")
        table = run(*arguments)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("two calls", table.stdout)
        self.assertEqual(len(run(*arguments, "--csv").stdout.splitlines()), 3)

    def test_wrong_values(self):
        for arguments in (["--route", "three_calls"], ["--mask", "half"], ["--preset", "x"]):
            self.assertEqual(run("bench", "module", *arguments).returncode, 2, arguments)
        said = run("bench", "module", "--route", "three_calls").stderr
        self.assertRegex(said, "--route: expected one of fused, .*two_calls_padded, .*got 'three_calls'")
        result = run("bench", "module", "--heads", "5", "--seq", "16")
        self.assertEqual(result.returncode, 1)
        self.assertIn("num_attention_heads", result.stderr)


class Selftest(unittest.TestCase):
    def test_every_backend_passes_within_its_bounds(self):
        result = run("selftest", "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        report = json.loads(result.stdout)
        self.assertTrue(report["passed"])
        self.assertLess(report["seconds"], 100)  # under 30 s on an idle machine
        info = json.loads(run("info", "--json").stdout)
        available = [(b["name"], b["device"]) for b in info["backends"] if b["available"]]
        self.assertEqual([(b["backend"], b["device"]) for b in report["backends"]], available)
        for backend in report["backends"]:
            for name, entry in backend["types"].items():
                self.assertLessEqual(entry["forward_error"], entry["forward_bound"], name)
                self.assertLessEqual(entry["backward_error"], entry["backward_bound"], name)
        errors = report["backends"][-1]["types"]
        self.assertGreater(errors["bfloat16"]["forward_error"], 0)  # something was measured


if __name__ == "__main__":
    unittest.main()
