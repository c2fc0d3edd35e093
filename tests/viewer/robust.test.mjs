// SPDX-License-Identifier: Apache-2.0
// Tests the keyboard, hostile text, many tokens, and the pictures that the program makes without a
// browser.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { crc32, inflateSync } from "./png.mjs";
import {
  cellColour,
  expected,
  folder,
  geometry,
  near,
  numberOf,
  painted,
  pointAt,
  scaleColour,
  withReport,
} from "./browser.mjs";

test("everything by keyboard", async () => {
  await withReport("small.html", {}, async (page) => {
    await painted(page);
    const focus = () => page.evaluate(() => document.activeElement.className);
    const tabTo = async (wanted) => {
      for (let i = 0; i < 60; ++i) {
        await page.keyboard.press("Tab");
        if ((await focus()).includes(wanted)) return;
      }
      assert.fail(`Tab does not reach ${wanted}`);
    };
    await page.keyboard.press("?");
    assert.equal(await page.isVisible("dialog.help"), true);
    await page.keyboard.press("Escape");
    assert.equal(await page.isVisible("dialog.help"), false);
    await tabTo("stage");
    for (const key of ["Shift+ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"])
      await page.keyboard.press(key);
    assert.match(await page.textContent(".readout"), /query 11 .*key 2 /);
    const { cell } = await geometry(page, 0);
    await page.keyboard.press("+");
    assert.ok((await geometry(page, 0)).cell > cell);
    await page.keyboard.press("0");
    assert.equal((await geometry(page, 0)).cell, cell);
    await page.keyboard.press("]");
    await page.keyboard.press("}");
    assert.equal(await page.textContent('output[data-value="head"]'), "1");
    assert.equal(await page.textContent('output[data-value="layer"]'), "1");
    await page.keyboard.press("s");
    assert.equal(await page.evaluate(() => window.diffattn.state.root), false);
    await page.keyboard.press("2");
    await tabTo("head-cell");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    await painted(page);
    assert.equal(await page.textContent('output[data-value="head"]'), "1");
    await page.keyboard.press("t");
    await page.keyboard.press("t");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  });
});

test("30 hostile tokens are text", async () => {
  await withReport("hostile.html", { fragment: "view=tokens" }, async (page) => {
    const shown = await page.locator(".source .token").allTextContents();
    const raw = await page.evaluate(() => window.diffattn.report.sequences[0].rows);
    assert.equal(shown.length, 30);
    const printable = /^[\x21-\x7e][\x20-\x7e]*$/;
    let plain = 0;
    raw.forEach((token, i) => {
      if (!printable.test(token)) return;
      assert.equal(shown[i], token);
      ++plain;
    });
    assert.ok(plain >= 18);
    const all = shown.join("\n");
    for (const visible of [
      "\u27e8U+2028\u27e9line\u27e8U+2029\u27e9paragraph",
      "nul\u2400inside",
      "\u241b[31mred",
      "\u27e8U+202E\u27e9reversed",
      "\u05e9\u05dc\u05d5\u05dd",
      "\u27e8U+FEFF\u27e9bom",
      "a\u21e5b\u240d\u23cec",
      "\u2423\u2423\u2423",
      "\u2205",
      "\ufffd",
    ]) {
      assert.ok(all.includes(visible), visible);
    }
    assert.equal(await page.title(), "</title><script>alert('title')</script>");
    for (const view of ["results", "maps", "overview", "tokens", "lambda", "statistics"]) {
      await page.evaluate((name) => window.diffattn.set({ view: name }), view);
      await page.waitForSelector(`.${view}-view`);
      const foreign = await page.evaluate(
        () =>
          document.querySelectorAll(
            "#app img, #app script, #app style, #app a, #app iframe, #app u, #app s",
          ).length,
      );
      assert.equal(foreign, 0, view);
    }
    await page.evaluate(() => window.diffattn.set({ view: "maps" }));
    await painted(page);
    await pointAt(page, 0, 0, 2);
    assert.match(
      await page.textContent(".tooltip"),
      /<script>alert\(1\)<\/script>.*<img src=x onerror=alert\(3\)>/,
    );
  });
});

test("4096 tokens: a single negative entry stays visible", async () => {
  await withReport("large.html", {}, async (page) => {
    await painted(page);
    // The single entry has the strongest orange on every level: on those in the file (16 and 4
    // entries per side of a cell) and on those that the page computes (8 and 2).
    const { row, column, difference } = expected.large;
    const wanted = scaleColour(difference, await page.evaluate(() => window.diffattn.scale()));
    assert.ok(wanted[0] > wanted[2] + 60);
    const fit = await page.evaluate(() => window.diffattn.view.fitCell);
    for (const [side, cell] of [
      [16, fit],
      [8, 0.13],
      [4, 0.26],
      [2, 0.55],
    ]) {
      await page.evaluate((view) => window.diffattn.view.setView(view), {
        cell,
        left: 1400,
        top: 2800,
      });
      await page.evaluate(
        () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
      );
      await painted(page);
      const middle = (at) => Math.floor(at / side) * side + side / 2 - 0.5;
      near(
        await cellColour(page, 2, middle(row), middle(column)),
        wanted,
        12,
        `lone entry of ${side}`,
      );
    }

    await page.evaluate(
      ([r, c]) => window.diffattn.set({ row: r, column: c, cell: 20, left: c - 8, top: r - 8 }),
      [row, column],
    );
    await painted(page);
    const shown = numberOf(await page.textContent('.readout output[data-plane="difference"]'));
    assert.ok(Math.abs(shown - difference) < 0.01 * Math.abs(difference), `${shown}`);
    await page.keyboard.press("]");
    await painted(page);
    assert.match(await page.textContent(".readout"), /largest of 8 \u00d7 8 entries/);
  });
});

test("700 tokens in half precision are marked as rounded", async () => {
  await withReport("medium.html", {}, async (page) => {
    await painted(page);
    for (const sample of expected.medium) {
      await page.evaluate(
        ([row, column]) => window.diffattn.set({ row, column }),
        [sample.row, sample.column],
      );
      const text = await page.textContent('.readout output[data-plane="p1"]');
      assert.match(text, /^\u2248 /);
      assert.ok(
        Math.abs(numberOf(text) - sample.p1) <= 0.006 * sample.p1 + 1e-7,
        `${text} is not ${sample.p1}`,
      );
    }
  });
});

test("a high-resolution screen shows one device pixel per cell", async () => {
  await withReport("medium.html", { scale: 2, fragment: "root=false&range=0.01" }, async (page) => {
    await painted(page);
    for (const sample of expected.medium.slice(0, 3)) {
      near(
        await cellColour(page, 2, sample.row, sample.column),
        scaleColour(sample.difference, { range: 0.01, root: false, theme: "light" }),
        3,
        `${sample.row},${sample.column}`,
      );
    }
  });
});

test("reports with one token and without any data", async () => {
  await withReport("tiny.html", {}, async (page) => {
    await painted(page);
    await page.focus(".stage");
    await page.keyboard.press("ArrowDown");
    assert.match(await page.textContent(".readout"), /query 0 w0 .*key 0 w0/);
    for (const key of ["2", "3", "4", "5", "1"]) await page.keyboard.press(key);
  });
  await withReport("empty.html", {}, async (page) => {
    assert.match(await page.textContent("main"), /This report is empty/);
  });
});

test("the PNG of the program is a PNG", () => {
  const bytes = readFileSync(path.join(folder, "small.png"));
  const chunks = {};
  for (let at = 8; at < bytes.length;) {
    const length = bytes.readUInt32BE(at);
    const body = bytes.subarray(at + 4, at + 8 + length);
    assert.equal(bytes.readUInt32BE(at + 8 + length), crc32(body));
    chunks[body.subarray(0, 4).toString()] = body.subarray(4);
    at += 12 + length;
  }
  const [width, height] = [chunks.IHDR.readUInt32BE(0), chunks.IHDR.readUInt32BE(4)];
  const lines = inflateSync(chunks.IDAT);
  assert.equal(lines.length, (width * 3 + 1) * height);
  const colours = new Set();
  for (let y = 0; y < height; ++y) {
    const line = lines.subarray(y * (width * 3 + 1) + 1, (y + 1) * (width * 3 + 1));
    for (let x = 0; x < width; ++x) colours.add(line.subarray(3 * x, 3 * x + 3).toString("hex"));
  }
  const range = 1;
  for (const sample of expected.small) {
    const wanted = scaleColour(sample.p1, { range, root: false, theme: "light" });
    assert.ok(
      colours.has(Buffer.from(wanted).toString("hex")),
      `p1 of ${sample.row},${sample.column}`,
    );
  }
});

test("the SVG of the program is an SVG", async () => {
  await withReport("small.svg", {}, async (page) => {
    const seen = await page.evaluate(() => [
      document.documentElement.tagName,
      document.querySelectorAll("text").length,
      document.querySelectorAll("image, rect").length,
    ]);
    assert.equal(seen[0], "svg");
    assert.ok(seen[1] > 100 && seen[2] > 200, String(seen));
  });
});
