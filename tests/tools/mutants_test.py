#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/mutation/mutants.py: which mutants it finds, and that code without a chosen mutant stays the same."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "mutation"))
import mutants


def mutated(code):
    file = mutants.File("a.cpp", code, 1)
    return file.mutated(), [(mutant.kind, mutant.text) for mutant in file.mutants]


class Mutants(unittest.TestCase):
    def test_guard_with_two_operands(self):
        text, found = mutated('if (size > limit || name == "a || b") fail();\n')
        self.assertEqual(found, [("off", 'size > limit || name == "a || b"'), ("drop", "size > limit"),
                                 ("boundary", "size > limit"), ("drop", 'name == "a || b"'),
                                 ("equality", 'name == "a || b"')])
        self.assertIn("!diffattn_mutation::on(1) && (", text)
        self.assertIn("(size >= limit) : (size > limit)", text)

    def test_check_macro_and_returned_comparison(self):
        _, found = mutated('TORCH_CHECK(a.dim() == 4, "text", b < c);\nreturn x <= y && (!p || q);\n')
        self.assertEqual([kind for kind, _ in found],
                         ["off", "equality", "drop", "boundary", "drop", "drop", "drop"])

    def test_what_is_no_condition_stays(self):
        code = ("// if (a < b) x;\nif (const auto x = find()) use(*x);\nstd::vector<int> v;\nreturn v[0];\n"
                "constexpr bool small(int a) {\n  return a < 3;\n}\nif constexpr (a < b) {\n}\n")
        self.assertEqual(mutated(code), (code, []))

    def test_init_statement_is_kept(self):
        text, found = mutated("if (const int n = size(); n < 3) fail();\n")
        self.assertEqual(len(found), 2)
        self.assertTrue(text.startswith("if (const int n = size();!diffattn_mutation"))


if __name__ == "__main__":
    unittest.main()
