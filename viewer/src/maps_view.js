// SPDX-License-Identifier: Apache-2.0
// The maps of a head side by side, for one model or two, with one crosshair and one colour scale.

import { choice, h } from "./dom.js";
import { Legend } from "./legend.js";
import { Panel, REGION_COLOURS, planeTitle } from "./panel.js";
import { bindPointer } from "./map_pointer.js";
import { entryText, exactFloat, tokenText } from "./format.js";
import { savePicture } from "./map_picture.js";

const GUTTER = 92;
const NARROW_GUTTER = 10;
const GAP = 14;
const MIN_SIDE = 150;
const MAX_CELL = 64;
const MOVES = new Set(["row", "column", "left", "top", "cell"]);
// Milliseconds per frame for new tiles; the panels share it.
const FRAME_BUDGET = 10;

export class MapsView {
  constructor(app) {
    this.app = app;
    this.legend = new Legend(app);
    this.rows = [];
    this.stage = h("div", {
      class: "stage",
      tabindex: 0,
      role: "application",
      "aria-label":
        "Attention maps. Arrow keys move the crosshair, plus and minus zoom, 0 shows the whole " +
        "map.",
      onkeydown: (event) => this.onKey(event),
    });
    this.tooltip = h("div", { class: "tooltip", hidden: true });
    this.readout = h("div", { class: "readout", "aria-live": "polite" });
    this.regions = h("div", { class: "regions" });
    this.second = h("span");
    this.element = h(
      "section",
      { class: "maps-view" },
      this.stage,
      h(
        "div",
        { class: "below" },
        this.legend.element,
        h(
          "div",
          { class: "tools" },
          this.second,
          h(
            "button",
            { type: "button", title: "Show the whole map (0)", onclick: () => this.fit() },
            "whole map",
          ),
          h(
            "button",
            {
              type: "button",
              title: "Save the maps as a PNG file",
              onclick: () => savePicture(this),
            },
            "PNG",
          ),
        ),
      ),
      this.regions,
      this.readout,
      this.tooltip,
    );
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.element);
    bindPointer(this);
  }

  close() {
    this.observer.disconnect();
  }

  update(changed) {
    if (!changed || this.showsOtherMaps(changed)) this.rebuild();
    if (changed && [...changed].every((key) => key === "row" || key === "column")) {
      this.drawCursor();
      return;
    }
    const moved = changed && [...changed].every((key) => MOVES.has(key));
    if (!moved) this.legend.update();
    this.schedule();
  }

  showsOtherMaps(changed) {
    if (["model", "other", "sequence", "layer", "head", "removed"].some((key) => changed.has(key)))
      return true;
    if (!changed.has("data")) return false;
    const shown = this.app.shownMaps();
    return (
      shown.length !== this.rows.length || shown.some(({ map }, i) => map !== this.rows[i].map)
    );
  }

  rebuild() {
    const { app } = this;
    this.rows = [];
    this.stage.replaceChildren();
    for (const { model, map } of app.shownMaps()) {
      const line = h("div", { class: "panel-row" });
      const { name } = app.report.models[model];
      const { layer, head } = app.current(model);
      if (app.state.other !== null)
        line.append(
          h("h3", {}, h("bdi", {}, name), h("small", {}, ` layer ${layer}, head ${head}`)),
        );
      if (!map) {
        line.append(
          h(
            "p",
            { class: "empty" },
            app.payload.finished()
              ? "This report has no map of this layer and head for this model and text."
              : "Loading\u2026",
          ),
        );
        this.stage.append(line);
        continue;
      }
      const panels = map.shownPlanes(app.state.removed).map((plane) => new Panel(map, plane));
      line.append(
        h(
          "div",
          { class: "panels" },
          panels.map((panel) => panel.element),
        ),
      );
      this.stage.append(line);
      this.rows.push({ model, map, panels });
    }
    this.showSecond();
    this.showRegions();
    this.layout();
  }

  // The choice of the second map: as the softmax gives it, or as the head subtracts it.
  showSecond() {
    const { app } = this;
    this.second.replaceChildren(
      this.rows.some(({ map }) => map.differential)
        ? choice(
            "Second map",
            [
              ["p2", "map 2", "The second softmax map"],
              ["removed", "\u03bb \u00b7 map 2", "What the head removes from map 1"],
            ],
            app.state.removed ? "removed" : "p2",
            (plane) => app.set({ removed: plane === "removed" }),
          )
        : "",
    );
  }

  showRegions() {
    const kinds = new Map();
    for (const { map } of this.rows)
      for (const region of map.tokens.regions) {
        if (!kinds.has(region.kind)) kinds.set(region.kind, []);
        if (!kinds.get(region.kind).includes(region.name)) kinds.get(region.kind).push(region.name);
      }
    this.regions.replaceChildren(
      ...[...kinds].map(([kind, names]) => {
        const mark = h("i");
        mark.style.background = `var(${REGION_COLOURS[kind]})`;
        return h("span", {}, mark, h("bdi", {}, names.length > 3 ? kind : names.join(", ")));
      }),
    );
  }

  layout() {
    const width = this.stage.clientWidth;
    if (this.rows.length === 0 || width === 0) return;
    // The only map of a plain model stands beside the maps that it is compared with.
    const counts = this.rows.map(({ panels }) => panels.length);
    const joined = counts.length > 1 && Math.min(...counts) === 1;
    const most = joined ? counts.reduce((a, b) => a + b) : Math.max(...counts);
    const below = this.rows.length > 1 && !joined;
    const room = Math.max(160, window.innerHeight - (below ? 330 : 300));
    const share = (count) => (width - GUTTER - (count - 1) * (GAP + 10) - 4) / count;
    // On a narrow page, the maps stand below each other.
    const stacked = most > 1 && share(most) < MIN_SIDE;
    this.stage.dataset.stacked = String(stacked);
    this.stage.dataset.joined = String(joined && !stacked);
    const across = stacked ? 1 : most;
    const side = Math.floor(
      Math.max(
        120,
        Math.min(share(across), across > 1 ? 620 : room, below ? Math.max(250, room) : Infinity),
      ),
    );
    const ratio = window.devicePixelRatio || 1;
    for (const [row, { map, panels }] of this.rows.entries()) {
      this.fitCell = Math.min(side / map.columns, side / map.rows);
      for (const [i, panel] of panels.entries()) {
        const first = i === 0 && !(joined && row > 0);
        panel.gutter = stacked || first ? GUTTER : NARROW_GUTTER;
        panel.resize(
          Math.round(Math.min(side, map.columns * this.fitCell)),
          Math.round(Math.min(side, map.rows * this.fitCell)),
          ratio,
        );
      }
    }
    this.schedule();
  }

  // Returns the visible part of the map: {left, top, cell}.
  view() {
    const { state } = this.app;
    const { map, panels } = this.rows[0];
    const { rect } = panels[0];
    const cell = this.cellWithin(state.cell ?? 0);
    const within = (start, count, length) =>
      Math.max(0, Math.min(start ?? 0, count - length / cell));
    return {
      cell,
      left: within(state.left, map.columns, rect.width),
      top: within(state.top, map.rows, rect.height),
    };
  }

  setView({ left, top, cell }) {
    if (cell <= this.fitCell * 1.001) this.app.set({ left: null, top: null, cell: null });
    else
      this.app.set({
        left: Math.max(0, left),
        top: Math.max(0, top),
        cell: Math.min(cell, MAX_CELL),
      });
  }

  fit() {
    this.setView({ left: 0, top: 0, cell: 0 });
  }

  // Returns the nearest size of a cell between that of the whole map and the largest.
  cellWithin(cell) {
    return Math.max(this.fitCell, Math.min(Math.max(MAX_CELL, this.fitCell), cell));
  }

  // Zooms; the entry (row, column) keeps its position on the screen.
  zoom(factor, row, column) {
    const view = this.view();
    const cell = this.cellWithin(view.cell * factor);
    this.setView({
      cell,
      left: column - ((column - view.left) * view.cell) / cell,
      top: row - ((row - view.top) * view.cell) / cell,
    });
  }

  schedule() {
    if (this.frame || this.rows.length === 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.element.isConnected) this.draw();
    });
  }

  draw() {
    if (this.rows.length === 0 || !this.rows[0].panels[0].rect) return;
    const view = this.view();
    this.stage.dataset.whole = String(view.cell <= this.fitCell);
    const scale = this.app.scale();
    let finished = true;
    const count = this.rows.reduce((sum, { panels }) => sum + panels.length, 0);
    for (const { map, panels } of this.rows) {
      for (const panel of panels)
        finished = panel.draw(map, view, scale, FRAME_BUDGET / count) && finished;
    }
    this.drawCursor();
    this.element.dataset.painted = String(finished);
    // New data calls update() when it arrives; only unfinished tiles need another frame.
    if (!finished) this.schedule();
  }

  cursor() {
    const row = this.app.row();
    const map = this.rows[0]?.map;
    if (!map || row === null || row >= map.rows) return null;
    const column = this.app.state.column ?? map.strongestColumn(row);
    return column < map.columns ? { row, column } : null;
  }

  drawCursor() {
    if (this.rows.length === 0 || !this.rows[0].panels[0].rect) return;
    const view = this.view();
    const cursor = this.cursor();
    const scale = this.app.scale();
    for (const { panels } of this.rows)
      for (const panel of panels) panel.drawCursor(view, cursor, scale);
    this.readout.replaceChildren(
      ...(cursor
        ? this.describe(cursor)
        : [
            h(
              "span",
              { class: "hint" },
              "Point at a cell, or focus the maps and use the arrow keys. Zoom with the wheel or + " +
                "and \u2212, drag to move, press ? for all keys.",
            ),
          ]),
    );
  }

  describe(cursor) {
    const { tokens } = this.rows[0].map;
    const parts = [
      h(
        "span",
        { class: "pair" },
        h("span", {}, `query ${cursor.row} `),
        h("bdi", { class: "token" }, tokenText(tokens.rows[cursor.row])),
        h("span", {}, ` \u2192 key ${cursor.column} `),
        h("bdi", { class: "token" }, tokenText(tokens.columns[cursor.column])),
      ),
    ];
    for (const { model, map } of this.rows) {
      const values = h("span", { class: "values" });
      if (this.rows.length > 1) values.append(h("b", {}, this.app.report.models[model].name));
      let side = 1;
      const planes = this.app.state.removed && map.differential ? ["removed"] : [];
      for (const plane of [...map.planes.slice(0, -1), ...planes, "difference"]) {
        const entry = map.entry(plane, cursor.row, cursor.column);
        if (entry) side = entry.side;
        if (plane === "difference" && map.differential) {
          values.append(
            h(
              "span",
              {},
              h("em", {}, "\u03bb"),
              h(
                "output",
                { "data-plane": "lambda" },
                exactFloat(Math.fround(map.lambdaAt(cursor.row))),
              ),
            ),
          );
        }
        values.append(
          h(
            "span",
            {},
            h(
              "em",
              {},
              { difference: "difference", removed: "\u03bb \u00b7 map 2" }[
                map.differential && plane
              ] ?? planeTitle(map, plane),
            ),
            h("output", { "data-plane": plane }, entryText(entry)),
          ),
        );
      }
      if (side > 1)
        values.append(h("span", { class: "hint" }, `largest of ${side} \u00d7 ${side} entries`));
      parts.push(values);
    }
    return parts;
  }

  onKey(event) {
    const step = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowUp: [-step, 0],
      ArrowDown: [step, 0],
      ArrowLeft: [0, -step],
      ArrowRight: [0, step],
    };
    const cursor = this.cursor() || { row: 0, column: 0 };
    if (this.rows.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.moveCursor(cursor, ...moves[event.key]);
    else if (event.key === "+" || event.key === "=")
      this.zoom(1.5, cursor.row + 0.5, cursor.column + 0.5);
    else if (event.key === "-") this.zoom(1 / 1.5, cursor.row + 0.5, cursor.column + 0.5);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveCursor(cursor, rows, columns) {
    const { map, panels } = this.rows[0];
    const row = Math.max(0, Math.min(map.rows - 1, cursor.row + rows));
    const column = Math.max(0, Math.min(map.columns - 1, cursor.column + columns));
    this.app.set({ row, column });
    // Scrolls so that the crosshair stays visible.
    const view = this.view();
    const { rect } = panels[0];
    const follow = (start, at, length) =>
      Math.max(at + 1 - length / view.cell, Math.min(start, at));
    const [left, top] = [follow(view.left, column, rect.width), follow(view.top, row, rect.height)];
    if (left !== view.left || top !== view.top) this.setView({ cell: view.cell, left, top });
  }
}
