// SPDX-License-Identifier: Apache-2.0
// Every head of a model as a small map, layer by layer, with a selected statistic below it.

import { choice, h, select } from "./dom.js";
import { Legend } from "./legend.js";
import { PLANE_TITLES } from "./panel.js";
import { mapKey } from "./payload.js";
import { paintMap } from "./paint.js";
import { shortNumber } from "./format.js";
import { sizedContext } from "./row_lanes.js";

export class OverviewView {
  constructor(app) {
    this.app = app;
    this.controls = h("div", { class: "controls" });
    this.legend = new Legend(app);
    this.grids = h("div", { class: "grids" });
    this.element = h(
      "section",
      { class: "overview-view" },
      this.controls,
      this.legend.element,
      this.grids,
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  update(changed) {
    const { app } = this;
    const names = app.statisticNames();
    this.controls.replaceChildren(
      choice("Map", Object.entries(PLANE_TITLES), app.state.plane, (plane) => app.set({ plane })),
      names.length
        ? select(
            "statistic",
            names.map(({ key, label }) => [key, label]),
            app.statisticKey(),
            (statistic) => app.set({ statistic }),
          )
        : "",
      h(
        "p",
        { class: "explain" },
        names.find(({ key }) => key === app.statisticKey())?.description || "",
      ),
    );
    if (
      !changed ||
      ["model", "other", "sequence", "statistic", "data", "layer", "head"].some((key) =>
        changed.has(key),
      )
    )
      this.rebuild();
    this.legend.update();
    this.draw();
  }

  rebuild() {
    const { app } = this;
    this.cells = [];
    const models = app.shownModels();
    const all = models
      .flatMap((model) => app.statisticValues(model).map(({ value }) => value))
      .filter(Number.isFinite);
    const most = Math.max(1e-30, ...all.map(Math.abs));
    this.grids.replaceChildren(...models.map((model) => this.gridOf(model, most)));
  }

  gridOf(model, most) {
    const { app } = this;
    const { layers, heads, name } = app.report.models[model];
    const grid = h("div", { class: "heads", role: "grid", "aria-label": `Heads of ${name}` });
    grid.style.setProperty("--heads", heads);
    const values = new Map(
      app.statisticValues(model).map(({ layer, head, value }) => [`${layer}/${head}`, value]),
    );
    grid.append(h("span", { class: "corner" }));
    for (let head = 0; head < heads; ++head)
      grid.append(h("span", { class: "column-name" }, heads > 12 ? head : `head ${head}`));
    for (let layer = 0; layer < layers; ++layer) {
      grid.append(h("span", { class: "row-name" }, `layer ${layer}`));
      for (let head = 0; head < heads; ++head)
        grid.append(this.cellOf(model, layer, head, values.get(`${layer}/${head}`), most));
    }
    return h("div", { class: "grid-block" }, h("h3", {}, name), grid);
  }

  cellOf(model, layer, head, value, most) {
    const { app } = this;
    const map = app.payload.maps.get(mapKey(model, app.state.sequence, layer, head));
    const canvas = h("canvas", {});
    const bar = h("i", { class: value < 0 ? "bar negative" : "bar" });
    bar.style.width = `${Number.isFinite(value) ? (100 * Math.abs(value)) / most : 0}%`;
    const current =
      model === app.state.model && app.current().layer === layer && app.current().head === head;
    const cell = h(
      "button",
      {
        type: "button",
        class: "head-cell",
        disabled: !map,
        "data-layer": layer,
        "data-head": head,
        "data-model": model,
        "aria-current": current ? "true" : undefined,
        title: `Open the maps of layer ${layer}, head ${head}`,
        onclick: () => app.open(model, layer, head),
        onkeydown: (event) => this.onKey(event, cell),
      },
      canvas,
      h("span", { class: "value" }, value === undefined ? "" : shortNumber(value)),
      h("span", { class: "track" }, bar),
    );
    if (map) this.cells.push({ map, canvas });
    return cell;
  }

  onKey(event, cell) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step) return;
    const { layer, head, model } = cell.dataset;
    const next = this.grids.querySelector(
      `[data-model="${model}"][data-layer="${Number(layer) + step[0]}"][data-head="${Number(head) + step[1]}"]`,
    );
    if (next) next.focus();
    event.preventDefault();
  }

  draw() {
    if (!this.cells) return;
    const { app } = this;
    const scale = app.scale();
    const ratio = window.devicePixelRatio || 1;
    for (const { map, canvas } of this.cells) {
      const side = canvas.parentElement.clientWidth - 8;
      if (side <= 0) continue;
      const cell = side / Math.max(map.rows, map.columns);
      const [width, height] = [map.columns * cell, map.rows * cell];
      const context = sizedContext(canvas, width, height);
      const plane = map.differential ? app.state.plane : "difference";
      paintMap(
        context,
        map,
        plane,
        { left: 0, top: 0, cell },
        { x: 0, y: 0, width, height },
        scale,
        ratio,
      );
    }
  }
}
