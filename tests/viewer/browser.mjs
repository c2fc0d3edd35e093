// SPDX-License-Identifier: Apache-2.0
// Starts one Chromium per test file. Its pages fail their test on any request, console error,
// exception or dialog.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";
import path from "node:path";

const require = createRequire(path.join(process.env.DIFFATTN_NODE_MODULES, "x"));
const { chromium } = require("playwright-core");

export const folder = process.env.DIFFATTN_REPORTS;
export const expected = JSON.parse(readFileSync(path.join(folder, "expected.json"), "utf8"));

let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.DIFFATTN_CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu"],
  });
});
after(() => browser?.close());

// Opens a report, waits for its maps, calls `use` with its page and then checks that no such event has happened.
// Calls `options.before` with the empty page, and `options.loading` with the page before its maps are complete.
export async function withReport(file, options, use) {
  const { fragment = "", scheme = "light", width = 1280, height = 800, scale = 1 } = options;
  const { before: prepare, loading } = options;
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: scheme,
    deviceScaleFactor: scale,
    acceptDownloads: true,
    hasTouch: width < 600,
    isMobile: width < 600,
  });
  const page = await context.newPage();
  const trouble = [];
  const address = `file://${path.join(folder, file)}`;
  page.on("request", (request) => {
    const url = request.url();
    if (url.split("#")[0] !== address && !/^(data|blob):/.test(url)) trouble.push(`request ${url}`);
  });
  page.on("console", (message) => {
    // Ignores the one warning that the tests cause themselves, by reading canvases back.
    if (message.text().includes("willReadFrequently")) return;
    if (["error", "warning"].includes(message.type())) trouble.push(`console ${message.text()}`);
  });
  page.on("pageerror", (error) => trouble.push(`exception ${error.stack}`));
  page.on("dialog", (dialog) => {
    trouble.push(`dialog ${dialog.message()}`);
    dialog.dismiss();
  });
  await prepare?.(page);
  await page.goto(address + (fragment ? `#${fragment}` : ""), {
    waitUntil: loading ? "commit" : "load",
  });
  await loading?.(page);
  // The browser decompresses the maps after it has loaded the page.
  if (file.endsWith(".html")) await page.waitForFunction(() => window.diffattn?.payload.finished());
  await use(page);
  await context.close();
  assert.deepEqual(trouble, []);
}

// Waits until the page has drawn, which it does in the next frame.
export async function nextFrame(page) {
  await page.evaluate(
    () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
  );
}

// Waits until maps and crosshair show what was last asked for.
export async function painted(page) {
  await nextFrame(page);
  await page.waitForSelector('.maps-view[data-painted="true"]');
}

// Waits until the address holds row, column and zoom, which the page writes 150 ms after the last change.
export async function addressed(page) {
  await page.waitForFunction(() => {
    const held = new URLSearchParams(location.hash.slice(1));
    return ["row", "column", "left", "top", "cell"].every((key) => {
      const wanted = Number(window.diffattn.state[key]);
      return Math.abs(Number(held.get(key)) - wanted) <= 1e-7 * Math.abs(wanted);
    });
  });
}

// Returns the visible part of the maps {left, top, cell} and the position of panel i on the page.
export async function geometry(page, panel) {
  return page.evaluate((index) => {
    const { view } = window.diffattn;
    const panels = view.rows.flatMap((row) => row.panels);
    const { rect, overlay } = panels[index];
    const bounds = overlay.getBoundingClientRect();
    return {
      ...view.view(),
      x: bounds.left + rect.x,
      y: bounds.top + rect.y,
      inner: { x: rect.x, y: rect.y },
    };
  }, panel);
}

// Moves the mouse to the middle of a cell and waits until the page has handled it.
export async function pointAt(page, panel, row, column) {
  const { left, top, cell, x, y } = await geometry(page, panel);
  await page.mouse.move(x + (column + 0.5 - left) * cell, y + (row + 0.5 - top) * cell);
  await page.waitForFunction(
    ([wantedRow, wantedColumn]) => {
      const { state } = window.diffattn;
      return state.row === wantedRow && state.column === wantedColumn;
    },
    [row, column],
  );
}

// Returns the canvas colour [r, g, b] in the middle of a cell of panel i.
export async function cellColour(page, panel, row, column) {
  const { left, top, cell, inner } = await geometry(page, panel);
  const x = inner.x + (column + 0.5 - left) * cell;
  const y = inner.y + (row + 0.5 - top) * cell;
  return page.evaluate(
    ([index, px, py]) => {
      const canvas = document.querySelectorAll("canvas.map")[index];
      const ratio = window.devicePixelRatio;
      return [
        ...canvas
          .getContext("2d")
          .getImageData(Math.floor(px * ratio), Math.floor(py * ratio), 1, 1).data,
      ].slice(0, 3);
    },
    [panel, x, y],
  );
}

// Returns the colour that the C++ code gives to a value.
export function scaleColour(value, { range, root, theme }) {
  let t = Math.min(1, Math.abs(value) / range);
  if (root) t = Math.sqrt(t);
  const step = Math.floor(t * 127 + 0.5);
  return expected.scale[theme][127 + (value < 0 ? -step : step)];
}

export function near(actual, wanted, tolerance, what) {
  actual.forEach((channel, i) =>
    assert.ok(Math.abs(channel - wanted[i]) <= tolerance, `${what}: ${actual} is not ${wanted}`),
  );
}

// Parses a number as the page writes it.
export function numberOf(text) {
  return Number(text.replace("\u2248 ", "").replaceAll("\u2212", "-").replaceAll("\u202f", ""));
}

export async function download(page, act) {
  const [file] = await Promise.all([page.waitForEvent("download"), act()]);
  return { name: file.suggestedFilename(), bytes: readFileSync(await file.path()) };
}
