// SPDX-License-Identifier: Apache-2.0
// The results of a comparison or of a training run. The first screen has the verdict, two curves and
// the weights of the question's row; below are an example, more curves, notes, tables and commands.

import { h } from "./dom.js";
import { Chart } from "./chart.js";
import { DataTable } from "./table.js";
import { RowPicture } from "./row_picture.js";

const FIRST_CURVES = 2;
const FIRST_HEIGHT = 190; // pixels; leaves room for the picture on the first screen

// Keeps the browser from breaking lines at the hyphens of command-line options.
function whole(text) {
  return text
    .split(/(\s+)/)
    .map((word) => (word.startsWith("-") ? h("span", { class: "option" }, word) : word));
}

function chartsOf(curves, options) {
  return h(
    "div",
    { class: "charts" },
    curves.map((one) => new Chart(one, options).element),
  );
}

function exampleOf({ name, note, lines }) {
  return h(
    "div",
    { class: "example" },
    h("h3", {}, name),
    note ? h("p", { class: "explain" }, note) : "",
    h(
      "dl",
      {},
      lines.flatMap(({ label, words }) => [
        h("dt", {}, label),
        h(
          "dd",
          {},
          words.flatMap(([text, mark]) => [h("bdi", { class: `word ${mark}` }, text), " "]),
        ),
      ]),
    ),
  );
}

function foldedTable(table, i) {
  return h(
    "details",
    { class: "folded" },
    h("summary", {}, table.name),
    new DataTable(table, { fileName: `table-${i + 1}`, titled: false }).element,
  );
}

function selectText(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

// A command with a button that copies it. Where the browser forbids that, the button selects it.
function commandOf({ purpose, command }) {
  const code = h("code", {}, command);
  const button = h("button", { type: "button" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "copied";
    } catch {
      selectText(code);
      button.textContent = "selected: press Ctrl-C";
    }
    setTimeout(() => (button.textContent = "copy"), 2000);
  });
  return h(
    "div",
    { class: "command" },
    h("p", {}, purpose),
    h("pre", {}, code),
    h("div", { class: "tools" }, button),
  );
}

export class ResultsView {
  constructor(app) {
    const { verdict, notes, examples, curves, tables, commands } = app.report;
    this.picture = new RowPicture(app);
    this.element = h(
      "section",
      { class: "results-view" },
      verdict.map((sentence) => h("p", { class: "verdict" }, sentence)),
      chartsOf(curves.slice(0, FIRST_CURVES), { height: FIRST_HEIGHT }),
      this.picture.element,
      examples.map(exampleOf),
      curves.length > FIRST_CURVES ? chartsOf(curves.slice(FIRST_CURVES)) : "",
      h(
        "div",
        { class: "notes" },
        notes.map((note) => h("p", { class: "note" }, whole(note))),
      ),
      tables.map(foldedTable),
      commands.length
        ? h("div", { class: "commands" }, h("h3", {}, "Run next"), commands.map(commandOf))
        : "",
    );
  }

  close() {
    this.picture.close();
  }

  update(changed) {
    if (!changed || changed.has("data") || changed.has("theme")) this.picture.update();
  }
}
