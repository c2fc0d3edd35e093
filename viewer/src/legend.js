// SPDX-License-Identifier: Apache-2.0
// The colour scale and its controls: range, linear or square root.

import { choice, cssColour, h } from "./dom.js";
import { STEPS, scaleColours } from "./colour.js";
import { shortNumber } from "./format.js";

const MIN_RANGE = 1e-4;

// The slider is logarithmic.
const toSlider = (range) => Math.log10(range / MIN_RANGE) / -Math.log10(MIN_RANGE);
const fromSlider = (position) => Number((MIN_RANGE ** (1 - position)).toPrecision(2));

export function drawScale(context, x, y, width, height, scale) {
  const colours = scaleColours(scale.theme);
  for (let i = 0; i < colours.length; ++i) {
    const from = Math.round(x + (i * width) / colours.length);
    const to = Math.round(x + ((i + 1) * width) / colours.length);
    context.fillStyle = `rgb(${colours[i].join(",")})`;
    context.fillRect(from, y, to - from, height);
  }
  context.strokeStyle = cssColour("--frame");
  context.lineWidth = 1;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  context.fillStyle = cssColour("--quiet");
  context.font = "11px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
  context.textBaseline = "top";
  for (const step of [-STEPS, -STEPS / 2, 0, STEPS / 2, STEPS]) {
    const t = step / STEPS;
    const value = Math.sign(t) * scale.range * (scale.root ? t * t : Math.abs(t));
    context.textAlign = "center";
    context.fillRect(Math.round(x + ((t + 1) / 2) * width) - 0.5, y + height, 1, 4);
    const text = `${Math.abs(t) === 1 ? (t < 0 ? "\u2264 " : "\u2265 ") : ""}${value > 0 ? "+" : ""}${shortNumber(value, 2)}`;
    context.fillText(text, x + ((t + 1) / 2) * width, y + height + 6);
  }
}

export class Legend {
  constructor(app) {
    this.app = app;
    this.canvas = h("canvas", { class: "scale", role: "img" });
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 1,
      step: 0.005,
      "aria-label": "Range of the colour scale",
      oninput: () => app.set({ range: fromSlider(Number(this.slider.value)) }),
    });
    this.fit = h(
      "button",
      {
        type: "button",
        title: "Fit the range to this head (r)",
        onclick: () => app.set({ range: null }),
      },
      "fit",
    );
    this.modes = h("span");
    this.element = h(
      "div",
      { class: "legend" },
      h("span", { class: "end negative" }, "negative"),
      this.canvas,
      h("span", { class: "end positive" }, "positive"),
      h("label", { class: "field" }, h("span", {}, "range"), this.slider),
      this.fit,
      this.modes,
    );
  }

  update() {
    const { app } = this;
    const scale = app.scale();
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [342, 36];
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawScale(context, 28, 2, width - 56, 12, scale);
    this.canvas.setAttribute(
      "aria-label",
      `Colours from ${shortNumber(-scale.range)} (orange) through 0 to ${shortNumber(scale.range)} (blue)`,
    );
    this.slider.value = String(toSlider(Math.max(MIN_RANGE, Math.min(1, scale.range))));
    this.fit.setAttribute("aria-pressed", String(app.state.range === null));
    this.modes.replaceChildren(
      choice(
        "Colour scale",
        [
          ["linear", "linear", "Colours proportional to the weight"],
          ["root", "\u221a", "Colours proportional to the square root, which shows small weights"],
        ],
        scale.root ? "root" : "linear",
        (mode) => app.set({ root: mode === "root" }),
      ),
    );
  }
}
