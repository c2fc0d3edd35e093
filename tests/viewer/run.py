# SPDX-License-Identifier: Apache-2.0
"""Runs the viewer's tests in a browser: run.py FOLDER. The folder holds the files of make_reports.

Exits with 77, "skipped", if Chromium, Node or playwright-core is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ROOT / ".cache" / "browser_tests" / "node_modules"
MIN_NODE = 18
SKIPPED = 77


def node_version(node):
    text = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return int(text.strip().lstrip("v").split(".")[0] or 0) if text.strip() else 0


def missing():
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        return "Chromium is not installed"
    node = shutil.which("node")
    if not node or node_version(node) < MIN_NODE:
        return f"Node {MIN_NODE} or later is not installed"
    if not (MODULES / "playwright-core" / "package.json").is_file():
        return "playwright-core is not installed"
    return None


def main():
    reason = missing()
    if reason:
        print(f"skipped: no browser ({reason}; scripts/setup_browser installs it)")
        return SKIPPED
    environment = dict(os.environ, DIFFATTN_REPORTS=os.path.abspath(sys.argv[1]), DIFFATTN_NODE_MODULES=str(MODULES),
                       DIFFATTN_CHROMIUM=shutil.which("chromium") or shutil.which("chromium-browser"))
    tests = sorted(str(path) for path in pathlib.Path(__file__).parent.glob("*.test.mjs"))
    return subprocess.run(["node", "--test", *tests], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
