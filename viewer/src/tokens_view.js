// SPDX-License-Identifier: Apache-2.0
// The view of the text. Pointing at a token shows the signed weights of the tokens that it attends
// to, in both maps and in their difference.

import { cssColour, h } from "./dom.js";
import { Legend } from "./legend.js";
import { planeTitle } from "./panel.js";
import { colourOf, inkOn } from "./colour.js";
import { LANE_FONT, drawBars, drawRegions, sizedContext } from "./row_lanes.js";
import { shortNumber, shortened, tokenText } from "./format.js";

// Tokens per page: about as many as a browser can recolour in one frame.
const WINDOW = 600;
const STRIP_LANE = 56;
const TOP_COUNT = 8;

// A token; the line breaks after one with a newline.
function tokenElement(token, attributes) {
  const breaks = token.includes("\n") ? " breaks" : "";
  return h("bdi", { class: `token${breaks}`, ...attributes }, tokenText(token));
}

export class TokensView {
  constructor(app) {
    this.app = app;
    this.legend = new Legend(app);
    this.start = 0;
    this.source = h("p", {
      class: "text source",
      tabindex: 0,
      role: "listbox",
      "aria-label": "Query token. Arrow keys select another token.",
    });
    this.heading = h("h3", {});
    this.strip = h("canvas", { class: "strip" });
    this.flows = h("div", { class: "flows" });
    this.pages = h("div", { class: "pages" });
    this.element = h(
      "section",
      { class: "tokens-view" },
      h("h3", {}, "Query"),
      this.source,
      this.pages,
      this.heading,
      this.strip,
      this.flows,
      this.legend.element,
    );
    this.source.addEventListener("pointerover", (event) => this.pick(event.target.dataset.row));
    this.source.addEventListener("click", (event) => this.pick(event.target.dataset.row));
    this.source.addEventListener("keydown", (event) => this.onKey(event));
    this.observer = new ResizeObserver(() => this.drawStrip());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  pick(row) {
    if (row !== undefined) this.app.set({ row: Number(row) });
  }

  onKey(event) {
    const step = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -10,
      ArrowDown: 10,
      Home: -1e9,
      End: 1e9,
    }[event.key];
    if (!step || !this.map) return;
    this.app.set({ row: Math.max(0, Math.min(this.map.rows - 1, this.row() + step)) });
    event.preventDefault();
  }

  row() {
    return Math.min(this.app.row() ?? this.map.rows - 1, this.map.rows - 1);
  }

  update(changed) {
    const shown = this.app.shownMaps();
    this.map = shown[0]?.map;
    if (!this.map) {
      this.heading.textContent = this.app.payload.finished()
        ? "This report has no map of this layer and head."
        : "Loading\u2026";
      return;
    }
    const row = this.row();
    if (row < this.start || row >= this.start + WINDOW)
      this.start = Math.floor(row / WINDOW) * WINDOW;
    if (!changed || changed.size > 1 || !changed.has("row") || this.start !== this.builtFrom)
      this.rebuild(shown);
    this.recolour(row);
    this.legend.update();
  }

  rebuild(shown) {
    const { tokens } = this.map;
    this.builtFrom = this.start;
    const end = Math.min(this.map.rows, this.start + WINDOW);
    this.source.replaceChildren(
      ...tokens.rows
        .slice(this.start, end)
        .map((token, i) => tokenElement(token, { "data-row": this.start + i, role: "option" })),
    );
    this.pages.replaceChildren(...this.pageButtons());
    this.lanes = shown
      .filter(({ map }) => map)
      .flatMap(({ model, map }) =>
        map.shownPlanes(this.app.state.removed).map((plane) => {
          const text = h("p", { class: "text", "data-plane": plane });
          const list = h("ol", { class: "strongest" });
          const title =
            (shown.length > 1 ? `${this.app.report.models[model].name}: ` : "") +
            planeTitle(map, plane);
          return {
            map,
            plane,
            text,
            list,
            title,
            element: h("div", { class: "flow" }, h("h4", {}, title), text, list),
          };
        }),
      );
    this.flows.replaceChildren(...this.lanes.map(({ element }) => element));
  }

  pageButtons() {
    if (this.map.rows <= WINDOW) return [];
    const buttons = [];
    for (let from = 0; from < this.map.rows; from += WINDOW) {
      buttons.push(
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(from === this.start),
            onclick: () => this.app.set({ row: from }),
          },
          `${from}\u2013${Math.min(this.map.rows, from + WINDOW) - 1}`,
        ),
      );
    }
    return buttons;
  }

  recolour(row) {
    const scale = this.app.scale();
    for (const option of this.source.children)
      option.setAttribute("aria-selected", String(Number(option.dataset.row) === row));
    const { tokens } = this.map;
    this.heading.replaceChildren(
      `Token ${row} `,
      h("bdi", { class: "token" }, tokenText(tokens.rows[row])),
      " attends to",
    );
    for (const lane of this.lanes) {
      lane.values = lane.map.row(lane.plane, Math.min(row, lane.map.rows - 1));
      this.colourText(lane, scale);
      this.listStrongest(lane);
    }
    this.strongest = 1e-30;
    for (const { values } of this.lanes) {
      for (const value of values)
        if (Math.abs(value) > this.strongest) this.strongest = Math.abs(value);
    }
    this.drawStrip();
  }

  colourText({ text, values, map }, scale) {
    const columns = map.tokens.columns;
    // Shows the same page of keys as of queries, or the last one.
    const from = Math.min(
      this.start,
      Math.max(0, Math.floor((columns.length - 1) / WINDOW) * WINDOW),
    );
    const end = Math.min(columns.length, from + WINDOW);
    if (text.childElementCount !== end - from || text.dataset.from !== String(from)) {
      text.dataset.from = String(from);
      text.replaceChildren(...columns.slice(from, end).map((token) => tokenElement(token, {})));
    }
    for (let column = from; column < end; ++column) {
      const { style } = text.children[column - from];
      const value = values[column];
      style.background = Number.isNaN(value) ? "transparent" : colourOf(value, scale);
      style.color = Number.isNaN(value) ? cssColour("--faint") : inkOn(value, scale);
    }
  }

  listStrongest({ list, values, map }) {
    const order = Array.from(values.keys())
      .filter((column) => values[column])
      .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
    const most = Math.abs(values[order[0]]) || 1;
    list.replaceChildren(
      ...order.slice(0, TOP_COUNT).map((column) => {
        const value = values[column];
        const bar = h("i", { class: value < 0 ? "bar negative" : "bar" });
        bar.style.width = `${(100 * Math.abs(value)) / most}%`;
        return h(
          "li",
          {},
          h("span", { class: "position", title: "position of the key" }, column),
          h("bdi", { class: "token" }, shortened(tokenText(map.tokens.columns[column]), 18)),
          h("span", { class: "track" }, bar),
          h("output", {}, shortNumber(value)),
        );
      }),
    );
  }

  // Draws all keys as signed bars, one lane per map.
  drawStrip() {
    if (!this.lanes || !this.map) return;
    const width = this.element.clientWidth;
    const height = this.lanes.length * STRIP_LANE + 16;
    const context = sizedContext(this.strip, width, height);
    const left = 150;
    context.font = LANE_FONT;
    const step = (width - left - 8) / this.map.columns;
    const frame = { left, step, width: width - 8, from: 0, to: this.map.columns, lane: STRIP_LANE };
    drawRegions(context, this.map.tokens.regions, frame, height - 16);
    this.lanes.forEach(({ values, title }, i) => {
      if (!values) return;
      context.fillStyle = cssColour("--ink");
      context.textAlign = "right";
      context.fillText(title, left - 12, i * STRIP_LANE + STRIP_LANE / 2 + 4, left - 16);
      drawBars(context, values, i * STRIP_LANE, frame, this.strongest);
    });
    context.fillStyle = cssColour("--quiet");
    context.textAlign = "left";
    context.fillText("key 0", left, height - 3);
    context.textAlign = "center";
    context.fillText(`tallest bar ${shortNumber(this.strongest)}`, (left + width) / 2, height - 3);
    context.textAlign = "right";
    context.fillText(String(this.map.columns - 1), width - 8, height - 3);
  }
}
