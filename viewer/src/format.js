// SPDX-License-Identifier: Apache-2.0
// Formats numbers and tokens.

// Returns the shortest decimal that reads back as this float32.
export function exactFloat(value) {
  for (let digits = 1; digits < 9; ++digits) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return plainNumber(text);
  }
  return plainNumber(value.toPrecision(9));
}

function plainNumber(text) {
  return signed(Number(text).toString());
}

// Replaces hyphens with minus signs.
function signed(text) {
  return text.replace("-", "\u2212").replace("e\u2212", "e-").replace("e-", "e\u2212");
}

export function shortNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  if (value === 0) return "0";
  const magnitude = Math.abs(value);
  if (Number.isInteger(value) && magnitude >= 1e4 && magnitude < 1e12) {
    return signed(String(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  }
  if (magnitude >= 1e5 || magnitude < 1e-4) {
    return signed(
      value
        .toExponential(Math.max(0, digits - 1))
        .replace(/\.?0+e/, "e")
        .replace("e+", "e"),
    );
  }
  return signed(Number(value.toPrecision(digits)).toString());
}

// Formats a weight inside a cell: three decimals without a leading zero.
export function cellNumber(value) {
  const text = Math.abs(value).toFixed(3);
  if (Number(text) === 0) return "0";
  return (value < 0 ? "\u2212" : "") + text.replace(/^0/, "");
}

// Formats an entry of a map; marks it with an "almost equal" sign if it was rounded for storage.
export function entryText(entry) {
  if (entry === null) return "not visible";
  if (entry === undefined) return "not stored";
  return entry.exact ? exactFloat(entry.value) : `\u2248 ${shortNumber(entry.value)}`;
}

const NAMED = { 9: "\u21e5", 10: "\u23ce", 13: "\u240d", 32: "\u2423", 127: "\u2421" };

// True for invisible characters, some of which change how the following text is displayed.
function isHidden(code) {
  return (
    (code >= 0x80 && code < 0xa0) ||
    code === 0xad ||
    code === 0x61c ||
    (code >= 0x200b && code <= 0x200f) ||
    (code >= 0x2028 && code <= 0x202e) ||
    (code >= 0x2060 && code <= 0x206f) ||
    code === 0xfeff ||
    (code >= 0xfff9 && code <= 0xfffb) ||
    (code >= 0xe0000 && code <= 0xe007f)
  );
}

// Makes every character of a token visible: control characters become symbols, format characters
// their code points. Spaces become marks if the token has only spaces.
export function tokenText(raw) {
  if (raw === "") return "\u2205";
  const blank = /^ +$/.test(raw);
  let out = "";
  for (const character of raw) {
    const code = character.codePointAt(0);
    if (code === 32) out += blank ? NAMED[32] : " ";
    else if (NAMED[code]) out += NAMED[code];
    else if (code < 32) out += String.fromCodePoint(0x2400 + code);
    else if (isHidden(code))
      out += `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
    else out += character;
  }
  return out;
}

export function shortened(text, length) {
  const characters = [...text];
  return characters.length <= length ? text : characters.slice(0, length - 1).join("") + "\u2026";
}

export function csvText(lines) {
  const field = (cell) => {
    const text = cell === null || cell === undefined ? "" : String(cell);
    // Spreadsheets would run text that starts with = + - or @ as a formula.
    const safe = typeof cell === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return lines.map((line) => line.map(field).join(",")).join("\r\n") + "\r\n";
}
