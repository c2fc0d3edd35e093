// SPDX-License-Identifier: Apache-2.0
// Curves as SVG: lines, bands around them, points, a legend, and the values at the pointer.

import { h, svg } from "./dom.js";
import { SERIES } from "./colour.js";
import { shortNumber } from "./format.js";

const USUAL_HEIGHT = 300;
const MARGIN = { left: 62, right: 16, top: 12, bottom: 44 };

export function niceTicks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const factor of high / low > 1e3 ? [1] : [1, 2, 5]) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

function axis(values, log, from, to, wholeNumbers) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let [low, high] = usable.length ? [usable[0], usable[0]] : [log ? 1 : 0, 1];
  for (const value of usable) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  else if (!wholeNumbers && !log) {
    const pad = (high - low) * 0.05;
    low -= low === 0 ? 0 : pad;
    high += pad;
  }
  const scale = log ? Math.log : (value) => value;
  const at = (value) =>
    from + ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (to - from);
  const ticks = log
    ? logTicks(low, high)
    : niceTicks(low, high, 6).filter((tick) => !wholeNumbers || Number.isInteger(tick));
  return { at, ticks, ok: (value) => Number.isFinite(value) && (!log || value > 0) };
}

function path(points) {
  let pen = false;
  let out = "";
  for (const point of points) {
    if (!point) {
      pen = false;
      continue;
    }
    out += `${pen ? "L" : "M"}${point[0].toFixed(2)} ${point[1].toFixed(2)}`;
    pen = true;
  }
  return out;
}

// curves: {name, note, xLabel, yLabel, logX, logY, series}. A series is {name, x, y} and optionally low
// and high (a band), dash, dots (points without a line) and colour (a number).
export class Chart {
  constructor(curves, options = {}) {
    this.curves = curves;
    // Limits the width to that of the page, so that the browser does not scale the text down.
    const room = Math.max(300, document.documentElement.clientWidth - 24);
    this.width = Math.min(options.width ?? 560, room);
    this.height = options.height ?? USUAL_HEIGHT;
    const all = (key) => curves.series.flatMap((series) => series[key] || []);
    this.x = axis(all("x"), curves.logX, MARGIN.left, this.width - MARGIN.right, options.wholeX);
    this.y = axis(
      [...all("y"), ...all("low"), ...all("high")],
      curves.logY,
      this.height - MARGIN.bottom,
      MARGIN.top,
    );
    this.drawing = svg("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`,
      role: "img",
      "aria-label": curves.name,
    });
    this.frame();
    curves.series.forEach((series, i) => this.line(series, series.colour ?? i));
    this.hair = svg("line", {
      class: "hair",
      y1: MARGIN.top,
      y2: this.height - MARGIN.bottom,
      visibility: "hidden",
    });
    this.drawing.append(this.hair);
    this.note = h("div", { class: "chart-note", "aria-live": "polite" });
    this.bind();
    this.element = h(
      "figure",
      { class: "chart", tabindex: 0 },
      h("figcaption", {}, curves.name),
      this.drawing,
      this.key(),
      this.note,
      curves.note ? h("p", { class: "explain" }, curves.note) : "",
    );
    this.element.addEventListener("keydown", (event) => this.onKey(event));
  }

  frame() {
    const { drawing, x, y, curves, width, height } = this;
    const bottom = height - MARGIN.bottom;
    for (const tick of y.ticks) {
      drawing.append(
        svg("line", {
          class: "rule",
          x1: MARGIN.left,
          x2: width - MARGIN.right,
          y1: y.at(tick),
          y2: y.at(tick),
        }),
        svg(
          "text",
          { x: MARGIN.left - 8, y: y.at(tick) + 4, "text-anchor": "end" },
          shortNumber(tick),
        ),
      );
    }
    for (const tick of x.ticks) {
      drawing.append(
        svg("line", { class: "tick", x1: x.at(tick), x2: x.at(tick), y1: bottom, y2: bottom + 5 }),
        svg(
          "text",
          { x: x.at(tick), y: bottom + 18, "text-anchor": "middle" },
          shortNumber(tick, 6),
        ),
      );
    }
    drawing.append(
      svg("line", {
        class: "base",
        x1: MARGIN.left,
        x2: width - MARGIN.right,
        y1: bottom,
        y2: bottom,
      }),
      svg(
        "text",
        {
          class: "axis-name",
          x: (MARGIN.left + width - MARGIN.right) / 2,
          y: height - 6,
          "text-anchor": "middle",
        },
        curves.xLabel,
      ),
      svg(
        "text",
        {
          class: "axis-name",
          x: 14,
          y: (MARGIN.top + bottom) / 2,
          "text-anchor": "middle",
          transform: `rotate(-90 14 ${(MARGIN.top + bottom) / 2})`,
        },
        curves.yLabel,
      ),
    );
  }

  line(series, colour) {
    const { x, y, drawing } = this;
    const point = (i, values) =>
      x.ok(series.x[i]) && y.ok(values[i]) ? [x.at(series.x[i]), y.at(values[i])] : null;
    const paint = `var(${SERIES[colour % SERIES.length]})`;
    const indices = series.x.map((_, i) => i);
    if (series.low) {
      const ring = [
        ...indices.map((i) => point(i, series.high)),
        ...indices.map((i) => point(i, series.low)).reverse(),
      ];
      const band = svg("path", { class: "band", d: path(ring.filter(Boolean)) + "Z" });
      band.style.fill = paint;
      drawing.append(band);
    }
    if (!series.dots) {
      const line = svg("path", {
        class: series.dash ? "line dash" : "line",
        d: path(indices.map((i) => point(i, series.y))),
      });
      line.style.stroke = paint;
      drawing.append(line);
    }
    if (series.dots || series.x.length <= 40) {
      for (const i of indices) {
        const at = point(i, series.y);
        if (!at || series.dash) continue;
        const dot = svg("circle", {
          cx: at[0],
          cy: at[1],
          r: series.dots ? 2 : 3,
          class: series.dots ? "dot soft" : "dot",
        });
        dot.style.fill = paint;
        drawing.append(dot);
      }
    }
  }

  key() {
    return h(
      "div",
      { class: "chart-key" },
      this.curves.series
        .filter(({ name }) => name)
        .map((series) => {
          const swatch = h("i", { class: series.dash ? "dash" : "" });
          const colour = series.colour ?? this.curves.series.indexOf(series);
          swatch.style.background = `var(${SERIES[colour % SERIES.length]})`;
          return h("span", {}, swatch, h("bdi", {}, series.name));
        }),
    );
  }

  positions() {
    this.xs ||= [...new Set(this.curves.series.flatMap((series) => series.x))]
      .filter(this.x.ok)
      .sort((a, b) => a - b);
    return this.xs;
  }

  show(index) {
    const xs = this.positions();
    if (xs.length === 0) return;
    this.index = Math.max(0, Math.min(xs.length - 1, index));
    const at = xs[this.index];
    this.hair.setAttribute("x1", this.x.at(at));
    this.hair.setAttribute("x2", this.x.at(at));
    this.hair.setAttribute("visibility", "visible");
    const values = this.curves.series
      .filter(({ name, x }) => name && x.includes(at))
      .map((series) =>
        h(
          "span",
          {},
          `${series.name} `,
          h("b", {}, shortNumber(series.y[series.x.indexOf(at)], 4)),
        ),
      );
    this.note.replaceChildren(
      h("span", {}, `${this.curves.xLabel} `, h("b", {}, shortNumber(at, 6))),
      ...values,
    );
  }

  bind() {
    this.drawing.addEventListener("pointermove", (event) => {
      const bounds = this.drawing.getBoundingClientRect();
      const x = ((event.clientX - bounds.left) / bounds.width) * this.width;
      const xs = this.positions();
      let nearest = 0;
      xs.forEach((value, i) => {
        if (Math.abs(this.x.at(value) - x) < Math.abs(this.x.at(xs[nearest]) - x)) nearest = i;
      });
      this.show(nearest);
    });
  }

  onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    this.show((this.index ?? (step > 0 ? -1 : this.positions().length)) + step);
    event.preventDefault();
  }
}
