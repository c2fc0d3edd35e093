# SPDX-License-Identifier: Apache-2.0
"""Tests tools/fuzz.py with programs that behave as a fuzz target does."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "fuzz.py"
# Times out while it fuzzes. With a file as its last argument it does what {alone} says.
TARGET = """#!/bin/sh
for last; do :; done
if [ -f "$last" ]; then {alone}; fi
for word; do case $word in -artifact_prefix=*) prefix=${{word#*=}};; esac; done
echo input > "${{prefix}}timeout-1"
echo "artifact_prefix='x'; Test unit written to ${{prefix}}timeout-1" >&2
echo "SUMMARY: libFuzzer: {summary}" >&2
exit 70
"""


class Fuzz(unittest.TestCase):
    def fuzz(self, alone, summary="timeout"):
        """Returns the exit code, what was printed and the inputs that were kept."""
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "fuzz_json"
            program.write_text(TARGET.format(alone=alone, summary=summary))
            program.chmod(0o755)
            done = subprocess.run([sys.executable, TOOL, "--build", folder, "json", "--seconds", "1"],
                                  capture_output=True, text=True, timeout=60, check=False)
            kept = [path.name for path in (pathlib.Path(folder) / "found").iterdir()]
            return done.returncode, done.stdout, kept

    def test_an_input_that_only_waited_for_a_processor_is_no_failure(self):
        code, text, kept = self.fuzz("exit 0")
        self.assertEqual((code, kept), (0, []), text)
        self.assertIn(" 0 failures", text)

    def test_an_input_that_takes_too_long_by_itself_is_one(self):
        code, text, kept = self.fuzz("[ $(ulimit -t) = 10 ] && kill -XCPU $$")  # as the limit of processor time does
        self.assertEqual((code, kept), (1, ["json-timeout-1"]), text)
        self.assertIn("FAILED", text)

    def test_other_failures_are_not_run_again(self):
        code, text, kept = self.fuzz("exit 0", summary="deadly signal")
        self.assertEqual((code, kept), (1, ["json-timeout-1"]), text)


if __name__ == "__main__":
    unittest.main()
