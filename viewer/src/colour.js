// SPDX-License-Identifier: Apache-2.0
// The diverging colour scale: blue for positive and orange for negative weights, the background
// colour for zero. Blue and orange are distinguishable with every common kind of colour blindness.
// The stops equal those of src/analysis/picture/colour.cpp.

const AT = [0, 0.15, 0.35, 0.6, 0.8, 1];
const STOPS = {
  light: {
    positive: ["#f7f7f5", "#d3e3ee", "#92c0de", "#4a8fc3", "#2a6cb0", "#124787"],
    negative: ["#f7f7f5", "#fbe3cc", "#f7b980", "#e7812f", "#cb5c0c", "#953a02"],
  },
  dark: {
    positive: ["#171a20", "#182b3f", "#1d4c73", "#3583ba", "#78b7e2", "#d6eeff"],
    negative: ["#171a20", "#39240f", "#703e0e", "#bb691b", "#f0a24e", "#ffe4ba"],
  },
};

export const STEPS = 127;

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function between(stops, t) {
  let i = 1;
  while (AT[i] < t) ++i;
  const share = (t - AT[i - 1]) / (AT[i] - AT[i - 1]);
  const low = channels(stops[i - 1]);
  const high = channels(stops[i]);
  return low.map((c, k) => Math.round(c + (high[k] - c) * share));
}

const tables = {};

// Returns [r, g, b] for each of 2 * STEPS + 1 steps from -1 to 1.
export function scaleColours(theme) {
  tables[theme] ||= Array.from({ length: 2 * STEPS + 1 }, (_, i) => {
    const t = (i - STEPS) / STEPS;
    return between(t < 0 ? STOPS[theme].negative : STOPS[theme].positive, Math.abs(t));
  });
  return tables[theme];
}

const words = {};

// Returns the scale as 32-bit words for ImageData (all machines with a browser are little-endian).
export function scaleWords(theme) {
  words[theme] ||= Uint32Array.from(
    scaleColours(theme),
    ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0,
  );
  return words[theme];
}

// Returns the step of a value on a scale {range, root}.
export function stepOf(value, scale) {
  let t = Math.min(1, Math.abs(value) / scale.range);
  if (scale.root) t = Math.sqrt(t);
  const step = Math.round(t * STEPS);
  return value < 0 ? STEPS - step : STEPS + step;
}

export function colourOf(value, scale) {
  const [r, g, b] = scaleColours(scale.theme)[stepOf(value, scale)];
  return `rgb(${r}, ${g}, ${b})`;
}

// Returns a dark or light text colour that is readable on the colour of the value.
export function inkOn(value, scale) {
  const [r, g, b] = scaleColours(scale.theme)[stepOf(value, scale)];
  return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#15181d" : "#f6f7f8";
}

// One colour per series of a chart. They are distinguishable for colour-blind readers and in grey.
export const SERIES = [
  "--series-1",
  "--series-2",
  "--series-3",
  "--series-4",
  "--series-5",
  "--series-6",
];
