# SPDX-License-Identifier: Apache-2.0
"""viewer/build.py bundles the modules and rejects code that it does not support."""
import importlib.util
import pathlib
import re
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "viewer" / "build.py"


def tool():
    spec = importlib.util.spec_from_file_location("viewer_build", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bundled(modules):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in modules.items():
            (pathlib.Path(folder) / name).write_text(text)
        return tool().bundle_script(pathlib.Path(folder))


class Build(unittest.TestCase):
    def test_order_and_squeezing(self):
        script = bundled({
            "main.js": '// about\nimport { a } from "./a.js";\n\nuse(a);\n',
            "a.js": 'import {\n  b,\n} from "./b.js";\nexport const a = b;\n',
            "b.js": "export function b() {\n  // why\n  return 1;\n}\n",
        })
        self.assertEqual(script, '(() => {"use strict";\nfunction b() {\nreturn 1;\n}\nconst a = b;\nuse(a);\n})();')

    def test_refuses(self):
        a = "export const a = 1;\n"
        cases = {
            "import cycle": {"main.js": 'import { a } from "./a.js";\n',
                             "a.js": 'import { m } from "./main.js";\n' + a},
            "also defined by": {"main.js": 'import { a } from "./a.js";\nconst b = 1;\n', "a.js": a + "const b = 2;\n"},
            "does not export": {"main.js": 'import { z } from "./a.js";\n', "a.js": a},
            "unsupported form": {"main.js": 'import z from "./a.js";\n', "a.js": a},
            "template literal": {"main.js": "const t = `a\nb`;\n"},
            "would break": {"main.js": 'const t = "</script>";\n'},
            "more than": {"main.js": "const t = 1;\n" * 20000},
        }
        for message, modules in cases.items():
            with self.assertRaisesRegex(Exception, message):
                bundled(modules)

    def test_policy_has_the_hashes_of_the_page(self):
        module = tool()
        page = "".join(module.page_parts().values())
        for element in ("style", "script"):
            text = re.search(f"<{element}>(.*?)</{element}>", page, re.S)[1]
            self.assertIn(module.source_hash(text), page)
        self.assertNotIn("unsafe", page)
        self.assertNotIn("@", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S))

    def test_every_module_is_in_the_build(self):
        listed = set(re.findall(r"viewer}/src/([\w.]+)", (TOOL.parents[1] / "src/analysis/CMakeLists.txt").read_text()))
        self.assertEqual(listed, {path.name for path in (TOOL.parent / "src").glob("*.js")})
        self.assertEqual(listed, set(tool().read_modules(TOOL.parent / "src")))


if __name__ == "__main__":
    unittest.main()
