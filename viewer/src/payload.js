// SPDX-License-Identifier: Apache-2.0
// The data blocks of the page. They arrive while the browser loads the file; a block is complete
// when another element follows it.

import { HeadMap } from "./pyramid.js";

export const mapKey = (model, sequence, layer, head) => `${model}/${sequence}/${layer}/${head}`;

function complete(element) {
  return (
    element !== null && (element.nextElementSibling !== null || document.readyState !== "loading")
  );
}

export class Payload {
  constructor() {
    this.report = JSON.parse(document.getElementById("report").textContent);
    if (this.report.format !== "diffattn-report" || this.report.version !== 1) {
      throw new Error("the data has a format that this viewer does not support");
    }
    this.maps = new Map();
    this.seen = new Set();
    this.texts = new Map();
    for (const sequence of this.report.sequences) {
      sequence.columns ||= sequence.rows;
      sequence.visibleAt = [];
    }
  }

  // Collects the maps that have arrived since the last call. Returns true if there are any.
  collect() {
    let news = false;
    for (const element of document.querySelectorAll("script.map")) {
      if (this.seen.has(element) || !complete(element)) continue;
      const index = JSON.parse(element.textContent);
      // The first block of a map is enough to draw it.
      if (!this.hasBlock(index.levels[0].block)) continue;
      this.seen.add(element);
      const map = new HeadMap(index, this.report.sequences[index.sequence], this);
      this.maps.set(mapKey(index.model, index.sequence, index.layer, index.head), map);
      news = true;
    }
    return news;
  }

  finished() {
    return document.getElementById("end") !== null;
  }

  hasBlock(id) {
    return this.texts.has(id) || complete(document.getElementById(id));
  }

  // Returns the base64 text of a block, or undefined if it has not arrived yet.
  block(id) {
    if (!this.texts.has(id)) {
      if (!this.hasBlock(id)) return undefined;
      this.texts.set(id, document.getElementById(id).textContent);
    }
    return this.texts.get(id);
  }

  // Returns the first map of a model on a sequence that stores every entry, else the first map.
  firstMap(model, sequence) {
    let first = null;
    for (const map of this.maps.values()) {
      if (map.model !== model || map.sequence !== sequence) continue;
      if (map.levels.has(0)) return map;
      first ||= map;
    }
    return first;
  }
}
