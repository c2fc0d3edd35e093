// SPDX-License-Identifier: Apache-2.0
// Draws a map from coloured tiles. It chooses a level whose cells are at least one device pixel
// wide and repeats pixels, never averages them, so the screen shows every cell of the level.

import { STEPS, scaleWords } from "./colour.js";

const MAX_PICTURES = 500;
const pictures = new Map();

function colourTile(values, cells, size, first, scale) {
  const [rows, columns] = size;
  const image = new ImageData(columns, rows);
  const out = new Uint32Array(image.data.buffer);
  const colours = scaleWords(scale.theme);
  const factor = 1 / scale.range;
  for (let row = 0; row < rows; ++row) {
    const begin = cells ? Math.max(0, cells.begin[first.row + row] - first.column) : 0;
    const end = cells ? Math.min(columns, cells.end[first.row + row] - first.column) : columns;
    for (let i = row * columns + begin; i < row * columns + end; ++i) {
      const value = values ? values[i] : 0;
      let t = Math.min(1, Math.abs(value) * factor);
      if (scale.root) t = Math.sqrt(t);
      const step = Math.round(t * STEPS);
      out[i] = colours[value < 0 ? STEPS - step : STEPS + step];
    }
  }
  return image;
}

function pictureKey(map, plane, level, tileRow, tileColumn, scale) {
  return `${map.id}/${plane}/${level}/${tileRow}/${tileColumn}/${scale.range}/${scale.root}/${scale.theme}`;
}

function tilePicture(map, plane, level, tileRow, tileColumn, scale, deadline) {
  const key = pictureKey(map, plane, level, tileRow, tileColumn, scale);
  const known = pictures.get(key);
  if (known) {
    pictures.delete(key);
    pictures.set(key, known);
    return known;
  }
  const values = map.tile(plane, level, tileRow, tileColumn, deadline);
  if (values === undefined) return null;
  const size = map.tileSize(level, tileRow, tileColumn);
  const first = { row: tileRow * map.tileSide, column: tileColumn * map.tileSide };
  const canvas = document.createElement("canvas");
  [canvas.height, canvas.width] = size;
  canvas
    .getContext("2d")
    .putImageData(colourTile(values, map.visibleCells(level), size, first, scale), 0, 0);
  pictures.set(key, canvas);
  if (pictures.size > MAX_PICTURES) pictures.delete(pictures.keys().next().value);
  return canvas;
}

// Returns the position of entries [from, to) on an axis, rounded to device pixels so that tiles
// meet without a seam.
function extent(origin, start, cell, from, to, ratio) {
  const at = (entry) => Math.round((origin + (entry - start) * cell) * ratio) / ratio;
  return [at(from), at(to)];
}

function drawTile(context, map, picture, level, tileRow, tileColumn, view, rect, ratio) {
  const side = map.tileSide * 2 ** level;
  const [rows, columns] = map.tileSize(level, tileRow, tileColumn);
  // The last cell may have fewer entries. We draw it in full size, and the clip at the map's edge
  // cuts it.
  const [x0, x1] = extent(
    rect.x,
    view.left,
    view.cell,
    tileColumn * side,
    tileColumn * side + columns * 2 ** level,
    ratio,
  );
  const [y0, y1] = extent(
    rect.y,
    view.top,
    view.cell,
    tileRow * side,
    tileRow * side + rows * 2 ** level,
    ratio,
  );
  context.drawImage(picture, x0, y0, x1 - x0, y1 - y0);
}

// Draws a coarser tile in place of one that is not coloured yet.
function drawCoarser(context, map, plane, level, tileRow, tileColumn, view, rect, scale, ratio) {
  for (let up = 1; up < 12; ++up) {
    const [row, column] = [tileRow >> up, tileColumn >> up];
    const picture = pictures.get(pictureKey(map, plane, level + up, row, column, scale));
    if (!picture) continue;
    const side = map.tileSide * 2 ** level;
    const [x0, x1] = extent(
      rect.x,
      view.left,
      view.cell,
      tileColumn * side,
      (tileColumn + 1) * side,
      ratio,
    );
    const [y0, y1] = extent(
      rect.y,
      view.top,
      view.cell,
      tileRow * side,
      (tileRow + 1) * side,
      ratio,
    );
    context.save();
    context.beginPath();
    context.rect(x0, y0, x1 - x0, y1 - y0);
    context.clip();
    drawTile(context, map, picture, level + up, row, column, view, rect, ratio);
    context.restore();
    return;
  }
}

export function levelFor(map, cell, ratio) {
  let level = 0;
  while (cell * ratio * 2 ** level < 0.999) ++level;
  return Math.max(level, map.finestLevel());
}

// view: {left, top: the entry at the corner; cell: CSS pixels per entry}; rect: {x, y, width,
// height}. Returns false if time ran out or data is missing; a later frame then has to finish the
// work.
export function paintMap(context, map, plane, view, rect, scale, ratio, milliseconds = Infinity) {
  const level = levelFor(map, view.cell, ratio);
  if (level === Infinity) return false;
  const deadline = performance.now() + milliseconds;
  const side = map.tileSide * 2 ** level;
  const tiles = (start, length, entries) => [
    Math.max(0, Math.floor(start / side)),
    Math.min(Math.ceil(entries / side), Math.ceil((start + length / view.cell) / side)),
  ];
  const [firstRow, endRow] = tiles(view.top, rect.height, map.rows);
  const [firstColumn, endColumn] = tiles(view.left, rect.width, map.columns);
  let finished = true;
  context.save();
  context.beginPath();
  context.rect(
    rect.x,
    rect.y,
    Math.min(rect.width, (map.columns - view.left) * view.cell),
    Math.min(rect.height, (map.rows - view.top) * view.cell),
  );
  context.clip();
  context.imageSmoothingEnabled = false;
  for (let row = firstRow; row < endRow; ++row) {
    for (let column = firstColumn; column < endColumn; ++column) {
      const picture = tilePicture(map, plane, level, row, column, scale, deadline);
      if (picture) {
        drawTile(context, map, picture, level, row, column, view, rect, ratio);
      } else {
        finished = false;
        drawCoarser(context, map, plane, level, row, column, view, rect, scale, ratio);
      }
    }
  }
  context.restore();
  return finished;
}
