// SPDX-License-Identifier: Apache-2.0
// What a page shows when it opens: the first screen of a comparison, the question's row, the head of
// each model, and the layer that a head removes.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  cellColour,
  expected,
  near,
  numberOf,
  painted,
  scaleColour,
  withReport,
} from "./browser.mjs";

const box = (page, selector) =>
  page.$eval(selector, (element) => element.getBoundingClientRect().toJSON());

test("the first screen has verdict, curves and the question's row", async () => {
  await withReport("results.html", {}, async (page) => {
    await page.waitForSelector(".row-figure:not([hidden]) canvas[data-from]");
    const verdict = await box(page, ".verdict");
    const charts = await box(page, ".charts");
    const picture = await box(page, ".row-picture");
    assert.ok(verdict.bottom <= charts.top && charts.bottom <= picture.top);
    assert.ok(picture.top + 0.75 * picture.height < 800, `the picture ends at ${picture.bottom}`);
    assert.match(await page.textContent(".verdict"), /0\.914 \u00b1 0\.010/);
    assert.match(
      await page.textContent(".row-figure .explain"),
      /Token 40 .*layer 1, head 1 of DIFF/,
    );
    assert.match(await page.textContent(".row-figure .explain"), /layer 0, head 2 of Transformer/);
    assert.equal(
      await page.locator(".charts .explain").first().textContent(),
      "Why the curve rises.",
    );
  });
});

test("the picture of the row shows the answer and sums its weights", async () => {
  await withReport("results.html", {}, async (page) => {
    const seen = await page.evaluate(() => {
      const { app, lanes, maps, canvas } = window.diffattn.view.picture;
      const answers = maps[0].tokens.regions.filter(({ kind }) => kind === "answer");
      const sum = (values) =>
        answers.reduce(
          (total, { begin, end }) => total + values.slice(begin, end).reduce((a, b) => a + b, 0),
          0,
        );
      return {
        from: Number(canvas.dataset.from),
        to: Number(canvas.dataset.to),
        answer: answers[0],
        sums: lanes.map(({ values }) => sum(values)),
        label: canvas.getAttribute("aria-label"),
        titles: lanes.map(({ title }) => title),
        models: app.report.models.length,
      };
    });
    assert.ok(seen.from <= seen.answer.begin && seen.answer.end <= seen.to);
    assert.deepEqual(seen.titles, [
      "map 1",
      "\u03bb \u00b7 map 2",
      "map 1 \u2212 \u03bb \u00b7 map 2",
      "attention map",
    ]);
    assert.ok(Math.abs(seen.sums[0] - seen.sums[1] - seen.sums[2]) < 1e-5);
    const shown = [...seen.label.matchAll(/: (\S+) on the answer/g)].map(([, text]) =>
      numberOf(text),
    );
    seen.sums.forEach((sum, i) =>
      assert.ok(
        Math.abs(shown[i] - sum) <= 0.06 * Math.abs(sum) + 1e-9,
        `${shown[i]} is not ${sum}`,
      ),
    );
  });
});

test("tables are folded, every number last; commands come last and can be copied", async () => {
  await withReport("results.html", {}, async (page) => {
    const open = await page.$$eval(".folded", (all) => all.map((one) => one.open));
    assert.deepEqual(open, [false, false]);
    const names = await page.locator(".folded summary").allTextContents();
    assert.equal(names.at(-1), "Every number");
    const order = await page.evaluate(() => {
      const last = [...document.querySelectorAll(".folded")].at(-1);
      const next = document.querySelector(".commands");
      return Boolean(last.compareDocumentPosition(next) & Node.DOCUMENT_POSITION_FOLLOWING);
    });
    assert.ok(order);
    assert.equal(
      await page.textContent(".command pre code"),
      "diffattn compare --task needle --seeds 14,15",
    );
    await page.click(".command button");
    await page.waitForFunction(() =>
      /copied|selected/.test(document.querySelector(".command button").textContent),
    );
    await page.locator(".folded summary").first().click();
    assert.ok(await page.locator(".folded table").first().isVisible());
  });
});

test("an example marks what is right and what is wrong", async () => {
  await withReport("results.html", {}, async (page) => {
    assert.equal(await page.textContent(".example .word.answer"), "KEEP1");
    assert.equal(await page.textContent(".example .word.wrong"), "w9");
    assert.deepEqual(await page.locator(".example dt").allTextContents(), [
      "document",
      "DIFF",
      "Transformer",
    ]);
  });
});

test("maps and tokens open on the question's row and on the first head of each model", async () => {
  await withReport("results.html", { fragment: "view=maps&other=1" }, async (page) => {
    await painted(page);
    assert.match(await page.textContent(".readout"), /query 40 /);
    const strongest = await page.evaluate(() => {
      const values = [...window.diffattn.currentMap().row("difference", 40)].map(Math.abs);
      return values.indexOf(Math.max(...values.filter(Number.isFinite)));
    });
    assert.match(await page.textContent(".readout"), new RegExp(`key ${strongest} `));
    const heads = await page.locator(".panel-row h3").allTextContents();
    assert.deepEqual(heads, ["DIFF layer 1, head 1", "Transformer layer 0, head 2"]);
    await page.evaluate(() => window.diffattn.set({ view: "tokens" }));
    assert.match(await page.textContent(".tokens-view h3:nth-of-type(2)"), /Token 40 /);
    await page.keyboard.press("]");
    assert.equal(await page.textContent('output[data-value="head"]'), "2");
  });
});

test("what is removed is a layer of its own", async () => {
  const fragment = "view=maps&layer=2&head=1&range=0.1&root=false";
  await withReport("small.html", { fragment }, async (page) => {
    await painted(page);
    await page.click('.choice[aria-label="Second map"] [data-value="removed"]');
    await painted(page);
    assert.equal(await page.getAttribute(".panel:nth-child(2) .overlay", "data-plane"), "removed");
    for (const { row, column, p2, lambda } of expected.small) {
      const wanted = scaleColour(p2 * lambda, { range: 0.1, root: false, theme: "light" });
      near(await cellColour(page, 1, row, column), wanted, 1, `removed ${row},${column}`);
      await page.evaluate(([r, c]) => window.diffattn.set({ row: r, column: c }), [row, column]);
      const text = await page.textContent('.readout output[data-plane="removed"]');
      assert.ok(Math.abs(numberOf(text) - p2 * lambda) < 1e-7, text);
    }
    await page.waitForFunction(() => /removed=true/.test(location.hash));
    await page.evaluate(() => window.diffattn.set({ view: "overview", plane: "removed" }));
    await page.waitForSelector('.overview-view [data-value="removed"][aria-pressed="true"]');
  });
});

test("layers and heads use the width and open on the noise that is cancelled", async () => {
  await withReport("small.html", { fragment: "view=overview" }, async (page) => {
    assert.equal(await page.inputValue(".controls select"), "noise_cancelled");
    const grid = await box(page, ".overview-view");
    const cell = await box(page, ".head-cell:last-child");
    assert.ok(cell.right > grid.right - 20, `${cell.right} of ${grid.right}`);
    await page.evaluate(() => window.diffattn.set({ model: 1 }));
    assert.notEqual(await page.inputValue(".controls select"), "noise_cancelled");
  });
});

test("a Transformer's map fills the row beside ours", async () => {
  await withReport("results.html", { fragment: "view=maps&other=1" }, async (page) => {
    await painted(page);
    const boxes = await page.$$eval(".panel .overlay", (all) =>
      all.map((overlay) => overlay.getBoundingClientRect().toJSON()),
    );
    assert.equal(boxes.length, 4);
    for (const { top } of boxes) assert.ok(Math.abs(top - boxes[0].top) < 1);
    assert.ok(boxes[3].right > (await box(page, ".stage")).right - 40);
  });
});

// Returns the columns of pixels above a map that the overlay of panel 0 covers between two heights.
const covered = (page, from, to) =>
  page.evaluate(
    ([y0, y1]) => {
      const canvas = document.querySelector("canvas.overlay");
      const { data, width } = canvas.getContext("2d").getImageData(0, y0, canvas.width, y1 - y0);
      const columns = new Set();
      for (let i = 3; i < data.length; i += 4) if (data[i]) columns.add(((i - 3) / 4) % width);
      return [...columns];
    },
    [from, to],
  );

test("the tags of the crosshair do not cover other labels", async () => {
  await withReport("small.html", { fragment: "view=maps&row=30&column=12" }, async (page) => {
    await painted(page);
    // The map is too small for tokens: positions stand 10 pixels above it.
    assert.deepEqual(await covered(page, 38, 55), []);
    assert.ok((await covered(page, 20, 37)).length > 10);
    await page.evaluate(() => window.diffattn.view.setView({ cell: 16, left: 5, top: 20 }));
    await page.waitForFunction(() => window.diffattn.view.view().cell === 16);
    await painted(page);
    const { x, cell, left } = await page.evaluate(() => {
      const { view } = window.diffattn;
      return { x: view.rows[0].panels[0].rect.x, ...view.view() };
    });
    const middle = x + (12.5 - left) * cell;
    const columns = await covered(page, 0, 50);
    assert.ok(columns.length > 5);
    for (const column of columns) assert.ok(Math.abs(column - middle) <= cell / 2 + 1);
  });
});

test("newlines break the text, lists have positions, the page tells its size", async () => {
  await withReport("results.html", { fragment: "view=tokens" }, async (page) => {
    const tops = await page.$$eval(".source .token", (all) =>
      all.slice(2, 5).map((token) => token.offsetTop),
    );
    assert.ok(tops[1] === tops[0] && tops[2] > tops[1], String(tops));
    const [first, strongest] = await page.evaluate(() => {
      const values = [...window.diffattn.currentMap().row("difference", 40)].map(Math.abs);
      const text = document.querySelector(".flow:nth-child(3) .strongest .position").textContent;
      return [Number(text), values.indexOf(Math.max(...values.filter(Number.isFinite)))];
    });
    assert.equal(first, strongest);
    assert.match(await page.textContent("footer"), /maps of 12 heads take [\d.]+ MB of this file/);
  });
  await withReport("large.html", {}, async (page) => {
    assert.match(await page.textContent("footer"), /1 of them are downsampled/);
  });
});
