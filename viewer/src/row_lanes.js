// SPDX-License-Identifier: Apache-2.0
// Bars of the signed weights of one row, one lane per map.

import { cssColour } from "./dom.js";
import { REGION_COLOURS } from "./panel.js";

export const LANE_FONT = "12px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";

// Sets the size of a canvas in CSS pixels and returns its context.
export function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// frame: {left, step, width, from, to, lane}: the x of column `from`, pixels per column, the right
// edge, the columns [from, to) that it shows, and the height of a lane.
export function drawRegions(context, regions, frame, height) {
  for (const region of regions) {
    const begin = Math.max(region.begin, frame.from);
    const end = Math.min(region.end, frame.to);
    if (begin >= end) continue;
    context.fillStyle = cssColour(REGION_COLOURS[region.kind] || "--other");
    context.globalAlpha = region.kind === "noise" ? 0.1 : 0.2;
    context.fillRect(
      frame.left + (begin - frame.from) * frame.step,
      0,
      Math.max(2, (end - begin) * frame.step),
      height,
    );
  }
  context.globalAlpha = 1;
}

// Draws the bars of one lane. `range` is the weight of the tallest bar of all lanes.
export function drawBars(context, values, top, frame, range) {
  // A lane has space below zero only if it has negative values. All lanes share one scale.
  const zero = top + (values.some((value) => value < 0) ? frame.lane * 0.62 : frame.lane - 8);
  const room = frame.lane * 0.62 - 6;
  const wide = Math.max(1, frame.step - (frame.step > 4 ? 1 : 0));
  context.fillStyle = cssColour("--frame");
  context.fillRect(frame.left, zero, frame.width - frame.left, 1);
  for (let column = frame.from; column < frame.to; ++column) {
    const value = values[column];
    if (!value) continue;
    const x = frame.left + (column - frame.from) * frame.step;
    const length = Math.min(1, Math.abs(value) / range) * room;
    context.fillStyle = cssColour(value < 0 ? "--negative" : "--positive");
    if (value > 0) context.fillRect(x, zero - length, wide, length);
    else context.fillRect(x, zero + 1, wide, Math.min(length, top + frame.lane - zero - 2));
  }
}
