// SPDX-License-Identifier: Apache-2.0
// Exports the visible maps as a PNG at twice the screen's resolution.

import { cssColour, downloadCanvas, h } from "./dom.js";
import { drawScale } from "./legend.js";
import { planeTitle } from "./panel.js";

const RATIO = 2;
const SPACE = 14;

function label(context, text, x, y, font) {
  context.setTransform(RATIO, 0, 0, RATIO, 0, 0);
  context.fillStyle = cssColour("--ink");
  context.font = `${font} system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif`;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(text, x, y);
}

// Draws one row of maps at y.
function drawRow(context, view, { model, map, panels }, y) {
  const { app } = view;
  const name = view.rows.length > 1 ? `${app.report.models[model].name}: ` : "";
  let x = 8;
  for (const panel of panels) {
    const titleY = y + 10 + panel.titleOffset(view.view());
    label(context, name + planeTitle(map, panel.plane), x + panel.gutter, titleY, "600 12px");
    context.setTransform(RATIO, 0, 0, RATIO, x * RATIO, (y + 14) * RATIO);
    panel.drawOn(context, map, view.view(), app.scale(), RATIO, Infinity);
    x += panel.gutter + panel.rect.width + SPACE;
  }
}

export function savePicture(view) {
  const { rows, app } = view;
  if (rows.length === 0) return;
  const widths = rows.map(({ panels }) =>
    panels.reduce((sum, { gutter, rect }) => sum + gutter + rect.width + SPACE, 16),
  );
  const heights = rows.map(({ panels }) => panels[0].rect.y + panels[0].rect.height + 34);
  const canvas = h("canvas", {
    width: Math.max(...widths) * RATIO,
    height: (heights.reduce((a, b) => a + b) + 96) * RATIO,
  });
  const context = canvas.getContext("2d");
  context.fillStyle = cssColour("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  label(context, app.describeHead(), 16, 26, "600 15px");
  let y = 44;
  rows.forEach((row, i) => {
    drawRow(context, view, row, y);
    y += heights[i];
  });
  context.setTransform(RATIO, 0, 0, RATIO, 0, 0);
  drawScale(context, rows[0].panels[0].gutter + 8, y + 4, 320, 12, app.scale());
  downloadCanvas("maps.png", canvas);
}
