// SPDX-License-Identifier: Apache-2.0
// The state of the page. The fragment of its address holds it, so that a link or a reload restores
// it.

export const DEFAULTS = {
  view: null,
  model: 0,
  other: null,
  sequence: 0,
  layer: null,
  head: null,
  plane: "difference",
  removed: false,
  statistic: null,
  range: null,
  root: true,
  row: null,
  column: null,
  left: null,
  top: null,
  cell: null,
  sort: null,
  theme: "auto",
};

const TEXTS = new Set(["view", "plane", "statistic", "sort", "theme"]);

function parsed(key, text) {
  if (TEXTS.has(key)) return text;
  if (typeof DEFAULTS[key] === "boolean") return text === "true";
  const number = Number(text);
  return text !== "" && Number.isFinite(number) ? number : DEFAULTS[key];
}

export function readFragment() {
  const state = { ...DEFAULTS };
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    if (key in DEFAULTS) state[key] = parsed(key, text);
  }
  return state;
}

export function fragmentOf(state) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value === DEFAULTS[key] || value === null) continue;
    parameters.set(
      key,
      typeof value === "number" ? String(Number(value.toPrecision(8))) : String(value),
    );
  }
  return parameters.toString();
}
