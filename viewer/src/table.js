// SPDX-License-Identifier: Apache-2.0
// A table that sorts by its column headers and exports CSV and PNG.

import { cssColour, download, downloadCanvas, h } from "./dom.js";
import { csvText, shortNumber, shortened } from "./format.js";

const MAX_PICTURE_ROWS = 400;

// table: {name, note?, columns: [{label, number, digits, better, title?, bars?}], rows: [[...]]}
export class DataTable {
  constructor(table, options = {}) {
    const {
      sort = null,
      onSort = null,
      onOpen = null,
      fileName = "table",
      titled = true,
    } = options;
    Object.assign(this, { table, sort, onSort, onOpen, fileName });
    this.head = h("tr", {});
    this.body = h("tbody", {});
    const body = h("table", {}, h("thead", {}, this.head), this.body);
    this.scroll = h("div", { class: "table-scroll", onscroll: () => this.tellMore() }, body);
    new ResizeObserver(() => this.tellMore()).observe(this.scroll);
    this.element = h(
      "div",
      { class: "table-block" },
      h(
        "div",
        { class: "table-head" },
        titled ? h("h3", {}, table.name) : h("span"),
        h(
          "span",
          { class: "tools" },
          h("button", { type: "button", onclick: () => this.saveText() }, "CSV"),
          h("button", { type: "button", onclick: () => this.savePicture() }, "PNG"),
        ),
      ),
      table.note ? h("p", { class: "explain" }, table.note) : "",
      this.scroll,
      h("p", { class: "more hint" }, "more columns: scroll the table \u2192"),
    );
    this.best = table.columns.map((column, i) => this.bestOf(column, i));
    this.most = table.columns.map((column, i) =>
      Math.max(1e-30, ...table.rows.map((row) => Math.abs(row[i])).filter(Number.isFinite)),
    );
    this.render();
  }

  // Tells if columns are hidden on the right.
  tellMore() {
    const { scrollLeft, clientWidth, scrollWidth } = this.scroll;
    this.element.dataset.more = String(scrollLeft + clientWidth < scrollWidth - 4);
  }

  bestOf(column, i) {
    const values = this.table.rows
      .map((row) => row[i])
      .filter((value) => typeof value === "number");
    if (!column.number || !["higher", "lower"].includes(column.better) || values.length < 2)
      return undefined;
    return column.better === "higher" ? Math.max(...values) : Math.min(...values);
  }

  sortedRows() {
    const { rows } = this.table;
    if (!this.sort) return rows;
    const { column, descending } = this.sort;
    const order = (a, b) => {
      const [x, y] = [a[column], b[column]];
      if (x === null || y === null) return (x === null) - (y === null);
      const smaller = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return descending ? -smaller : smaller;
    };
    return [...rows].sort(order);
  }

  toggle(column) {
    // The first click on a column of numbers puts the largest first.
    const first = Boolean(this.table.columns[column].number);
    this.sort = {
      column,
      descending: this.sort?.column === column ? !this.sort.descending : first,
    };
    if (this.onSort) this.onSort(this.sort);
    this.render();
    this.head.children[column].firstChild.focus();
  }

  render() {
    const { columns } = this.table;
    this.head.replaceChildren(
      ...columns.map(({ label, title, number }, i) => {
        const sorted =
          this.sort?.column === i ? (this.sort.descending ? "descending" : "ascending") : "none";
        const arrow = { descending: " \u2193", ascending: " \u2191", none: "" }[sorted];
        return h(
          "th",
          { scope: "col", "aria-sort": sorted, class: number ? "number" : "" },
          h("button", { type: "button", title, onclick: () => this.toggle(i) }, label + arrow),
        );
      }),
    );
    this.body.replaceChildren(
      ...this.sortedRows().map((row) => {
        const line = h(
          "tr",
          {},
          row.map((cell, i) => this.cell(cell, i)),
        );
        if (this.onOpen) {
          line.tabIndex = 0;
          line.addEventListener("click", () => this.onOpen(row));
          line.addEventListener("keydown", (event) => {
            if (event.key === "Enter") this.onOpen(row);
          });
        }
        return line;
      }),
    );
  }

  cell(cell, i) {
    const column = this.table.columns[i];
    if (!column.number) return h("td", {}, h("bdi", {}, cell));
    const td = h(
      "td",
      { class: `number${cell !== null && cell === this.best[i] ? " best" : ""}` },
      shortNumber(cell, column.digits),
    );
    if (column.bars && Number.isFinite(cell)) {
      const bar = h("i", { class: cell < 0 ? "bar negative" : "bar" });
      bar.style.width = `${(100 * Math.abs(cell)) / this.most[i]}%`;
      td.append(h("span", { class: "track" }, bar));
    }
    return td;
  }

  saveText() {
    const lines = [this.table.columns.map(({ key, label }) => key || label), ...this.sortedRows()];
    download(`${this.fileName}.csv`, new Blob([csvText(lines)], { type: "text/csv" }));
  }

  savePicture() {
    const { columns, name } = this.table;
    const rows = this.sortedRows().slice(0, MAX_PICTURE_ROWS);
    const texts = rows.map((row) =>
      row.map((cell, i) =>
        columns[i].number ? shortNumber(cell, columns[i].digits) : shortened(String(cell), 40),
      ),
    );
    const ratio = 2;
    const font = "13px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
    const canvas = h("canvas");
    const context = canvas.getContext("2d");
    context.font = `600 ${font}`;
    const widths = columns.map(
      ({ label }, i) =>
        24 +
        Math.max(
          ...[label, ...texts.map((line) => line[i])].map(
            (text) => context.measureText(text).width,
          ),
        ),
    );
    const width = widths.reduce((a, b) => a + b, 32);
    canvas.width = width * ratio;
    canvas.height = (rows.length * 22 + 92) * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = cssColour("--paper");
    context.fillRect(0, 0, width, canvas.height);
    const line = (cells, y, weight, colour) => {
      let x = 16;
      context.font = `${weight} ${font}`;
      context.fillStyle = cssColour(colour);
      cells.forEach((text, i) => {
        context.textAlign = columns[i].number ? "right" : "left";
        context.fillText(text, columns[i].number ? x + widths[i] - 12 : x + 4, y);
        x += widths[i];
      });
    };
    context.fillStyle = cssColour("--ink");
    context.font = `600 15px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif`;
    context.fillText(name, 20, 28);
    line(
      columns.map(({ label }) => label),
      56,
      "600",
      "--quiet",
    );
    context.fillStyle = cssColour("--frame");
    context.fillRect(16, 64, width - 32, 1);
    texts.forEach((cells, i) => line(cells, 84 + i * 22, "400", "--ink"));
    downloadCanvas(`${this.fileName}.png`, canvas);
  }
}
