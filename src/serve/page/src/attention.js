// SPDX-License-Identifier: Apache-2.0
// Shows what a token attends to: both maps of the last layer and their difference.
import { post } from "./api.js";

const LANES = [["First map", "first"], ["Second map", "second"], ["Difference: first − λ · second", "difference"]];

let shown = { ids: [], names: [], heads: [] };

function part(id) {
  return document.getElementById(id);
}

// White space that a reader could not see otherwise.
function visible(name) {
  return name.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "·") || "∅";
}

function meanOf(heads, key) {
  return heads[0][key].map((_, i) => heads.reduce((sum, head) => sum + head[key][i], 0) / heads.length);
}

function paintLanes() {
  const lanes = part("lanes");
  lanes.replaceChildren();
  const chosen = part("head").value;
  for (const [title, key] of LANES) {
    const weights = chosen === "mean" ? meanOf(shown.heads, key) : shown.heads[Number(chosen)][key];
    const most = Math.max(1e-9, ...weights.map(Math.abs));
    const lane = document.createElement("div");
    lane.className = "lane";
    lane.dataset.map = key;
    const heading = document.createElement("h3");
    heading.textContent = title;
    lane.append(heading);
    weights.forEach((weight, i) => {
      const token = document.createElement("span");
      token.textContent = visible(shown.names[i]);
      token.title = `${weight.toFixed(4)}`;
      const colour = weight < 0 ? "--minus" : "--plus";
      token.style.background = `rgba(var(${colour}), ${(Math.abs(weight) / most * 0.75).toFixed(3)})`;
      lane.append(token);
    });
    lanes.append(lane);
  }
}

async function choose(index) {
  const tokens = part("tokens").children;
  for (const [i, token] of [...tokens].entries()) token.setAttribute("aria-pressed", String(i === index));
  const status = part("status");
  try {
    const answer = await post("/attention", { tokens: shown.ids.slice(0, index + 1) });
    shown.heads = answer.heads;
    shown.names = answer.tokens;
  } catch (error) {
    status.textContent = error.message;
    status.className = "error";
    return;
  }
  const head = part("head");
  const before = head.value;
  head.replaceChildren(new Option("mean of all", "mean"),
    ...shown.heads.map((one, i) => new Option(`${i + 1} (λ ${one.lambda.toFixed(2)})`, String(i))));
  head.value = [...head.options].some((option) => option.value === before) ? before : "mean";
  part("maps").hidden = false;
  paintLanes();
}

// Offers the tokens of a text. `names` are their strings.
export function offerTokens(ids, names) {
  shown = { ids, names, heads: [] };
  part("attention").hidden = false;
  part("maps").hidden = true;
  part("tokens").replaceChildren(...names.map((name, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = visible(name);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(index));
    return button;
  }));
}

export function hideTokens() {
  part("attention").hidden = true;
}

export function listenToHeads() {
  part("head").addEventListener("change", paintLanes);
}
