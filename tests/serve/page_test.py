# SPDX-License-Identifier: Apache-2.0
"""Tests the server's page in a browser. DIFFATTN_SCREENSHOTS=FOLDER keeps pictures of it.

Exits with 77, "skipped", if Chromium, Node or playwright-core is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "viewer"))
import run as browser  # noqa: E402
import server  # noqa: E402


def main():
    reason = browser.missing()
    if reason:
        print(f"skipped: no browser ({reason}; scripts/setup_browser installs it)")
        return browser.SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        model = server.train_model(folder)
        plain = server.without_template(model, folder)
        long = ["--max-context", "100000", "--cache-tokens", "100000"]
        with (server.Server(model, "--name", "small <b>", *long) as chat,
              server.Server(plain, "--api-key", "k3y") as locked):
            environment = dict(os.environ, DIFFATTN_NODE_MODULES=str(browser.MODULES), DIFFATTN_CHAT_URL=chat.url,
                               DIFFATTN_LOCKED_URL=locked.url,
                               DIFFATTN_CHROMIUM=shutil.which("chromium") or shutil.which("chromium-browser"))
            return subprocess.run(["node", "--test", str(FOLDER / "page.test.mjs")], env=environment,
                                  check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
