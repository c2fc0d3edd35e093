// SPDX-License-Identifier: Apache-2.0
// The blocks of the page. The browser hands them over while it is still reading the file: a block
// is complete once something follows it.

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
      throw new Error("This page's data has a format that its viewer does not know.");
    }
    this.maps = new Map();
    this.seen = new Set();
    this.texts = new Map();
    for (const sequence of this.report.sequences) {
      sequence.columns ||= sequence.rows;
      sequence.visibleAt = [];
    }
  }

  // Takes in what has arrived since the last call; says whether that was anything.
  collect() {
    let news = false;
    for (const element of document.querySelectorAll("script.map")) {
      if (this.seen.has(element) || !complete(element)) continue;
      const index = JSON.parse(element.textContent);
      // A map can be drawn from its first block on.
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

  // The base64 text of a block, or undefined as long as it has not arrived.
  block(id) {
    if (!this.texts.has(id)) {
      if (!this.hasBlock(id)) return undefined;
      this.texts.set(id, document.getElementById(id).textContent);
    }
    return this.texts.get(id);
  }

  // The first map of a model on a sequence whose entries are all there, else its first map.
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
