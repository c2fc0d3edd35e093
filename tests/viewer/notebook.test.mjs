// SPDX-License-Identifier: Apache-2.0
// A report inside the frame that diffattn.analyze() gives a notebook.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { folder, withReport } from "./browser.mjs";

const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");

test("a report works in a sandboxed frame", async () => {
  const report = readFileSync(path.join(folder, "small.html"), "utf8");
  await withReport("small.html", {}, async (page) => {
    await page.setContent(
      `<iframe sandbox="allow-scripts" width="1000" height="700" srcdoc="${escaped(report)}"></iframe>`,
    );
    const frame = page.frames()[1];
    await frame.waitForFunction(() => window.diffattn?.payload.finished());
    const before = await frame.evaluate(() => window.diffattn.state.layer);
    await frame.evaluate(() => window.diffattn.step("layer", 1));
    const after = await frame.evaluate(() => window.diffattn.state.layer);
    assert.notEqual(after, before);
  });
});
