// SPDX-License-Identifier: Apache-2.0
// The views of numbers: lambda across layers, and the statistics.

import { h } from "./dom.js";
import { Chart } from "./chart.js";
import { DataTable } from "./table.js";

export class LambdaView {
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "lambda-view" });
  }

  update() {
    const { app } = this;
    const models = app.shownModels().filter((model) => app.report.models[model].lambda.length > 0);
    if (models.length === 0) {
      this.element.replaceChildren(
        h("p", { class: "empty" }, "A plain model has only one map per head and no \u03bb."),
      );
      return;
    }
    const series = models.flatMap((model, colour) =>
      this.seriesOf(app.report.models[model], colour, models.length > 1),
    );
    const chart = new Chart(
      { name: "\u03bb across layers", xLabel: "layer", yLabel: "\u03bb", series },
      { wholeX: true, width: 860 },
    );
    this.element.replaceChildren(
      h("div", { class: "wide" }, chart.element),
      h(
        "p",
        { class: "explain" },
        "\u03bb is the factor with which each layer subtracts map 2. The line is the mean over " +
          "heads and tokens, the band shows the range of all values, and the dots are heads.",
      ),
      ...models.map((model) => this.tableOf(app.report.models[model])),
    );
  }

  seriesOf({ name, lambda }, colour, several) {
    const prefix = several ? `${name}: ` : "";
    const x = lambda.map(({ layer }) => layer);
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const out = [
      {
        name: `${prefix}\u03bb`,
        x,
        colour,
        y: lambda.map(({ heads }) => mean(heads.map(([value]) => value))),
        low: lambda.map(({ heads }) => Math.min(...heads.map(([, low]) => low))),
        high: lambda.map(({ heads }) => Math.max(...heads.map(([, , high]) => high))),
      },
    ];
    if (lambda.some(({ heads }) => heads.length > 1)) {
      out.push({
        name: "",
        dots: true,
        colour,
        x: lambda.flatMap(({ layer, heads }) => heads.map(() => layer)),
        y: lambda.flatMap(({ heads }) => heads.map(([value]) => value)),
      });
    }
    if (lambda.every(({ init }) => init !== null)) {
      out.push({
        name: `${prefix}\u03bb_init`,
        dash: true,
        colour: colour + 3,
        x,
        y: lambda.map(({ init }) => init),
      });
    }
    return out;
  }

  tableOf({ name, lambda }) {
    const columns = ["layer", "head", "\u03bb", "smallest", "largest", "\u03bb_init"].map(
      (label) => ({ label, number: true, digits: 5 }),
    );
    const rows = lambda.flatMap(({ layer, init, heads }) =>
      heads.map(([mean, low, high], head) => [
        layer,
        heads.length > 1 ? head : null,
        mean,
        low,
        high,
        init,
      ]),
    );
    return new DataTable({ name: `\u03bb of ${name}`, columns, rows }, { fileName: "lambda" })
      .element;
  }
}

export class StatisticsView {
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "statistics-view" });
  }

  update(changed) {
    if (changed && !["model", "other"].some((key) => changed.has(key))) return;
    const { app } = this;
    const models = app.shownModels();
    const names = app.statisticNames();
    if (names.length === 0) {
      this.element.replaceChildren(h("p", { class: "empty" }, "This report has no statistics."));
      return;
    }
    const several = models.length > 1;
    const columns = [
      ...(several ? [{ label: "model", number: false, key: "model" }] : []),
      { label: "layer", number: true, digits: 6, key: "layer" },
      { label: "head", number: true, digits: 6, key: "head" },
      ...names.map(({ key, label, description }) => ({
        key,
        label,
        title: description,
        number: true,
        digits: 4,
        bars: true,
      })),
    ];
    const rows = models.flatMap((model) => {
      const { name, statistics } = app.report.models[model];
      const places = names.map(({ key }) =>
        statistics.names.findIndex((other) => other.key === key),
      );
      return statistics.rows.map(({ layer, head, values }) => [
        ...(several ? [name] : []),
        layer,
        head,
        ...places.map((place) => (place < 0 ? null : values[place])),
      ]);
    });
    const table = new DataTable(
      {
        name: "Statistics per layer and head",
        columns,
        rows,
        note:
          "Means over the visible entries of all rows. Click a column header to sort the table, or " +
          "a row to open its maps.",
      },
      {
        fileName: "statistics",
        sort: this.sortOf(columns),
        onSort: ({ column, descending }) =>
          app.set({ sort: `${descending ? "-" : ""}${columns[column].key}` }),
        onOpen: (row) => {
          const model = several
            ? models.find((m) => app.report.models[m].name === row[0])
            : models[0];
          app.open(model, row[several ? 1 : 0], row[several ? 2 : 1]);
        },
      },
    );
    this.element.replaceChildren(table.element);
  }

  sortOf(columns) {
    const { sort } = this.app.state;
    if (!sort) return null;
    const column = columns.findIndex(({ key }) => key === sort.replace(/^-/, ""));
    return column < 0 ? null : { column, descending: sort.startsWith("-") };
  }
}
