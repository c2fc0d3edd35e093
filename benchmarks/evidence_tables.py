#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/results.md from runs of `diffattn compare` and evaluations with rounded weights.

    benchmarks/evidence_tables.py runs/lm_10m [FOLDER...]

Each FOLDER is searched at any depth for the files that compare leaves in OUT/runs, and for those of `diffattn eval
--quantize --json` in MODEL-seedN/KIND-WEIGHTS.json, as the header of examples/evidence/lm_10m.toml writes them. Runs
that differ in more than model, learning rate and seed get tables of their own. The mean of several seeds comes with
their standard deviation (±); bold is the best mean, if it differs from every other by more than the larger
deviation.
"""

import argparse
import json
import math
import re
import statistics
import sys
from pathlib import Path

FIRST = ("transformer", "diffllama", "microsoft_v2")  # the order of models; others follow by name
RUN_FILE = re.compile(r"(?P<model>.+)-seed(?P<seed>\d+)\.json$")
# What compare appends to a model's name for its own keys, and the digest behind names with such keys.
RATE_OR_SOURCE = re.compile(r"(_at_|_train\.learning_rate_|_from_).*-[0-9a-f]{16}$")
ROUNDED_FILE = re.compile(r"(?P<kind>.+)-int[48](--quantize-activations)?\.json$")
KINDS = ("prose", "manual", "python", "c")


class TablesError(Exception):
    """Files that are not as expected. The message names them."""


def settings_of(text: str) -> dict:
    """Reads the settings that compare saves: tables, and keys with a string, number or boolean each."""
    settings = table = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            table = settings.setdefault(line.strip("[]"), {})
        else:
            key, value = line.split(" = ", 1)
            table[key] = json.loads(value)
    return settings


class Run:
    """A finished run of compare."""

    def __init__(self, path: Path, saved: dict):
        self.path, self.result = path, saved["result"]
        self.config = settings_of(saved["key"]["config"])
        stem = RUN_FILE.match(path.name)["model"]
        self.model = RATE_OR_SOURCE.sub("", stem)
        self.seed, self.train = self.result["seed"], self.config["train"]
        self.rate = self.train["learning_rate"]
        self.tokens = math.prod(self.train[key] for key in ("steps", "batch_size", "accumulate", "seq_len"))
        self.metrics = {name: float(value) for name, value in self.result["metrics"]}
        loss, right, count, _ = self.result["valid"]
        self.metrics |= {"valid_loss": float(loss) / count, "accuracy": right / count}

    def group(self) -> tuple:
        model = self.config["model"]
        size = "from a trained model" if model.get("from") else f"width {model['hidden_size']}"
        return self.config["task"], size, self.tokens


def read_runs(folders: list[Path]) -> tuple[dict, dict]:
    """Returns the runs by group, and the evaluations with rounded weights by (model, kind, weights, activations)."""
    groups, rounded, seen = {}, {}, {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        saved = json.loads(path.read_text())
        if "key" in saved and "result" in saved and RUN_FILE.match(path.name):
            run = Run(path, saved)
            name = (*run.group(), run.model, run.rate, run.seed)
            if name in seen:
                raise TablesError(f"{path}: expected each run once, got model, rate and seed of {seen[name]}")
            seen[name] = path
            groups.setdefault(run.group(), []).append(run)
        elif "quantized" in saved and (file := ROUNDED_FILE.match(path.name)):
            folder = RUN_FILE.match(path.parent.name + ".json")
            if folder is None:
                raise TablesError(f"{path}: expected a folder named MODEL-seedN, got {path.parent.name}")
            what, exact = saved["quantized"], saved["loss"]
            key = (RATE_OR_SOURCE.sub("", folder["model"]), file["kind"], what["weights"], what["activations"])
            rounded.setdefault(key, {})[int(folder["seed"])] = (what["loss"] - exact, exact)
    return groups, rounded


def model_order(name: str) -> tuple:
    return FIRST.index(name) if name in FIRST else len(FIRST), name


def kind_order(name: str) -> tuple:
    return KINDS.index(name) if name in KINDS else len(KINDS), name


def mean_spread(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def text_of(values: list[float], digits: int) -> str:
    mean, spread = mean_spread(values)
    if not math.isfinite(mean):
        return "not finite"
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if len(values) > 1 else "")


def differ(one: list[float], other: list[float]) -> bool:
    """True if the means differ by more than the larger standard deviation. One seed has none, so it decides nothing."""
    if min(len(one), len(other)) < 2:
        return False
    (a, spread_a), (b, spread_b) = mean_spread(one), mean_spread(other)
    return abs(a - b) > max(spread_a, spread_b)


def column(values: dict, digits: int, lower: bool | None = True) -> dict:
    """Returns a cell for each model, the best of them bold. Without a better direction, none is bold."""
    cells = {model: text_of(v, digits) for model, v in values.items()}
    if lower is None or len(values) < 2:
        return cells
    best = (min if lower else max)(values, key=lambda model: mean_spread(values[model])[0])
    if all(differ(values[best], v) for model, v in values.items() if model != best):
        cells[best] = f"**{cells[best]}**"
    return cells


def table(head: list[str], rows: list[list]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def by_model(runs: list[Run]) -> dict:
    models = {}
    for run in sorted(runs, key=lambda run: (model_order(run.model), run.rate, run.seed)):
        models.setdefault(run.model, []).append(run)
    return models


def rates_table(models: dict) -> str:
    """Validation losses by learning rate."""
    rates = sorted({run.rate for runs in models.values() for run in runs})
    rows, notes = [], []
    for model, runs in models.items():
        losses = {rate: [r.metrics["valid_loss"] for r in runs if r.rate == rate] for rate in rates}
        tried = {rate: statistics.fmean(v) for rate, v in losses.items() if v and math.isfinite(statistics.fmean(v))}
        best = min(tried, key=tried.get, default=None)
        cells = [text_of(v, 4) if v else "–" for v in losses.values()]
        rows.append([model, *(f"**{c}**" if rate == best else c for rate, c in zip(rates, cells))])
        if best in (min(tried, default=None), max(tried, default=None)):
            notes.append(f"{model}: the best rate, {best}, is at the end of those tried.")
    return "\n".join([table(["validation loss at rate", *(f"{rate:g}" for rate in rates)], rows), *notes])


def steps_to(curve: list, loss: float) -> float | None:
    """Returns the number of updates until the validation loss reached `loss`, as compare interpolates it."""
    for i, (step, _, valid, _) in enumerate(curve):
        if not float(valid) <= loss:
            continue
        if i == 0:
            return step
        before, above = curve[i - 1][0], float(curve[i - 1][2])
        return before + (above - loss) / (above - float(valid)) * (step - before)
    return None


def shares_to_baseline(models: dict) -> dict:
    """Returns the share of tokens after which each model has the baseline's last loss, for seeds that reach it."""
    ends = {run.seed: float(run.result["curve"][-1][2]) for run in models.get("transformer", [])}
    shares = {}
    for model, runs in models.items():
        reached = [steps_to(r.result["curve"], ends[r.seed]) for r in runs if r.seed in ends]
        if reached and None not in reached:
            shares[model] = [steps / runs[0].train["steps"] for steps in reached]
    return shares


def loss_table(models: dict) -> str:
    seeds = sorted({run.seed for runs in models.values() for run in runs})
    losses = {m: [r.metrics["valid_loss"] for r in runs] for m, runs in models.items()}
    cells, shares = column(losses, 4), shares_to_baseline(models)
    rows = []
    for model, runs in models.items():
        found = {run.seed: f"{run.metrics['valid_loss']:.4f}" for run in runs}
        minutes = sum(run.result["train_seconds"] for run in runs) / 60
        rows.append([model, f"{runs[0].rate:g}", " / ".join(found.get(seed, "–") for seed in seeds), cells[model],
                     text_of(shares[model], 3) if model in shares else "–", f"{minutes:.1f}"])
    head = ["model", "rate", f"validation loss of seed {' / '.join(map(str, seeds))}", "mean",
            "tokens to the Transformer's last loss", "minutes of training"]
    text = table(head, rows)
    for model, values in losses.items():
        if model == "transformer" or "transformer" not in losses:
            continue
        base = losses["transformer"]
        change = mean_spread(values)[0] - mean_spread(base)[0]
        if min(len(base), len(values)) < 2:
            verdict = "one seed says nothing about the spread"
        elif differ(values, base):
            verdict = f"{'lower' if change < 0 else 'higher'} by more than the spread"
        else:
            verdict = "no difference beyond the spread"
        text += f"\n{model} beside transformer: {change:+.4f}, {verdict}."
    skipped = [f"{run.model} seed {run.seed}" for runs in models.values() for run in runs if not run.result["finite"]]
    return text + (f"\nUpdates that were not finite were left out: {', '.join(skipped)}." if skipped else "") + "\n"


def metrics_table(models: dict, title: str, names: dict, digits: int, lower: bool | None = True) -> str:
    """One row for each model, one column for each metric that every run has."""
    known = {metric: label for metric, label in names.items()
             if all(metric in run.metrics for runs in models.values() for run in runs)}  # fmt: skip
    if not known:
        return ""
    columns = [column({m: [r.metrics[metric] for r in runs] for m, runs in models.items()}, digits, lower)
               for metric in known]  # fmt: skip
    return table([title, *known.values()], [[model, *(cells[model] for cells in columns)] for model in models])


def outliers_table(models: dict) -> str:
    measured = [(what, word) for what, word in (("attention_logits", "logit"), ("hidden_states", "state"))
                if all(float(run.result[what][3]) for runs in models.values() for run in runs)]  # fmt: skip
    if not measured:
        return ""
    names = [(what, i, f"{rank} {word}") for what, word in measured for i, rank in ((0, "largest"), (3, "median"))]
    columns = [column({m: [float(r.result[what][i]) for r in runs] for m, runs in models.items()}, 2, None)
               for what, i, _ in names]  # fmt: skip
    return table(["magnitudes", *(label for *_, label in names)],
                 [[model, *(cells[model] for cells in columns)] for model in models])


def needles_table(models: dict) -> str:
    """Accuracy by number of needles, and attention of the first question to its needle and to noise."""
    counts = sorted({cell[0] for runs in models.values() for run in runs for cell in run.result["needles"]})
    if not counts:
        return ""

    def accuracy(run, count):
        cells = [cell for cell in run.result["needles"] if cell[0] == count]
        return sum(cell[3] for cell in cells) / sum(cell[4] for cell in cells)

    def attention(run, index):
        return statistics.fmean(float(cell[index]) for cell in run.result["needles"])

    columns = [column({m: [accuracy(r, count) for r in runs] for m, runs in models.items()}, 3, lower=False)
               for count in counts]  # fmt: skip
    columns += [column({m: [attention(r, i) for r in runs] for m, runs in models.items()}, 3, lower)
                for i, lower in ((7, False), (8, True))]  # fmt: skip
    head = ["needles", *map(str, counts), "attention to the answer", "to noise"]
    return table(head, [[model, *(cells[model] for cells in columns)] for model in models])


def curves_table(models: dict) -> str:
    """Validation losses of the learning curves at some shares of the tokens."""
    rows = []
    steps = sorted(set.intersection(*({p[0] for p in r.result["curve"]} for runs in models.values() for r in runs)))
    chosen = sorted({min(steps, key=lambda s: abs(s - steps[-1] * share)) for share in (0.1, 0.25, 0.5, 0.75, 1)})
    for model, runs in models.items():
        curves = [{p[0]: float(p[2]) for p in run.result["curve"]} for run in runs]
        rows.append([model, *(text_of([curve[step] for curve in curves], 4) for step in chosen)])
    each = next(iter(models.values()))[0]
    tokens = [each.tokens / each.train["steps"] * step / 1e6 for step in chosen]
    return table(["validation loss after million tokens", *(f"{t:.3g}" for t in tokens)], rows)


def group_tables(runs: list[Run]) -> list[str]:
    models = by_model(runs)
    if any(len({run.rate for run in runs}) > 1 for runs in models.values()):
        return [rates_table(models)]
    names = list(runs[0].metrics)
    kinds = sorted((n[5:-14] for n in names if re.fullmatch(r"test\..+\.bits_per_byte", n)), key=kind_order)
    bits = {f"test.{kind}.bits_per_byte": kind for kind in kinds} | {"test.bits_per_byte": "all"}
    positions = {n: n.removeprefix("loss_at.") for n in names if n.startswith("loss_at.")}
    repeated = {"repeated.first": "random tokens", "repeated.second": "their copy"}
    return [text for text in (
        loss_table(models), needles_table(models), curves_table(models),
        metrics_table(models, "bits per byte, test", bits, 4),
        metrics_table(models, "loss with up to n tokens of context", positions, 3),
        metrics_table(models, "loss on a random sequence", repeated, 3),
        outliers_table(models)) if text]  # fmt: skip


def rounded_table(rounded: dict) -> str:
    """What rounded weights and activations add to the loss, by kind of text."""
    kinds = sorted({kind for _, kind, *_ in rounded}, key=kind_order)
    settings = sorted({(weights, activations) for *_, weights, activations in rounded},
                      key=lambda s: (-int(s[0][3:]), s[1] != "exact"))  # fmt: skip
    models, rows = sorted({model for model, *_ in rounded}, key=model_order), []
    for weights, activations in settings:
        columns = []
        for kind in kinds:
            found = {m: [change for change, _ in rounded[m, kind, weights, activations].values()]
                     for m in models if (m, kind, weights, activations) in rounded}  # fmt: skip
            columns.append(column(found, 4))
        rows += [[weights, activations, m, *(cells.get(m, "–") for cells in columns)] for m in models]
    return table(["weights", "activations", "model", *(f"loss on {kind}" for kind in kinds)], rows)


def tables(folders: list[Path]) -> str:
    groups, rounded = read_runs(folders)
    if not groups and not rounded:
        raise TablesError(f"{', '.join(map(str, folders))}: expected runs of compare, got none")
    parts = []
    for (task, size, tokens), runs in sorted(groups.items()):
        machines = sorted({run.result["machine"] for run in runs})
        heading = f"## {task}, {size}, {tokens / 1e6:.1f} million tokens ({', '.join(machines)})\n"
        parts += [heading, *group_tables(runs)]
    if rounded:
        parts += ["## Increase of the loss by rounding\n", rounded_table(rounded)]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    try:
        print(tables(parser.parse_args().folders))
    except (TablesError, ValueError, KeyError) as error:
        print(f"evidence_tables: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
