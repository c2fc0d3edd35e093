// SPDX-License-Identifier: Apache-2.0
// Gestures and tables on a phone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { geometry, painted, withReport } from "./browser.mjs";

const PHONE = { width: 390, height: 844 };

// Sends touches to the page; points: [[x, y], ...].
async function touch(session, type, points) {
  await session.send("Input.dispatchTouchEvent", {
    type,
    touchPoints: points.map(([x, y], id) => ({ x, y, id })),
  });
}

test("two fingers zoom the maps around the point between them", async () => {
  const fragment = "view=maps&layer=2&head=1";
  await withReport("small.html", { ...PHONE, fragment }, async (page) => {
    await painted(page);
    const before = await geometry(page, 0);
    const [x, y] = [before.x + 100, before.y + 120];
    const entry = ({ left, top, cell }) => [top + 120 / cell, left + 100 / cell];
    const wanted = entry(before);
    const session = await page.context().newCDPSession(page);
    await touch(session, "touchStart", [[x - 20, y]]);
    await touch(session, "touchStart", [
      [x - 20, y],
      [x + 20, y],
    ]);
    for (const apart of [30, 40, 50, 60])
      await touch(session, "touchMove", [
        [x - apart, y],
        [x + apart, y],
      ]);
    await touch(session, "touchEnd", []);
    const after = await geometry(page, 0);
    assert.ok(Math.abs(after.cell / before.cell - 3) < 0.05, `${after.cell} of ${before.cell}`);
    entry(after).forEach((at, i) =>
      assert.ok(Math.abs(at - wanted[i]) < 0.6, `${at}, ${wanted[i]}`),
    );
    assert.equal(await page.evaluate(() => window.visualViewport.scale), 1);
    // Fingers that come together show the whole map again.
    await touch(session, "touchStart", [
      [x - 60, y],
      [x + 60, y],
    ]);
    await touch(session, "touchMove", [
      [x - 10, y],
      [x + 10, y],
    ]);
    await touch(session, "touchEnd", []);
    assert.equal((await geometry(page, 0)).cell, before.cell);
  });
});

test("a table tells that it has more columns until it is scrolled to its end", async () => {
  await withReport("small.html", { ...PHONE, fragment: "view=statistics" }, async (page) => {
    await page.waitForSelector('.table-block[data-more="true"]');
    assert.ok(await page.isVisible(".more"));
    await page.$eval(".table-scroll", (table) => table.scrollTo(table.scrollWidth, 0));
    await page.waitForSelector('.table-block[data-more="false"]');
    assert.equal(await page.isVisible(".more"), false);
  });
});

test("the first screen fits a phone", async () => {
  await withReport("results.html", PHONE, async (page) => {
    await page.waitForSelector(".row-figure canvas[data-from]");
    const [wide, from, to] = await page.evaluate(() => {
      const { scrollWidth, clientWidth } = document.documentElement;
      const { from: first, to: end } = document.querySelector(".row-picture").dataset;
      return [scrollWidth - clientWidth, Number(first), Number(end)];
    });
    assert.equal(wide, 0);
    // The picture zooms to the columns around the answer.
    assert.ok(to - from >= 8 && to - from < 40, `${from} to ${to}`);
  });
});
