// SPDX-License-Identifier: Apache-2.0
// The maps of one head as a pyramid of tiles. A cell of level l has the entry of largest magnitude
// among 2^l x 2^l entries. The file stores some levels; the others are computed on demand from the
// next finer level.

const MAX_TILES = 500;
const BYTES = { f32: 4, f16: 2, q8: 1 };

// An LRU cache of the tiles of all maps: a Map iterates in order of insertion.
const tileCache = new Map();
let nextId = 0;

function remember(key, tile) {
  tileCache.set(key, tile);
  if (tileCache.size > MAX_TILES) tileCache.delete(tileCache.keys().next().value);
  return tile;
}

let halves = null;
function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; ++bits) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

// Returns the value that each of the 256 bytes stands for in a q8 tile.
function byteTable(scale) {
  const table = new Float32Array(256);
  for (let q = -127; q < 128; ++q) table[q & 255] = (Math.sign(q) * scale * q * q) / 16129;
  return table;
}

// Decodes a tile of `count` cells. The block holds the lowest byte of all cells, then the second
// byte of all, and so on. Plain loops make it fast, because decoding takes most of the time of a
// frame with new tiles.
function decodeTile(block, format, offset, scale, count) {
  const bytes = block.subarray(offset, offset + count * BYTES[format]);
  const out = new Float32Array(count);
  if (format === "q8") {
    const table = byteTable(scale);
    for (let i = 0; i < count; ++i) out[i] = table[bytes[i]];
  } else if (format === "f16") {
    const table = halfTable();
    for (let i = 0; i < count; ++i) out[i] = table[bytes[i] | (bytes[count + i] << 8)];
  } else {
    const words = new Uint32Array(out.buffer);
    for (let i = 0; i < count; ++i)
      words[i] =
        bytes[i] |
        (bytes[count + i] << 8) |
        (bytes[2 * count + i] << 16) |
        (bytes[3 * count + i] << 24);
  }
  return out;
}

export class HeadMap {
  constructor(index, sequence, payload) {
    Object.assign(this, {
      id: nextId++,
      model: index.model,
      sequence: index.sequence,
      layer: index.layer,
      head: index.head,
      rows: index.rows,
      columns: index.columns,
      lambda: index.lambda,
      tileSide: index.tile,
      tokens: sequence,
      payload,
    });
    this.levels = new Map();
    for (const level of index.levels) {
      const planes = {};
      for (const [name, places] of Object.entries(level.planes)) {
        planes[name] = new Map(
          places.map(([row, column, offset, scale]) => [`${row},${column}`, { offset, scale }]),
        );
      }
      this.levels.set(level.level, { format: level.format, block: level.block, planes });
    }
    const first = this.levels.values().next().value.planes;
    // The maps to show; plain attention has only one.
    this.differential = "p2" in first;
    this.planes = this.differential ? ["p1", "p2", "difference"] : ["difference"];
  }

  // Returns the maps that stand side by side; with `removed`, lambda p2 instead of p2.
  shownPlanes(removed) {
    return this.planes.map((plane) => (plane === "p2" && removed ? "removed" : plane));
  }

  rowsAt(level) {
    return Math.ceil(this.rows / 2 ** level);
  }
  columnsAt(level) {
    return Math.ceil(this.columns / 2 ** level);
  }
  lambdaAt(row) {
    return this.lambda.length === 1 ? this.lambda[0] : this.lambda[row];
  }

  // Returns the finest level whose data has been loaded.
  finestLevel() {
    let finest = Infinity;
    for (const [level, { block }] of this.levels) {
      if (level < finest && this.payload.hasBlock(block)) finest = level;
    }
    return finest;
  }

  tileSize(level, tileRow, tileColumn) {
    return [
      Math.min(this.tileSide, this.rowsAt(level) - tileRow * this.tileSide),
      Math.min(this.tileSide, this.columnsAt(level) - tileColumn * this.tileSide),
    ];
  }

  // Returns the entries of a tile, row by row, as a Float32Array, or null if all are zero. Returns
  // undefined if the file does not have them, if they are not loaded yet, or after the deadline;
  // the cache keeps the finer tiles computed so far for the next call.
  tile(plane, level, tileRow, tileColumn, deadline = Infinity) {
    const key = `${this.id}/${plane}/${level}/${tileRow}/${tileColumn}`;
    const cached = tileCache.get(key);
    if (cached !== undefined) {
      tileCache.delete(key);
      tileCache.set(key, cached);
      return cached;
    }
    if (performance.now() > deadline) return undefined;
    const stored = this.levels.get(level);
    const made = stored
      ? this.storedTile(stored, plane, level, tileRow, tileColumn)
      : this.reducedTile(plane, level, tileRow, tileColumn, deadline);
    return made === undefined ? undefined : remember(key, made);
  }

  storedTile(stored, plane, level, tileRow, tileColumn) {
    const block = this.payload.block(stored.block);
    if (block === undefined) return undefined;
    if (plane === "removed") return this.removedTile(level, tileRow, tileColumn);
    const places =
      stored.planes[
        plane === "difference" && !this.differential && !stored.planes.difference ? "p1" : plane
      ];
    if (!places) return this.subtractedTile(level, tileRow, tileColumn);
    const place = places.get(`${tileRow},${tileColumn}`);
    if (!place) return null;
    const [rows, columns] = this.tileSize(level, tileRow, tileColumn);
    return decodeTile(block, stored.format, place.offset, place.scale, rows * columns);
  }

  // Computes lambda p2, which the head subtracts from p1. A cell of a coarse level has many rows: it
  // uses the lambda of the middle one.
  removedTile(level, tileRow, tileColumn) {
    const p2 = this.tile("p2", level, tileRow, tileColumn);
    if (!p2) return p2;
    const [rows, columns] = this.tileSize(level, tileRow, tileColumn);
    const out = new Float32Array(rows * columns);
    for (let row = 0; row < rows; ++row) {
      const middle = (tileRow * this.tileSide + row + 0.5) * 2 ** level;
      const lambda = this.lambdaAt(Math.min(this.rows - 1, Math.floor(middle)));
      for (let i = row * columns; i < (row + 1) * columns; ++i) out[i] = lambda * p2[i];
    }
    return out;
  }

  // Computes p1 - lambda p2 in single precision, which the stored entries have too.
  subtractedTile(level, tileRow, tileColumn) {
    const p1 = this.tile("p1", level, tileRow, tileColumn);
    const p2 = this.tile("p2", level, tileRow, tileColumn);
    if (p1 === undefined || p2 === undefined) return undefined;
    if (p1 === null && p2 === null) return null;
    const [rows, columns] = this.tileSize(level, tileRow, tileColumn);
    const out = new Float32Array(rows * columns);
    for (let row = 0; row < rows; ++row) {
      const lambda = this.lambdaAt(tileRow * this.tileSide + row);
      for (let i = row * columns; i < (row + 1) * columns; ++i) {
        out[i] = (p1 ? p1[i] : 0) - Math.fround(lambda * (p2 ? p2[i] : 0));
      }
    }
    return out;
  }

  reducedTile(plane, level, tileRow, tileColumn, deadline) {
    if (level <= 0 || level <= Math.min(...this.levels.keys())) return undefined;
    const [rows, columns] = this.tileSize(level, tileRow, tileColumn);
    const out = new Float32Array(rows * columns);
    const half = this.tileSide / 2;
    let any = false;
    for (let quarter = 0; quarter < 4; ++quarter) {
      const [down, right] = [quarter >> 1, quarter & 1];
      const [childRow, childColumn] = [2 * tileRow + down, 2 * tileColumn + right];
      if (down * half >= rows || right * half >= columns) continue;
      const child = this.tile(plane, level - 1, childRow, childColumn, deadline);
      if (child === undefined) return undefined;
      if (child === null) continue;
      any = true;
      const [childRows, childColumns] = this.tileSize(level - 1, childRow, childColumn);
      for (let row = 0, i = 0; row < childRows; ++row) {
        const base = (down * half + (row >> 1)) * columns + right * half;
        for (let column = 0; column < childColumns; ++column, ++i) {
          const at = base + (column >> 1);
          if (Math.abs(child[i]) > Math.abs(out[at])) out[at] = child[i];
        }
      }
    }
    return any ? out : null;
  }

  isVisible(row, column) {
    const { visible } = this.tokens;
    return !visible || (column >= visible.begin[row] && column < visible.end[row]);
  }

  // Returns {value, exact, side} of an entry, or of the side x side cell that contains it. Returns
  // null if the row may not see the column, and undefined if no data is loaded yet.
  entry(plane, row, column) {
    if (!this.isVisible(row, column)) return null;
    const level = this.finestLevel();
    if (level === Infinity) return undefined;
    const [cellRow, cellColumn] = [row >> level, column >> level];
    const [tileRow, tileColumn] = [
      Math.floor(cellRow / this.tileSide),
      Math.floor(cellColumn / this.tileSide),
    ];
    const tile = this.tile(plane, level, tileRow, tileColumn);
    if (tile === undefined) return undefined;
    const width = this.tileSize(level, tileRow, tileColumn)[1];
    const value =
      tile === null ? 0 : tile[(cellRow % this.tileSide) * width + (cellColumn % this.tileSide)];
    return { value, exact: level === 0 && this.levels.get(0).format === "f32", side: 2 ** level };
  }

  // Returns one row over all columns, with NaN for entries that are not visible or not stored.
  row(plane, row) {
    const out = new Float32Array(this.columns).fill(NaN);
    for (let column = 0; column < this.columns; ++column) {
      const entry = this.entry(plane, row, column);
      if (entry) out[column] = entry.value;
    }
    return out;
  }

  // Returns the visible column with the largest weight of the final map in a row.
  strongestColumn(row) {
    this.strongest ||= new Map();
    if (!this.strongest.has(row)) {
      let best = 0;
      const values = this.row("difference", row);
      values.forEach((value, column) => {
        if (Math.abs(value) > Math.abs(values[best]) || Number.isNaN(values[best])) best = column;
      });
      this.strongest.set(row, best);
    }
    return this.strongest.get(row);
  }

  // Returns a magnitude that 99.7 % of the non-zero cells of all planes do not exceed. With the
  // maximum instead, a single large entry (an attention sink) would make all others pale.
  typicalRange() {
    const level = Math.max(...this.levels.keys());
    const magnitudes = [];
    for (const plane of this.planes) {
      const across = Math.ceil(this.columnsAt(level) / this.tileSide);
      const down = Math.ceil(this.rowsAt(level) / this.tileSide);
      for (let i = 0; i < across * down; ++i) {
        const tile = this.tile(plane, level, Math.floor(i / across), i % across);
        for (const value of tile || []) if (value !== 0) magnitudes.push(Math.abs(value));
      }
    }
    if (magnitudes.length === 0) return 1;
    const sorted = Float32Array.from(magnitudes).sort();
    return sorted[Math.floor(0.997 * (sorted.length - 1))] || 1;
  }

  // Returns the visible cells of a level: for each row of cells, the first and one past the last.
  visibleCells(level) {
    const { visible, visibleAt } = this.tokens;
    if (!visible) return null;
    if (visibleAt[level]) return visibleAt[level];
    const begin = new Int32Array(this.rowsAt(level)).fill(1 << 30);
    const end = new Int32Array(this.rowsAt(level));
    for (let row = 0; row < this.rows; ++row) {
      if (visible.begin[row] >= visible.end[row]) continue;
      const cell = row >> level;
      begin[cell] = Math.min(begin[cell], visible.begin[row] >> level);
      end[cell] = Math.max(end[cell], ((visible.end[row] - 1) >> level) + 1);
    }
    return (visibleAt[level] = { begin, end });
  }
}
