// SPDX-License-Identifier: Apache-2.0
// Compares every view of a small report with the numbers in it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import {
  addressed,
  cellColour,
  download,
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

const PLANES = ["p1", "p2", "difference"];
const HEAD = "layer=2&head=1";
const statistics = JSON.parse(readFileSync(path.join(folder, "statistics.json"), "utf8"));

for (const theme of ["light", "dark"]) {
  test(`cells have the colours of their values: ${theme}`, async () => {
    const fragment = `view=maps&${HEAD}&range=0.1&root=false`;
    await withReport("small.html", { fragment, scheme: theme }, async (page) => {
      await painted(page);
      for (const sample of expected.small) {
        for (const [panel, plane] of PLANES.entries()) {
          const wanted = scaleColour(sample[plane], { range: 0.1, root: false, theme });
          near(
            await cellColour(page, panel, sample.row, sample.column),
            wanted,
            1,
            `${plane} ${sample.row},${sample.column}`,
          );
        }
      }
    });
  });
}

test("entries that a row may not see are hatched, not zero", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    const zero = expected.scale.light[127];
    const colours = [];
    for (let column = 20; column < 40; ++column)
      colours.push(String(await cellColour(page, 0, 5, column)));
    assert.ok(!colours.includes(String(zero)));
  });
});

test("tooltip and readout show the exact numbers", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    for (const sample of expected.small) {
      await pointAt(page, 2, sample.row, sample.column);
      for (const box of [".tooltip", ".readout"]) {
        for (const plane of ["p1", "p2", "lambda"]) {
          const text = await page.textContent(`${box} output[data-plane="${plane}"]`);
          assert.equal(
            Math.fround(numberOf(text)),
            Math.fround(sample[plane]),
            `${box} ${plane} ${text}`,
          );
        }
        const difference = numberOf(
          await page.textContent(`${box} output[data-plane="difference"]`),
        );
        assert.ok(
          Math.abs(difference - sample.difference) < 1e-7,
          `${difference} is not ${sample.difference}`,
        );
      }
    }
    await page.mouse.move(5, 5);
    await page.waitForSelector(".tooltip", { state: "hidden" });
  });
});

test("the crosshair is on all maps, wheel and drag show single cells", async () => {
  await withReport(
    "small.html",
    { fragment: `view=maps&${HEAD}&other=2`, height: 1200 },
    async (page) => {
      await painted(page);
      const before = await geometry(page, 0);
      // Wheel events have whole pixels only.
      const point = {
        x: Math.round(before.x + 7.5 * before.cell),
        y: Math.round(before.y + 55.5 * before.cell),
      };
      await page.mouse.move(point.x, point.y);
      await page.waitForFunction(() => window.diffattn.state.row === 55);
      await painted(page);
      const marked = () =>
        page.evaluate(() =>
          [...document.querySelectorAll("canvas.overlay")].map((canvas) =>
            canvas
              .getContext("2d")
              .getImageData(0, 0, canvas.width, canvas.height)
              .data.some((byte) => byte !== 0),
          ),
        );
      assert.deepEqual(await marked(), [true, true, true, true, true, true]);
      assert.equal(await page.locator(".readout .values").count(), 2);
      // The browser may join events of the wheel and hand them over later.
      await page.evaluate(() => {
        window.wheeled = 0;
        addEventListener("wheel", ({ deltaY }) => (window.wheeled += deltaY));
      });
      for (let i = 0; i < 12; ++i) await page.mouse.wheel(0, -240);
      await page.waitForFunction(() => window.wheeled === -12 * 240);
      const zoomed = await geometry(page, 0);
      const entry = ({ left, top, cell, x, y }) => [
        Math.floor(top + (point.y - y) / cell),
        Math.floor(left + (point.x - x) / cell),
      ];
      assert.ok(zoomed.cell > before.cell * 4);
      assert.deepEqual(entry(zoomed), [55, 7]);
      await page.mouse.down();
      await page.mouse.move(point.x - 20, point.y - 80, { steps: 4 });
      await page.mouse.up();
      await page.waitForFunction(
        (top) => Math.abs(window.diffattn.view.view().top - top) < 0.5,
        zoomed.top + 80 / zoomed.cell,
      );
      await page.click("text=whole map");
      assert.equal((await geometry(page, 0)).cell, before.cell);
    },
  );
});

test("the address holds the state", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    await page.focus(".stage");
    for (const key of ["ArrowDown", "ArrowDown", "ArrowRight", "+", "+", "+", "+"])
      await page.keyboard.press(key);
    await addressed(page);
    assert.match(await page.evaluate(() => location.hash), /row=2.*cell=/);
    const view = await geometry(page, 0);
    await page.reload();
    await painted(page);
    const again = await geometry(page, 0);
    for (const key of ["left", "top", "cell"])
      assert.ok(Math.abs(view[key] - again[key]) < 1e-4, key);
    assert.equal(await page.textContent('output[data-value="layer"]'), "2");
    await page.evaluate(() => {
      location.hash = "view=statistics&layer=99&head=-3&model=7&range=x&theme=pink";
    });
    await page.waitForSelector(".statistics-view table");
  });
});

test("regions are marked", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    assert.match(await page.textContent(".regions"), /answer: 7039.*other needles/);
    const { regions } = await page.evaluate(() => window.diffattn.report.sequences[0]);
    const at = regions.find(({ kind }) => kind === "answer").begin;
    const { left, cell, inner } = await geometry(page, 1);
    const colour = await page.evaluate(
      ([x, y]) => [
        ...document.querySelectorAll("canvas.map")[1].getContext("2d").getImageData(x, y, 1, 1)
          .data,
      ],
      [Math.round(inner.x + (at + 1 - left) * cell), inner.y - 5],
    );
    near(colour.slice(0, 3), [0x0b, 0x7a, 0x53], 1, "answer band");
  });
});

test("layers and heads: select a statistic, click to open a head", async () => {
  await withReport("small.html", { fragment: "view=overview" }, async (page) => {
    assert.equal(await page.locator(".head-cell:not([disabled])").count(), 16);
    for (const key of ["negative_mass", "similarity"]) {
      await page.selectOption(".controls select", key);
      for (const { layer, head, [key]: value } of statistics) {
        const text = await page.textContent(
          `.head-cell[data-layer="${layer}"][data-head="${head}"] .value`,
        );
        assert.ok(
          Math.abs(numberOf(text) - value) <= Math.abs(value) * 0.006,
          `${key} ${layer} ${head}: ${text}, ${value}`,
        );
      }
    }
    const inked = await page.evaluate(() =>
      [...document.querySelectorAll(".head-cell canvas")].every(
        (canvas) =>
          new Set(
            new Uint32Array(
              canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer,
            ),
          ).size > 5,
      ),
    );
    assert.ok(inked);
    await page.click('.head-cell[data-layer="3"][data-head="2"]');
    await painted(page);
    assert.equal(await page.textContent('output[data-value="layer"]'), "3");
    assert.equal(await page.textContent('output[data-value="head"]'), "2");
  });
});

test("tokens: pointing at one shows signed weights", async () => {
  await withReport(
    "small.html",
    { fragment: `view=tokens&${HEAD}&range=0.1&root=false` },
    async (page) => {
      const sample = expected.small[1];
      await page.hover(`.source .token[data-row="${sample.row}"]`);
      await page.waitForFunction((row) => window.diffattn.state.row === row, sample.row);
      for (const plane of PLANES) {
        const text = await page.evaluate(
          ([name, column]) => {
            const { style } = document.querySelector(`.flow .text[data-plane="${name}"]`).children[
              column
            ];
            return style.background;
          },
          [plane, sample.column],
        );
        const wanted = scaleColour(sample[plane], { range: 0.1, root: false, theme: "light" });
        near(text.match(/\d+/g).map(Number), wanted, 1, plane);
      }
      assert.equal(await page.locator(".strongest").count(), 3);
      await page.focus(".source");
      await page.keyboard.press("Home");
      assert.match(await page.textContent(".tokens-view h3:nth-of-type(2)"), /Token 0 <s>/);
    },
  );
});

test("lambda across layers", async () => {
  await withReport("small.html", { fragment: "view=lambda&other=2" }, async (page) => {
    assert.equal(await page.locator(".chart path.line").count(), 3);
    const lambda = await page.evaluate(() => window.diffattn.report.models[0].lambda);
    const cells = await page
      .locator(".table-block")
      .first()
      .locator("tbody tr")
      .nth(5)
      .locator("td")
      .allTextContents();
    assert.deepEqual(cells.slice(0, 2), ["1", "1"]);
    assert.ok(Math.abs(numberOf(cells[2]) - lambda[1].heads[1][0]) < 1e-5);
    assert.ok(Math.abs(numberOf(cells[5]) - (0.8 - 0.6 * Math.exp(-0.3))) < 1e-5);
  });
});

test("statistics: sorting, CSV and PNG export", async () => {
  await withReport("small.html", { fragment: "view=statistics" }, async (page) => {
    await page.click("th:has-text('entropy') button");
    const shown = (await page.locator("tbody tr td:nth-child(7)").allTextContents()).map(numberOf);
    assert.deepEqual(
      shown,
      [...shown].sort((a, b) => b - a),
    );
    assert.equal(shown.length, 16);
    const csv = await download(page, () => page.click("text=CSV"));
    assert.equal(csv.name, "statistics.csv");
    const lines = csv.bytes
      .toString()
      .trim()
      .split("\r\n")
      .map((line) => line.split(","));
    const original = readFileSync(path.join(folder, "statistics.csv"), "utf8")
      .trim()
      .split("\r\n")
      .map((line) => line.split(","));
    assert.deepEqual(lines[0], original[0]);
    const key = (line) => line.map(Number).join();
    assert.deepEqual(new Set(lines.slice(1).map(key)), new Set(original.slice(1).map(key)));
    const png = await download(page, () => page.click("text=PNG"));
    assert.equal(png.bytes.subarray(1, 4).toString(), "PNG");
    await page.click("tbody tr:first-child");
    await painted(page);
  });
});

test("two models in one page", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    await page.selectOption('select[data-bar="other"]', "1");
    await painted(page);
    assert.equal(await page.locator("canvas.map").count(), 4);
    await page.keyboard.press("5");
    await page.waitForSelector(".statistics-view table");
    assert.equal(await page.locator("tbody tr").count(), 32);
    await page.keyboard.press("2");
    assert.equal(await page.locator(".head-cell").count(), 32);
    await page.keyboard.press("c");
    assert.equal(await page.locator(".head-cell").count(), 16);
  });
});

test("maps: PNG export", async () => {
  await withReport("small.html", { fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    const png = await download(page, () => page.click("text=PNG"));
    assert.equal(png.name, "maps.png");
    assert.ok(png.bytes.readUInt32BE(16) > 2000 && png.bytes.length > 20000);
  });
});

test("cross-attention: keys are not the queries", async () => {
  await withReport("small.html", { fragment: "view=maps&sequence=1" }, async (page) => {
    await painted(page);
    const size = await page.evaluate(() => window.diffattn.view.rows[0].panels[0].rect);
    assert.ok(Math.abs(size.width / size.height - 30 / 12) < 0.05);
    await page.focus(".stage");
    await page.keyboard.press("Shift+ArrowRight");
    assert.match(await page.textContent(".readout"), /query 0 .*key 10 /);
  });
});

test("print is light and shows only the view", async () => {
  await withReport(
    "small.html",
    { fragment: `view=maps&${HEAD}`, scheme: "dark" },
    async (page) => {
      await painted(page);
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
      const during = await page.evaluate(() => {
        window.dispatchEvent(new Event("beforeprint"));
        const { theme } = document.documentElement.dataset;
        window.dispatchEvent(new Event("afterprint"));
        return [theme, document.documentElement.dataset.theme];
      });
      assert.deepEqual(during, ["light", "dark"]);
      await page.emulateMedia({ media: "print" });
      assert.equal(await page.isVisible("nav"), false);
      assert.equal(await page.isVisible("canvas.map"), true);
    },
  );
});

test("results: curves and tables", async () => {
  await withReport("results.html", {}, async (page) => {
    assert.equal(await page.locator("nav [aria-current]").textContent(), "Results");
    assert.equal(await page.locator(".chart").count(), 3);
    const table = page.locator(".folded").first();
    await table.locator("summary").click();
    assert.deepEqual(await table.locator("td.best").allTextContents(), [
      "0.914",
      "0.902",
      "44\u202f810",
    ]);
    await page.locator(".chart").nth(1).focus();
    for (let i = 0; i < 3; ++i) await page.keyboard.press("ArrowRight");
    assert.match(
      await page.locator(".chart-note").nth(1).textContent(),
      /needles 4.*DIFF 0.92.*Transformer 0.72/,
    );
  });
});

test("a phone shows everything, with maps below each other; a tap moves the crosshair", async () => {
  const phone = { width: 390, height: 844 };
  const tooWide = (page) =>
    page.evaluate(() => {
      const { scrollWidth, clientWidth } = document.documentElement;
      return scrollWidth - clientWidth;
    });
  for (const view of ["overview", "tokens", "lambda", "statistics", "results"]) {
    const file = view === "results" ? "results.html" : "small.html";
    await withReport(file, { ...phone, fragment: `view=${view}` }, async (page) => {
      await page.waitForSelector("nav [aria-current]");
      assert.equal(await tooWide(page), 0, view);
      const scales = await page.$$eval(".chart svg", (all) =>
        all.map((drawing) => drawing.getScreenCTM().a),
      );
      for (const scale of scales) assert.ok(scale > 0.9, `${view}: letters at ${scale}`);
    });
  }
  await withReport("small.html", { ...phone, fragment: `view=maps&${HEAD}` }, async (page) => {
    await painted(page);
    assert.equal(await tooWide(page), 0);
    const boxes = await page.$$eval(".panel .overlay", (all) =>
      all.map((overlay) => overlay.getBoundingClientRect().toJSON()),
    );
    assert.equal(boxes.length, 3);
    for (let i = 1; i < 3; ++i) assert.ok(boxes[i].top >= boxes[i - 1].bottom);
    const { cell, x, y } = await geometry(page, 0);
    await page.touchscreen.tap(x + 4.5 * cell, y + 9.5 * cell);
    await page.waitForFunction(() => window.diffattn.state.row === 9);
    assert.match(await page.textContent(".readout"), /query 9 .* key 4 /);
  });
});
