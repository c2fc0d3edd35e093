// SPDX-License-Identifier: Apache-2.0
// The server's page in Chromium. A page fails its test on any console error, exception or request to another address.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import path from "node:path";

const require = createRequire(path.join(process.env.DIFFATTN_NODE_MODULES, "x"));
const { chromium } = require("playwright-core");
const CHAT = process.env.DIFFATTN_CHAT_URL;
const LOCKED = process.env.DIFFATTN_LOCKED_URL;

let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.DIFFATTN_CHROMIUM, args: ["--no-sandbox", "--disable-gpu"],
  });
});
after(() => browser?.close());

async function withPage(url, { scheme = "light", width = 1100, allowed = [] }, use) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme });
  const page = await context.newPage();
  page.setDefaultTimeout(120000);  // a busy machine may take long
  const trouble = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${url}/`) && !request.url().startsWith("data:")) trouble.push(request.url());
  });
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !allowed.some((text) => message.text().includes(text))) {
      trouble.push(message.text());
    }
  });
  page.on("pageerror", (error) => trouble.push(error.stack));
  // The model may draw its end token at any time; answers of a known length make the tests repeat.
  await page.route("**/v1/**completions", (route) => {
    const body = { ...JSON.parse(route.request().postData()), ignore_eos: true };
    return route.continue({ postData: JSON.stringify(body) });
  });
  await page.goto(`${url}/`);
  await use(page);
  await context.close();
  assert.deepEqual(trouble, []);
}

async function picture(page, name) {
  const folder = process.env.DIFFATTN_SCREENSHOTS;
  if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true });
}

// Waits until an answer is complete and its tokens are offered.
async function answered(page) {
  await page.waitForSelector("#attention:not([hidden])");
}

test("a conversation streams its replies and keeps its turns", async () => {
  await withPage(CHAT, {}, async (page) => {
    await page.waitForFunction(() => document.getElementById("model").textContent !== "");
    assert.equal(await page.textContent("#model"), "small <b>");  // text, never markup
    await page.fill("#max-tokens", "24");
    await page.fill("#chat-text", "the cat <img src=x onerror=alert(1)>");
    await page.click("#chat-form button[type=submit]");
    await answered(page);
    assert.equal(await page.locator(".message").count(), 2);
    assert.match(await page.textContent("#status"), /^\d+ tokens in .* s, ended by (length|stop)$/);
    await page.fill("#chat-text", "a dog");
    const request = page.waitForRequest((sent) => sent.url().endsWith("/v1/chat/completions"));
    await page.keyboard.press("Control+Enter");
    const body = JSON.parse((await request).postData());
    assert.deepEqual(body.messages.map((message) => message.role).slice(0, 1), ["user"]);
    assert.ok(body.messages.length >= 2);
    await answered(page);
    await page.click("#chat-reset");
    assert.equal(await page.locator(".message").count(), 0);
  });
});

for (const [scheme, width] of [["light", 1100], ["dark", 1100], ["light", 390]]) {
  test(`a completion and its attention, ${scheme}, ${width} px`, async () => {
    await withPage(CHAT, { scheme, width }, async (page) => {
      await page.click("#show-completion");
      await page.fill("#completion-text", "the cat sat on ");
      await page.fill("#temperature", "0");
      await page.fill("#max-tokens", "20");
      await page.click("#completion-form button[type=submit]");
      await answered(page);
      const text = await page.inputValue("#completion-text");
      assert.ok(text.startsWith("the cat sat on ") && text.length > 15, text);
      const made = Number((await page.textContent("#status")).match(/^(\d+) tokens/)[1]);
      const tokens = page.locator("#tokens button");
      assert.equal(await tokens.count(), 15 + made);  // one token for each byte
      await tokens.nth(12).click();
      await page.waitForSelector("#maps:not([hidden])");
      assert.equal(await page.locator(".lane").count(), 3);
      assert.equal(await page.locator(".lane").first().locator("span").count(), 13);
      const sum = await page.evaluate(() => [...document.querySelectorAll('.lane[data-map="first"] span')]
        .reduce((total, token) => total + Number(token.title), 0));
      assert.ok(Math.abs(sum - 1) < 0.01, `the first map sums to ${sum}`);
      const heads = await page.locator("#head option").count();
      assert.ok(heads > 1);
      await page.selectOption("#head", "0");
      const wide = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
      assert.equal(wide, false, "the page scrolls sideways");
      await picture(page, `completion_${scheme}_${width}`);
      await page.click("#completion-undo");
      assert.equal(await page.inputValue("#completion-text"), "the cat sat on ");
    });
  });
}

// No machine finishes such an answer before the click.
test("an answer can be stopped", async () => {
  await withPage(CHAT, {}, async (page) => {
    await page.click("#show-completion");
    await page.fill("#completion-text", "the");
    await page.fill("#max-tokens", "90000");
    await page.click("#completion-form button[type=submit]");
    await page.waitForFunction(() => document.getElementById("completion-text").value.length > 10);
    await page.click("#stop");
    await page.waitForSelector("#stop", { state: "hidden" });
    assert.match(await page.textContent("#status"), /^stopped after \d+ pieces$/);
    const length = (await page.inputValue("#completion-text")).length;
    await page.waitForTimeout(200);
    assert.equal((await page.inputValue("#completion-text")).length, length, "text comes after the stop");
  });
});

test("errors of the server are shown", async () => {
  await withPage(LOCKED, { allowed: ["401", "400"] }, async (page) => {
    await page.waitForFunction(() => document.getElementById("status").textContent.includes("API key"));
    await page.fill("#key", "k3y");
    await page.fill("#chat-text", "hello");
    await page.click("#chat-form button[type=submit]");
    await page.waitForFunction(() => document.getElementById("status").textContent.includes("chat template"));
    await page.click("#show-completion");
    await page.fill("#completion-text", "the cat");
    await page.click("#completion-form button[type=submit]");
    await answered(page);
  });
});
