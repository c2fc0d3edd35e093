// SPDX-License-Identifier: Apache-2.0
// Where one head of each model looks from the row that asks the question: the weights of both maps
// and of their difference, around the answer.

import { cssColour, h } from "./dom.js";
import { LABEL_FONT, planeTitle } from "./panel.js";
import { LANE_FONT, drawBars, drawRegions, sizedContext } from "./row_lanes.js";
import { shortNumber, shortened, tokenText } from "./format.js";

const LABELS = 62; // pixels below the lanes for the tokens
const MIN_STEP = 15; // pixels per column, enough for a token that is written upwards
const MODELS = 2;
const LANE_HEIGHT = 46;

// Returns the name without its part: "diffllama, cross-attention" is diffllama.
const shortName = (name) => name.split(",")[0];

export class RowPicture {
  constructor(app) {
    this.app = app;
    this.caption = h("p", { class: "explain" });
    this.canvas = h("canvas", { class: "row-picture", role: "img" });
    this.buttons = h("div", { class: "tools" });
    this.element = h(
      "figure",
      { class: "row-figure", hidden: true },
      h("figcaption", {}, "Where one head looks when it must find the answer"),
      this.caption,
      this.canvas,
      this.buttons,
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  // Uses the head that each model opens, on the text of the first model.
  update() {
    const { app } = this;
    const maps = app.report.models
      .slice(0, MODELS)
      .map((_, model) => app.payload.firstMap(model, 0))
      .filter(Boolean);
    this.row = maps[0]?.tokens.question ?? (maps.length ? maps[0].rows - 1 : null);
    this.element.hidden = maps.length === 0;
    if (maps.length === 0) return;
    this.maps = maps;
    this.lanes = maps.flatMap((map) =>
      map.shownPlanes(true).map((plane) => this.laneOf(map, plane)),
    );
    this.range = 1e-30;
    for (const { values } of this.lanes)
      for (const value of values) if (Math.abs(value) > this.range) this.range = Math.abs(value);
    this.describe();
    this.draw();
  }

  laneOf(map, plane) {
    const values = map.row(plane, this.row);
    const { name } = this.app.report.models[map.model];
    const answers = map.tokens.regions.filter(({ kind }) => kind === "answer");
    let onAnswer = 0;
    for (const { begin, end } of answers)
      for (let column = begin; column < end; ++column) onAnswer += values[column] || 0;
    const note = answers.length ? `${shortNumber(onAnswer, 2)} on the answer` : "";
    const title = plane === "removed" ? "\u03bb \u00b7 map 2" : planeTitle(map, plane);
    return { name, values, note, title };
  }

  describe() {
    const { app, maps } = this;
    const heads = maps.map(
      ({ model, layer, head }) =>
        `layer ${layer}, head ${head} of ${shortName(app.report.models[model].name)}`,
    );
    const answer = maps[0].tokens.regions.some(({ kind }) => kind === "answer");
    this.caption.replaceChildren(
      `Token ${this.row} `,
      h("bdi", { class: "token" }, tokenText(maps[0].tokens.rows[this.row])),
      ` asks. The bars are its weights in ${heads.join(" and in ")}` +
        (answer ? ", in each model the head with most weight on the answer (green)." : "."),
    );
    this.buttons.replaceChildren(
      h(
        "button",
        { type: "button", onclick: () => app.set({ view: "maps" }) },
        "the whole map of this head",
      ),
    );
  }

  // Returns the columns to show: all, or as many as there is room for, around the answer.
  columnsFor(room) {
    const { columns, tokens } = this.maps[0];
    const most = Math.min(columns, Math.max(8, Math.floor(room / MIN_STEP)));
    const answer = tokens.regions.find(({ kind }) => kind === "answer");
    const strongest = this.maps[0].strongestColumn(this.row);
    const middle = answer ? (answer.begin + answer.end) / 2 : strongest;
    const from = Math.max(0, Math.min(columns - most, Math.round(middle - most / 2)));
    return { from, to: from + most };
  }

  draw() {
    if (!this.lanes || this.element.hidden) return;
    const width = this.element.clientWidth;
    if (width === 0) return;
    const narrow = width < 600;
    const left = narrow ? 4 : 190;
    const columns = this.columnsFor(width - left - 8);
    const lane = narrow ? LANE_HEIGHT + 16 : LANE_HEIGHT;
    const bottom = this.lanes.length * lane;
    const context = sizedContext(this.canvas, width, bottom + LABELS);
    const frame = { ...columns, left, width: width - 8, lane: LANE_HEIGHT };
    frame.step = (frame.width - left) / (columns.to - columns.from);
    drawRegions(context, this.maps[0].tokens.regions, frame, bottom);
    this.lanes.forEach((one, i) => {
      const top = i * lane;
      const place = narrow
        ? { x: left, y: top + 13, align: "left" }
        : { x: left - 14, y: top + LANE_HEIGHT / 2 - 3, align: "right" };
      this.writeTitle(context, one, place, narrow);
      drawBars(context, one.values, narrow ? top + 16 : top, frame, this.range);
    });
    this.writeTokens(context, frame, bottom);
    this.canvas.dataset.from = columns.from;
    this.canvas.dataset.to = columns.to;
    this.canvas.setAttribute(
      "aria-label",
      this.lanes.map(({ name, title, note }) => `${name}, ${title}: ${note}`).join("; "),
    );
  }

  writeTitle(context, { name, title, note }, { x, y, align }, oneLine) {
    context.font = LANE_FONT;
    context.textAlign = align;
    context.textBaseline = "alphabetic";
    context.fillStyle = cssColour("--ink");
    const text = `${shortened(shortName(name), 16)}: ${title}`;
    context.fillText(oneLine && note ? `${text}, ${note}` : text, x, y);
    if (oneLine) return;
    context.fillStyle = cssColour("--quiet");
    context.fillText(note, x, y + 16);
  }

  // Writes the tokens upwards below the lanes.
  writeTokens(context, frame, top) {
    const { columns: tokens } = this.maps[0].tokens;
    context.font = LABEL_FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.direction = "ltr";
    context.fillStyle = cssColour("--quiet");
    for (let column = frame.from; column < frame.to; ++column) {
      context.save();
      context.translate(frame.left + (column - frame.from + 0.5) * frame.step, top + 6);
      context.rotate(-Math.PI / 2);
      context.fillText(shortened(tokenText(tokens[column]), 8), 0, 0);
      context.restore();
    }
  }
}
