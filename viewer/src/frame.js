// SPDX-License-Identifier: Apache-2.0
// The frame around the views: title, tabs, selection of model, text, layer and head, list of keys.

import { h, select } from "./dom.js";

const KEYS = [
  ["1 \u2026 6", "open a view, in the order of the tabs"],
  ["[ ]", "previous or next head"],
  ["{ }", "previous or next layer"],
  ["m", "next model"],
  ["c", "compare with another model, or stop comparing"],
  ["arrows", "move the crosshair or the token; with shift, by ten"],
  ["+ \u2212 0", "zoom in, zoom out, show the whole map"],
  ["r", "fit the colour range to this head"],
  ["s", "switch between linear and square-root colours"],
  ["t", "switch the theme: system, light or dark"],
  ["?", "show this list"],
];

function button(text, title, onclick, attributes) {
  return h("button", { type: "button", title, onclick, ...attributes }, text);
}

export function header(app) {
  const { title, subtitle } = app.report;
  return h(
    "header",
    {},
    h("div", { class: "titles" }, h("h1", {}, title), subtitle ? h("p", {}, subtitle) : ""),
    h(
      "div",
      { class: "tools" },
      button("\u25d0", "Switch the theme: system, light or dark (t)", () => app.nextTheme()),
      button("?", "Keyboard shortcuts (?)", () => app.help.showModal()),
    ),
  );
}

export function helpDialog() {
  const rows = KEYS.flatMap(([key, what]) => [h("dt", {}, key), h("dd", {}, what)]);
  const heading = h("h2", {}, "Keyboard shortcuts");
  const dialog = h("dialog", { class: "help" }, heading, h("dl", {}, rows));
  dialog.append(button("Close", "Close (Escape)", () => dialog.close()));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

// A number between a button for the previous and one for the next value.
function stepper(app, key, back, forth) {
  const { layers, heads } = app.report.models[app.state.model];
  const count = key === "layer" ? layers : heads;
  const value = app.current()[key];
  const step = (by, text, shortcut) =>
    button(text, `${by < 0 ? "Previous" : "Next"} ${key} (${shortcut})`, () => app.step(key, by), {
      "data-bar": `${key}${by}`,
      disabled: value + by < 0 || value + by >= count,
    });
  return h(
    "span",
    { class: "stepper" },
    h("span", {}, key),
    step(-1, "\u2039", back),
    h("output", { "data-value": key }, value),
    step(1, "\u203a", forth),
  );
}

function modelFields(app, names) {
  const { model, other } = app.state;
  const against = [["", "\u2013"], ...names.filter(([i]) => Number(i) !== model)];
  const chosen = other === null ? "" : String(other);
  const compare = (value) => app.set({ other: value === "" ? null : Number(value) });
  const choose = (value) => app.set({ model: Number(value) });
  return [
    select("model", names, String(model), choose, { "data-bar": "model" }),
    select("compare with", against, chosen, compare, { "data-bar": "other" }),
  ];
}

function fieldsOf(app) {
  const { report, state } = app;
  const fields = [];
  if (state.view === "results" || report.models.length === 0) return fields;
  if (report.models.length > 1) {
    const names = report.models.map(({ name }, i) => [String(i), name]);
    fields.push(...modelFields(app, names));
  }
  if (report.sequences.length > 1) {
    const texts = report.sequences.map(({ name }, i) => [String(i), name]);
    const choose = (value) => app.set({ sequence: Number(value) });
    const current = String(state.sequence);
    fields.push(select("text", texts, current, choose, { "data-bar": "sequence" }));
  }
  if (["maps", "tokens"].includes(state.view)) {
    fields.push(stepper(app, "layer", "{", "}"), stepper(app, "head", "[", "]"));
  }
  const { description } = report.models[state.model];
  if (description && state.other === null)
    fields.push(h("span", { class: "hint" }, h("bdi", {}, description)));
  return fields;
}

// Redraws the bar; the focused control keeps the focus. views: name -> [title, ...].
export function drawBar(app, views) {
  const { bar, state } = app;
  const focused = document.activeElement?.dataset?.bar;
  const tabs = app.views.map((name, i) =>
    button(views[name][0], `Key ${i + 1}`, () => app.set({ view: name }), {
      "data-bar": name,
      "aria-current": name === state.view ? "page" : undefined,
    }),
  );
  bar.replaceChildren(h("nav", {}, tabs), h("div", { class: "fields" }, fieldsOf(app)));
  if (focused) bar.querySelector(`[data-bar="${focused}"]`)?.focus();
}
