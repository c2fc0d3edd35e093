// SPDX-License-Identifier: Apache-2.0
// One map with its title, token labels, regions and crosshair. The crosshair is on a second canvas
// that covers the first, so that a move of the pointer does not redraw the map.

import { cssColour, h } from "./dom.js";
import { colourOf, inkOn } from "./colour.js";
import { paintMap } from "./paint.js";
import { cellNumber, shortened, tokenText } from "./format.js";

export const PLANE_TITLES = {
  p1: "map 1",
  p2: "map 2",
  removed: "\u03bb \u00b7 map 2: what is removed",
  difference: "map 1 \u2212 \u03bb \u00b7 map 2",
};

const TOP = 56;
export const LABEL_FONT = "11px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";
const TEXT_FONT = "11px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
const MIN_LABEL_STEP = 11;
const MIN_NUMBER_CELL = 40;
const POSITION_WIDTH = 36; // room for the numbers of rows, which have up to five digits
export const REGION_COLOURS = { answer: "--answer", noise: "--noise", other: "--other" };

export function planeTitle(map, plane) {
  return map.differential ? PLANE_TITLES[plane] : "attention map";
}

// Returns a round step (1, 2, 5, 10, ...) between position labels that are at least 42 pixels
// apart.
function tickStep(cell) {
  for (let power = 1; ; power *= 10) {
    for (const factor of [1, 2, 5]) if (power * factor * cell >= 42) return power * factor;
  }
}

export class Panel {
  constructor(map, plane) {
    this.map = map;
    this.plane = plane;
    this.gutter = 0; // pixels left of the map, for the row labels if it is wide enough
    this.canvas = h("canvas", { class: "map" });
    this.overlay = h("canvas", { class: "overlay", "data-plane": plane });
    this.title = h("div", { class: "panel-title" }, planeTitle(map, plane));
    this.element = h(
      "figure",
      { class: "panel" },
      this.title,
      h("div", { class: "stack" }, this.canvas, this.overlay),
    );
  }

  // width and height: CSS pixels of the map without its labels.
  resize(width, height, ratio) {
    this.rect = { x: this.gutter, y: TOP, width, height };
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round((this.gutter + width + 1) * ratio);
      canvas.height = Math.round((TOP + height + 1) * ratio);
      canvas.style.width = `${this.gutter + width + 1}px`;
      canvas.style.height = `${TOP + height + 1}px`;
    }
    this.title.style.marginLeft = `${this.gutter}px`;
  }

  // Returns how far to move the title down. Without token labels, it moves close to the map.
  titleOffset(view) {
    return view.cell < MIN_LABEL_STEP ? TOP - 34 : 0;
  }

  begin(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    return context;
  }

  draw(map, view, scale, milliseconds) {
    const offset = this.titleOffset(view);
    if (this.shownOffset !== offset) this.title.style.transform = `translateY(${offset}px)`;
    this.shownOffset = offset;
    return this.drawOn(this.begin(this.canvas), map, view, scale, this.ratio, milliseconds);
  }

  // The PNG export also calls this, with its own canvas.
  drawOn(context, map, view, scale, ratio, milliseconds) {
    const { rect } = this;
    const [width, height] = [
      Math.min(rect.width, (map.columns - view.left) * view.cell),
      Math.min(rect.height, (map.rows - view.top) * view.cell),
    ];
    this.drawVoid(context, width, height);
    const finished = paintMap(context, map, this.plane, view, rect, scale, ratio, milliseconds);
    if (view.cell >= 14) this.drawGrid(context, map, view, width, height);
    if (view.cell >= MIN_NUMBER_CELL) this.drawNumbers(context, map, view, scale);
    this.drawRegions(context, map, view);
    context.strokeStyle = cssColour("--frame");
    context.lineWidth = 1;
    context.strokeRect(rect.x - 0.5, rect.y - 0.5, Math.round(width) + 1, Math.round(height) + 1);
    this.drawColumnLabels(context, map, view);
    if (this.gutter > 20) this.drawRowLabels(context, map, view);
    return finished;
  }

  // Hatches the background. Hidden entries stay hatched, which tells them from entries of zero.
  drawVoid(context, width, height) {
    const { rect } = this;
    context.save();
    context.beginPath();
    context.rect(rect.x, rect.y, width, height);
    context.clip();
    context.fillStyle = cssColour("--void");
    context.fillRect(rect.x, rect.y, width, height);
    context.strokeStyle = cssColour("--hatch");
    context.lineWidth = 1;
    context.beginPath();
    for (let x = rect.x - height; x < rect.x + width; x += 7) {
      context.moveTo(x, rect.y + height);
      context.lineTo(x + height, rect.y);
    }
    context.stroke();
    context.restore();
  }

  entriesShown(view, axis) {
    const [start, length, count] =
      axis === "row"
        ? [view.top, this.rect.height, this.map.rows]
        : [view.left, this.rect.width, this.map.columns];
    return [Math.max(0, Math.floor(start)), Math.min(count, Math.ceil(start + length / view.cell))];
  }

  drawGrid(context, map, view, width, height) {
    const { rect } = this;
    context.strokeStyle = cssColour("--grid");
    context.lineWidth = 1;
    context.beginPath();
    for (let [column, end] = this.entriesShown(view, "column"); column < end; ++column) {
      const x = Math.round(rect.x + (column - view.left) * view.cell) - 0.5;
      if (x > rect.x) {
        context.moveTo(x, rect.y);
        context.lineTo(x, rect.y + height);
      }
    }
    for (let [row, end] = this.entriesShown(view, "row"); row < end; ++row) {
      const y = Math.round(rect.y + (row - view.top) * view.cell) - 0.5;
      if (y > rect.y) {
        context.moveTo(rect.x, y);
        context.lineTo(rect.x + width, y);
      }
    }
    context.stroke();
  }

  drawNumbers(context, map, view, scale) {
    const { rect } = this;
    const [firstRow, endRow] = this.entriesShown(view, "row");
    const [firstColumn, endColumn] = this.entriesShown(view, "column");
    context.save();
    context.beginPath();
    context.rect(rect.x, rect.y, rect.width, rect.height);
    context.clip();
    context.font = TEXT_FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = firstRow; row < endRow; ++row) {
      for (let column = firstColumn; column < endColumn; ++column) {
        const entry = map.entry(this.plane, row, column);
        if (!entry || entry.side > 1) continue;
        context.fillStyle = inkOn(entry.value, scale);
        context.fillText(
          cellNumber(entry.value),
          rect.x + (column + 0.5 - view.left) * view.cell,
          rect.y + (row + 0.5 - view.top) * view.cell,
          view.cell - 4,
        );
      }
    }
    context.restore();
  }

  // Draws a coloured band above the columns of a region and dashed lines down its sides.
  drawRegions(context, map, view) {
    const { rect } = this;
    context.save();
    context.beginPath();
    context.rect(rect.x, rect.y - 8, rect.width, rect.height + 8);
    context.clip();
    const bottom = Math.min(rect.height, (map.rows - view.top) * view.cell);
    for (const region of map.tokens.regions) {
      const colour = cssColour(REGION_COLOURS[region.kind] || "--other");
      const x0 = rect.x + (region.begin - view.left) * view.cell;
      const x1 = Math.max(x0 + 2, rect.x + (region.end - view.left) * view.cell);
      context.fillStyle = colour;
      context.fillRect(x0, rect.y - 7, x1 - x0, 4);
      if (region.kind === "noise") continue;
      context.globalAlpha = 0.75;
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.setLineDash([3, 3]);
      context.beginPath();
      for (const x of [Math.round(x0) - 0.5, Math.round(x1) + 0.5]) {
        context.moveTo(x, rect.y);
        context.lineTo(x, rect.y + bottom);
      }
      context.stroke();
      context.globalAlpha = 1;
    }
    context.restore();
  }

  drawColumnLabels(context, map, view) {
    const { rect } = this;
    const tokens = map.tokens.columns;
    context.save();
    context.beginPath();
    context.rect(rect.x - 4, 0, rect.width + 8, TOP);
    context.clip();
    context.fillStyle = cssColour("--quiet");
    context.direction = "ltr";
    const step = view.cell >= MIN_LABEL_STEP ? 1 : tickStep(view.cell);
    const [first, end] = this.entriesShown(view, "column");
    for (let column = Math.ceil(first / step) * step; column < end; column += step) {
      const x = rect.x + (column + 0.5 - view.left) * view.cell;
      if (step > 1 && x > rect.x + rect.width - 14) continue;
      context.save();
      context.translate(x, rect.y - 11);
      if (step === 1) {
        context.font = LABEL_FONT;
        context.rotate(-Math.PI / 2);
        context.textBaseline = "middle";
        context.fillText(shortened(tokenText(tokens[column]), 7), 0, 0);
      } else {
        context.font = TEXT_FONT;
        context.textAlign = "center";
        context.fillText(String(column), 0, 0);
      }
      context.restore();
    }
    context.restore();
  }

  drawRowLabels(context, map, view) {
    const { rect } = this;
    const tokens = map.tokens.rows;
    context.save();
    context.fillStyle = cssColour("--quiet");
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.direction = "ltr";
    const step = view.cell >= MIN_LABEL_STEP ? 1 : tickStep(view.cell);
    const [first, end] = this.entriesShown(view, "row");
    context.font = step === 1 ? LABEL_FONT : TEXT_FONT;
    for (let row = Math.ceil(first / step) * step; row < end; row += step) {
      const y = rect.y + (row + 0.5 - view.top) * view.cell;
      if (y < rect.y || y > rect.y + rect.height) continue;
      context.fillText(
        step === 1 ? shortened(tokenText(tokens[row]), 12) : String(row),
        rect.x - 6,
        y,
        this.gutter - 8,
      );
    }
    context.restore();
  }

  drawCursor(view, cursor, scale) {
    const context = this.begin(this.overlay);
    if (!cursor || !this.map) return;
    const { rect } = this;
    const x = rect.x + (cursor.column - view.left) * view.cell;
    const y = rect.y + (cursor.row - view.top) * view.cell;
    const side = Math.max(view.cell, 1);
    context.save();
    context.beginPath();
    context.rect(rect.x, rect.y, rect.width, rect.height);
    context.clip();
    context.fillStyle = cssColour("--cross");
    context.fillRect(rect.x, y, Math.max(0, x - rect.x), side);
    context.fillRect(x + side, y, rect.width, side);
    context.fillRect(x, rect.y, side, Math.max(0, y - rect.y));
    context.fillRect(x, y + side, side, rect.height);
    context.strokeStyle = cssColour("--ink");
    context.lineWidth = 1.5;
    context.strokeRect(x - 0.75, y - 0.75, side + 1.5, side + 1.5);
    context.restore();
    this.drawTags(context, view, cursor, x + side / 2, y + side / 2, scale);
  }

  // Draws the two tokens of the crosshair over the labels.
  drawTags(context, view, cursor, x, y, scale) {
    const { rect, map } = this;
    context.font = LABEL_FONT;
    context.textBaseline = "middle";
    context.direction = "ltr";
    if (x >= rect.x && x <= rect.x + rect.width)
      this.drawColumnTag(context, view, tokenText(map.tokens.columns[cursor.column]), x);
    if (this.gutter > 20 && y >= rect.y && y <= rect.y + rect.height)
      this.drawRowTag(context, view, tokenText(map.tokens.rows[cursor.row]), y);
    const entry = map.entry(this.plane, cursor.row, cursor.column);
    if (entry) this.overlay.dataset.colour = colourOf(entry.value, scale);
  }

  // Covers only the label of its own column. Positions, which are labels too, stay visible: the tag
  // is then above them.
  drawColumnTag(context, view, token, x) {
    const { rect } = this;
    if (view.cell >= MIN_LABEL_STEP) {
      const text = shortened(token, 7);
      const length = context.measureText(text).width + 6;
      const side = Math.min(15, Math.max(view.cell, 12));
      context.save();
      context.translate(x, rect.y - 8);
      context.rotate(-Math.PI / 2);
      this.drawTag(context, text, 0, -side / 2, length, side);
      context.restore();
      return;
    }
    const text = shortened(token, 14);
    const width = context.measureText(text).width + 8;
    const left = Math.max(2, Math.min(x - width / 2, rect.x + rect.width - width));
    this.drawTag(context, text, left, rect.y - 35, width, 15);
  }

  drawRowTag(context, view, token, y) {
    const { rect } = this;
    const labelled = view.cell >= MIN_LABEL_STEP;
    const text = shortened(token, labelled ? 12 : 8);
    const width = Math.min(this.gutter - 4, context.measureText(text).width + 8);
    const height = labelled ? Math.min(16, Math.max(view.cell, 12)) : 16;
    const right = rect.x - (labelled ? 3 : POSITION_WIDTH);
    this.drawTag(context, text, Math.max(0, right - width), y - height / 2, width, height);
  }

  drawTag(context, text, left, top, width, height) {
    context.fillStyle = cssColour("--ink");
    context.fillRect(left, top, width, height);
    context.fillStyle = cssColour("--paper");
    context.textAlign = "left";
    context.fillText(text, left + 3, top + height / 2 + 0.5, width - 6);
  }

  // Returns the entry at a point of the page, or null.
  entryAt(clientX, clientY, view) {
    const bounds = this.overlay.getBoundingClientRect();
    const [x, y] = [clientX - bounds.left - this.rect.x, clientY - bounds.top - this.rect.y];
    const [row, column] = [
      Math.floor(view.top + y / view.cell),
      Math.floor(view.left + x / view.cell),
    ];
    const inside =
      x >= 0 &&
      y >= 0 &&
      x < this.rect.width &&
      y < this.rect.height &&
      row >= 0 &&
      row < this.map.rows &&
      column >= 0 &&
      column < this.map.columns;
    return inside ? { row, column } : null;
  }
}
