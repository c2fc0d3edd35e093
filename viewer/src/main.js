// SPDX-License-Identifier: Apache-2.0
// The page: its state, the bar at the top, the views, keyboard shortcuts and the theme.

import { drawBar, header, helpDialog } from "./frame.js";
import { h } from "./dom.js";
import { MapsView } from "./maps_view.js";
import { OverviewView } from "./overview_view.js";
import { LambdaView, StatisticsView } from "./number_views.js";
import { Payload, mapKey } from "./payload.js";
import { ResultsView } from "./results_view.js";
import { TokensView } from "./tokens_view.js";
import { fragmentOf, readFragment } from "./state.js";
import { shortNumber } from "./format.js";

const VIEWS = {
  results: ["Results", ResultsView],
  maps: ["Maps", MapsView],
  overview: ["Layers \u00d7 heads", OverviewView],
  tokens: ["Tokens", TokensView],
  lambda: ["\u03bb", LambdaView],
  statistics: ["Statistics", StatisticsView],
};

class App {
  constructor(root) {
    this.payload = new Payload(() => this.takeSoon());
    this.report = this.payload.report;
    this.state = readFragment();
    this.darkQuery = matchMedia("(prefers-color-scheme: dark)");
    this.printing = false;
    this.bar = h("div", { class: "bar" });
    this.stage = h("main", {});
    this.help = helpDialog();
    this.size = h("footer", { class: "hint" });
    root.append(header(this), this.bar, this.stage, this.size, this.help);
    this.views = this.availableViews();
    this.normalise();
    this.applyTheme();
    this.bindEvents();
    this.showView();
    this.watchData();
  }

  availableViews() {
    const { models, sequences, verdict, curves, tables, notes } = this.report;
    const names = [];
    if (verdict.length || curves.length || tables.length || notes.length) names.push("results");
    if (models.length && sequences.length) names.push("maps", "overview", "tokens");
    if (models.some(({ lambda }) => lambda.length)) names.push("lambda");
    if (models.some(({ statistics }) => statistics.rows.length)) names.push("statistics");
    return names;
  }

  // Replaces invalid values with defaults, because the fragment of the address is user input.
  normalise() {
    const { state, report } = this;
    const within = (value, count) =>
      Number.isInteger(value) && value >= 0 && value < count ? value : null;
    if (!this.views.includes(state.view)) state.view = this.views[0] ?? null;
    state.model = within(state.model, report.models.length) ?? 0;
    state.other = within(state.other, report.models.length);
    if (state.other === state.model) state.other = null;
    state.sequence = within(state.sequence, report.sequences.length) ?? 0;
    for (const key of ["row", "column"])
      if (state[key] !== null) state[key] = within(state[key], 1 << 16);
    for (const key of ["left", "top", "cell", "range"]) if (!(state[key] > 0)) state[key] = null;
    if (!["p1", "p2", "removed", "difference"].includes(state.plane)) state.plane = "difference";
    if (!["light", "dark", "auto"].includes(state.theme)) state.theme = "auto";
  }

  // Collects the data blocks that arrive while the browser loads the file.
  watchData() {
    this.observer = new MutationObserver(() => this.takeSoon());
    if (document.readyState === "loading") {
      this.observer.observe(document.body, { childList: true });
      document.addEventListener("DOMContentLoaded", () => this.take());
    }
    this.take();
  }

  takeSoon() {
    this.taking ||= setTimeout(() => {
      this.taking = 0;
      this.take();
    }, 20);
  }

  take() {
    const news = this.payload.collect();
    const complete = this.payload.finished();
    if (complete) {
      this.chooseSequence();
      this.observer.disconnect();
      this.showSize();
    }
    if (news || complete) this.changed(new Set(["data"]));
  }

  // Tells the size of the maps in the file, and how many heads are downsampled.
  showSize() {
    const maps = [...this.payload.maps.values()];
    if (maps.length === 0) return;
    const coarse = maps.filter(({ levels }) => !levels.has(0)).length;
    this.size.textContent =
      `The maps of ${maps.length} heads take ${shortNumber(this.payload.size / 1e6, 2)} MB of this file.` +
      (coarse ? ` ${coarse} of them are downsampled; the file would be too large otherwise.` : "");
  }

  // --- the current selection --------------------------------------------------------------------

  // Returns the head that is shown of a model. Until one is chosen, each model shows the first of
  // its heads in the file, the one with most weight on the answer.
  current(model = this.state.model) {
    const { sequence, layer, head } = this.state;
    if (layer !== null && head !== null) return { layer, head };
    const first = this.payload.firstMap(model, sequence);
    return { layer: layer ?? first?.layer ?? 0, head: head ?? first?.head ?? 0 };
  }

  currentMap(model = this.state.model) {
    const { layer, head } = this.current(model);
    return this.payload.maps.get(mapKey(model, this.state.sequence, layer, head));
  }

  // Returns the row that was chosen, else the one that asks the question, or null.
  row() {
    return this.state.row ?? this.report.sequences[this.state.sequence]?.question ?? null;
  }

  shownModels() {
    return this.state.other === null ? [this.state.model] : [this.state.model, this.state.other];
  }

  shownMaps() {
    return this.shownModels().map((model) => ({ model, map: this.currentMap(model) }));
  }

  scale() {
    const { range, root } = this.state;
    return { range: range ?? this.fittingRange(), root, theme: this.theme() };
  }

  fittingRange() {
    const maps = this.shownMaps()
      .map(({ map }) => map)
      .filter(Boolean);
    // Parts of a map may still arrive.
    const key = `${maps.map(({ id }) => id).join()} ${this.payload.finished()}`;
    if (this.fitted?.key !== key) {
      const range = maps.length ? Math.max(...maps.map((map) => map.typicalRange())) : 1;
      this.fitted = { key, range: Number(range.toPrecision(2)) };
    }
    return this.fitted.range;
  }

  statisticNames() {
    const names = new Map();
    for (const model of this.shownModels()) {
      for (const name of this.report.models[model].statistics.names)
        if (!names.has(name.key)) names.set(name.key, name);
    }
    return [...names.values()];
  }

  statisticKey() {
    const keys = this.statisticNames().map(({ key }) => key);
    if (keys.includes(this.state.statistic)) return this.state.statistic;
    // A plain model has no noise_cancelled.
    const cancels = this.shownModels().some((model) =>
      this.statisticValues(model, "noise_cancelled").some(({ value }) => Number.isFinite(value)),
    );
    return cancels ? "noise_cancelled" : keys[0];
  }

  statisticValues(model, wanted = this.statisticKey()) {
    const { names, rows } = this.report.models[model].statistics;
    const place = names.findIndex(({ key }) => key === wanted);
    return place < 0
      ? []
      : rows.map(({ layer, head, values }) => ({ layer, head, value: values[place] }));
  }

  describeHead() {
    const { layer, head } = this.current();
    return `${this.report.title} \u2013 layer ${layer}, head ${head}`;
  }

  // --- changes ----------------------------------------------------------------------------------

  set(changes) {
    const changed = new Set(Object.keys(changes).filter((key) => this.state[key] !== changes[key]));
    if (changed.size === 0) return;
    Object.assign(this.state, changes);
    if (changed.has("model") && this.chooseSequence()) changed.add("sequence");
    if (changed.has("sequence"))
      Object.assign(this.state, { row: null, column: null, left: null, top: null, cell: null });
    this.normalise();
    clearTimeout(this.pending);
    this.pending = setTimeout(() => this.writeFragment(), 150);
    if (changed.has("theme")) this.applyTheme();
    if (changed.has("view")) this.showView();
    else this.changed(changed);
  }

  // Selects another text if this model has no map on the current one (cross-attention has other
  // tokens).
  chooseSequence() {
    const { model, sequence } = this.state;
    if (this.payload.firstMap(model, sequence)) return false;
    const own = [...this.payload.maps.values()].find((map) => map.model === model);
    if (own) this.state.sequence = own.sequence;
    return Boolean(own);
  }

  writeFragment() {
    this.written = `#${fragmentOf(this.state)}`;
    // A frame in a notebook (about:srcdoc) has no address of its own.
    if (location.protocol !== "about:") history.replaceState(null, "", this.written);
  }

  changed(changed) {
    const quiet = [...changed].every((key) =>
      ["row", "column", "left", "top", "cell", "range", "root"].includes(key),
    );
    if (!quiet) drawBar(this, VIEWS);
    this.view?.update(changed);
  }

  open(model, layer, head) {
    const other = this.state.other === model ? this.state.model : this.state.other;
    this.set({ view: "maps", model, other, layer, head });
  }

  step(key, by) {
    const { layers, heads } = this.report.models[this.state.model];
    const { layer, head } = this.current();
    const [value, count] = key === "layer" ? [layer, layers] : [head, heads];
    this.set({ layer, head, [key]: Math.max(0, Math.min(count - 1, value + by)) });
  }

  showView() {
    this.view?.close?.();
    this.view = null;
    drawBar(this, VIEWS);
    if (!this.state.view) {
      this.stage.replaceChildren(h("p", { class: "empty" }, "This report is empty."));
      return;
    }
    this.view = new VIEWS[this.state.view][1](this);
    this.stage.replaceChildren(this.view.element);
    this.view.update(null);
  }

  // --- keys, printing, theme ---------------------------------------------------------------------

  bindEvents() {
    document.addEventListener("keydown", (event) => this.onKey(event));
    window.addEventListener("hashchange", () => {
      if (location.hash === this.written) return;
      this.state = readFragment();
      this.normalise();
      this.applyTheme();
      this.showView();
    });
    this.darkQuery.addEventListener("change", () => {
      this.applyTheme();
      this.changed(new Set(["theme"]));
    });
    // The page prints in the light theme.
    for (const [name, printing] of [
      ["beforeprint", true],
      ["afterprint", false],
    ]) {
      window.addEventListener(name, () => {
        this.printing = printing;
        this.applyTheme();
        this.view?.draw?.();
      });
    }
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.key.length > 1) return;
    const actions = {
      "[": () => this.step("head", -1),
      "]": () => this.step("head", 1),
      "{": () => this.step("layer", -1),
      "}": () => this.step("layer", 1),
      m: () => this.set({ model: (this.state.model + 1) % this.report.models.length }),
      c: () => this.toggleOther(),
      r: () => this.set({ range: null }),
      s: () => this.set({ root: !this.state.root }),
      t: () => this.nextTheme(),
      "?": () => this.help.showModal(),
    };
    const view = this.views[Number(event.key) - 1];
    if (view) this.set({ view });
    else if (actions[event.key] && this.report.models.length) actions[event.key]();
    else return;
    event.preventDefault();
  }

  toggleOther() {
    const { state, report } = this;
    if (report.models.length < 2) return;
    this.set({ other: state.other === null ? (state.model + 1) % report.models.length : null });
  }

  theme() {
    if (this.printing) return "light";
    if (this.state.theme !== "auto") return this.state.theme;
    return this.darkQuery.matches ? "dark" : "light";
  }

  nextTheme() {
    const order = ["auto", "light", "dark"];
    this.set({ theme: order[(order.indexOf(this.state.theme) + 1) % 3] });
  }

  applyTheme() {
    document.documentElement.dataset.theme = this.theme();
  }
}

try {
  window.diffattn = new App(document.getElementById("app"));
} catch (error) {
  document
    .getElementById("app")
    .append(h("p", { class: "empty" }, `This report cannot be shown: ${error.message}`));
  throw error;
}
