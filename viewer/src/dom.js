// SPDX-License-Identifier: Apache-2.0
// Creates elements. Text always becomes a text node, so it can never become markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Returns a labelled <select>; entries are [value, text] pairs.
export function select(label, entries, value, onChange, attributes) {
  const control = h("select", { ...attributes, onchange: () => onChange(control.value) });
  for (const [entry, text] of entries) control.append(h("option", { value: entry }, text));
  control.value = value;
  return h("label", { class: "field" }, h("span", {}, label), control);
}

// Returns a group of buttons of which one is pressed; entries are [value, text, title].
export function choice(label, entries, value, onChange) {
  const group = h("div", { class: "choice", role: "group", "aria-label": label });
  for (const [entry, text, title] of entries) {
    group.append(
      h(
        "button",
        {
          type: "button",
          title,
          "data-value": entry,
          "aria-pressed": String(entry === value),
          onclick: () => onChange(entry),
        },
        text,
      ),
    );
  }
  return group;
}

export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function downloadCanvas(name, canvas) {
  canvas.toBlob((blob) => download(name, blob), "image/png");
}

// Caches colours by theme and name: reading a style can make the browser recompute all styles.
const colours = new Map();

export function cssColour(name) {
  const key = `${document.documentElement.dataset.theme} ${name}`;
  if (!colours.has(key))
    colours.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(key);
}
