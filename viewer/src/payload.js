// SPDX-License-Identifier: Apache-2.0
// The data blocks of the page. They arrive while the browser loads the file; a block is complete
// when another element follows it. The browser then decompresses it, off the main thread.

import { HeadMap } from "./pyramid.js";

export const mapKey = (model, sequence, layer, head) => `${model}/${sequence}/${layer}/${head}`;

function complete(element) {
  return (
    element !== null && (element.nextElementSibling !== null || document.readyState !== "loading")
  );
}

function bytesOf(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class Payload {
  // onBlock: called after each block that has been decompressed.
  constructor(onBlock) {
    this.report = JSON.parse(document.getElementById("report").textContent);
    if (this.report.format !== "diffattn-report" || this.report.version !== 2) {
      throw new Error("the data has a format that this viewer does not support");
    }
    this.onBlock = onBlock;
    this.maps = new Map();
    this.seen = new Map(); // element -> index, of the maps whose first block is not ready yet
    this.known = new Set();
    this.blocks = new Map();
    this.waiting = [];
    this.size = 0;
    for (const sequence of this.report.sequences) {
      sequence.columns ||= sequence.rows;
      sequence.visibleAt = [];
    }
  }

  // Collects the maps that are ready since the last call. Returns true if there are any.
  collect() {
    for (const element of document.querySelectorAll("script.map")) {
      if (this.known.has(element) || !complete(element)) continue;
      this.known.add(element);
      const index = JSON.parse(element.textContent);
      this.seen.set(element, index);
      for (const { block } of index.levels) this.waiting.push(block);
    }
    this.inflateWaiting();
    let news = false;
    for (const [element, index] of this.seen) {
      // The first block of a map is enough to draw it.
      if (!this.hasBlock(index.levels[0].block)) continue;
      this.seen.delete(element);
      const map = new HeadMap(index, this.report.sequences[index.sequence], this);
      this.maps.set(mapKey(index.model, index.sequence, index.layer, index.head), map);
      news = true;
    }
    return news;
  }

  // Decompresses blocks one after the other, in the order of the file.
  async inflateWaiting() {
    if (this.busy) return;
    this.busy = true;
    while (this.waiting.length && complete(document.getElementById(this.waiting[0]))) {
      const id = this.waiting.shift();
      const text = document.getElementById(id).textContent;
      this.size += text.length;
      this.blocks.set(id, await inflated(bytesOf(text)));
      this.onBlock();
    }
    this.busy = false;
  }

  // True if the file has been loaded and all its blocks are decompressed.
  finished() {
    return (
      document.getElementById("end") !== null &&
      this.waiting.length === 0 &&
      !this.busy &&
      this.seen.size === 0
    );
  }

  hasBlock(id) {
    return this.blocks.has(id);
  }

  // Returns the bytes of a block, or undefined if they are not ready yet.
  block(id) {
    return this.blocks.get(id);
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
