#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bundles the viewer into a C++ source file.

Joins the modules in order of dependency into one script, without imports, exports and comments. The SHA-256
of the script and of the style go into the page's Content Security Policy. Needs only Python.

    build.py OUTPUT.cpp

Reports an error for code that it does not support: renamed, default or dynamic imports, re-exports, a name
that two modules define, template literals over several lines.
"""
import base64
import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent
ENTRY = "main.js"
MAX_SCRIPT_BYTES = 150 * 1024
# Bytes per string literal; some compilers limit the length of a literal.
CHUNK = 8000

IMPORT = re.compile(r'^import \{([\w\s,]+)\} from "\./([\w.]+)";$', re.M)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.M)
TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let|var) ([\w$]+)", re.M)
EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const) ([\w$]+)", re.M)


class BundleError(Exception):
    pass


def read_modules(folder):
    """Returns {module name: (text, imports)} in order of dependency."""
    ordered = {}

    def visit(name, trail):
        if name in ordered:
            return
        if name in trail:
            raise BundleError(f"import cycle: {' -> '.join([*trail, name])}")
        text = (folder / name).read_text(encoding="utf-8")
        imports = [([n.strip() for n in m[1].split(",") if n.strip()], m[2]) for m in IMPORT.finditer(text)]
        for _, source in imports:
            visit(source, [*trail, name])
        ordered[name] = (text, imports)

    visit(ENTRY, [])
    return ordered


def check_modules(modules):
    owners = {}
    for name, (text, imports) in modules.items():
        for top in TOP_LEVEL.findall(text):
            if owners.setdefault(top, name) != name:
                raise BundleError(f"{name}: {top} is also defined by {owners[top]}")
        for names, source in imports:
            missing = set(names) - set(EXPORTED.findall(modules[source][0]))
            if missing:
                raise BundleError(f"{name}: {source} does not export {', '.join(sorted(missing))}")
        rest = EXPORT.sub("", IMPORT.sub("", text))
        for number, line in enumerate(rest.splitlines(), 1):
            if re.match(r"\s*(import|export)\b", line):
                raise BundleError(f"{name}: unsupported form of import or export: {line.strip()}")
            if line.count("`") % 2:
                raise BundleError(f"{name}: a template literal over several lines near line {number}")


def squeeze(text):
    """Removes indentation, blank lines and comment lines."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def bundle_script(folder):
    modules = read_modules(folder)
    check_modules(modules)
    body = "\n".join(squeeze(EXPORT.sub("", IMPORT.sub("", text))) for text, _ in modules.values())
    script = f'(() => {{"use strict";\n{body}\n}})();'
    if "</script" in script.lower() or "<!--" in script:
        raise BundleError("the script contains '</script' or '<!--', which would break the script element")
    size = len(script.encode())
    if size > MAX_SCRIPT_BYTES:
        raise BundleError(f"the script has {size} bytes, more than the limit of {MAX_SCRIPT_BYTES}")
    return script


def bundle_style(path):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def source_hash(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page_parts():
    script = bundle_script(ROOT / "src")
    style = bundle_style(ROOT / "style.css")
    policy = (f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; "
              "img-src data:; base-uri 'none'; form-action 'none'")
    page = (ROOT / "page.html").read_text(encoding="utf-8")
    before_title, rest = page.replace("@CSP@", policy).replace("@STYLE@", style).split("@TITLE@")
    before_header, rest = rest.split("@HEADER@")
    before_maps, end = rest.replace("@SCRIPT@", script).split("@MAPS@")
    return {"before_title": before_title, "before_header": before_header, "before_maps": before_maps, "end": end}


def literal(text):
    """Returns a C++ expression for text: adjacent raw string literals of limited length."""
    data = text.encode()
    pieces = []
    while data:
        cut = min(CHUNK, len(data))
        while cut < len(data) and data[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append('R"~page~(' + data[:cut].decode() + ')~page~"')
        data = data[cut:]
    return "\n".join(pieces)


def main():
    if len(sys.argv) != 2:
        print("usage: build.py OUTPUT.cpp", file=sys.stderr)
        return 2
    try:
        parts = page_parts()
    except (BundleError, OSError) as error:
        print(f"viewer/build.py: {error}", file=sys.stderr)
        return 1
    lines = ["// Generated by viewer/build.py.", '#include "analysis/report/bundle.h"',
             "namespace diffattn::analysis {", "namespace {"]
    for name, text in parts.items():
        lines.append(f"constexpr std::string_view k_{name} =\n{literal(text)};")
    lines += ["}", "ViewerBundle viewer_bundle() {",
              "  return {" + ", ".join(f"k_{name}" for name in parts) + "};", "}", "}", ""]
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
