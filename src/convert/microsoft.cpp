// SPDX-License-Identifier: Apache-2.0
//
// Microsoft V1 and Hugging Face DiffLlama compute the same function in two layouts:
//
//                   Microsoft                           DiffLlama
//   head j, map s   sub-head 2j + s                     sub-head s pairs + j
//   values of j     rows 2j d ... 2(j + 1) d            sub-heads j and pairs + j
//   rotary pairs    features 2i, 2i + 1                 features i, i + d / 2
//   head norm       weight subln [2d]                   no weight: multiplies o_proj's columns
//
// The columns of the output projection have the same order in both.

#include "convert/numbers.h"
#include "convert/plan.h"
#include "diffattn/io/error.h"

namespace diffattn::convert {
namespace {

struct Layout {
  RowOrder rows;
  std::string out;
  bool norm_weight = false;
};

Layout layout_of(Format format) {
  if (format == Format::kMicrosoft) {
    return {{HeadOrder::kStripes, RotaryOrder::kInterleaved}, "out_proj", true};
  }
  return {{HeadOrder::kHalves, RotaryOrder::kHalfSplit}, "o_proj", false};
}

/// The source row of each row of q, k and v in the result.
struct RowMaps {
  std::vector<int64_t> q, k, v;
  int64_t kv_heads = 0;  // sub-heads in the result
  bool expanded = false;
};

RowMaps row_maps(const Model& m, const Layout& from, const Layout& to, GqaPairing pairing) {
  const int64_t d = m.head_dim, pairs = m.pairs(), kv = m.kv_pairs(), shared = pairs / kv;
  const auto in_place = [&](int64_t count) {
    return [&from, count](int64_t j, int64_t s) { return sub_head(from.rows.heads, j, s, count); };
  };
  const RowOrder values{to.rows.heads, RotaryOrder::kHalfSplit};  // values are not rotated
  RowMaps maps;
  maps.q = rows_between(to.rows, from.rows.rotary, pairs, d, in_place(pairs));
  maps.expanded = pairing == GqaPairing::kLegacyNaive && shared > 1;
  if (!maps.expanded) {
    maps.k = rows_between(to.rows, from.rows.rotary, kv, d, in_place(kv));
    maps.v = rows_between(values, RotaryOrder::kHalfSplit, kv, d, in_place(kv));
    maps.kv_heads = m.kv_heads;
    return maps;
  }
  // Microsoft's naive file pairs query sub-head i with key sub-head i / shared, and head j with the
  // values of head j / shared.
  const auto key = [&](int64_t j, int64_t s) { return (2 * j + s) / shared; };
  const auto value = [&](int64_t j, int64_t s) { return 2 * (j / shared) + s; };
  maps.k = rows_between(to.rows, from.rows.rotary, pairs, d, key);
  maps.v = rows_between(values, RotaryOrder::kHalfSplit, pairs, d, value);
  maps.kv_heads = m.heads;
  return maps;
}

/// Plans the output projection. If the target has no weight of the head norm, multiplies the
/// columns by it.
void plan_output(Plan& plan, const std::string& prefix, const Layout& from, const Layout& to) {
  const Model& m = plan.model();
  const std::string source = prefix + from.out + ".weight", target = prefix + to.out + ".weight";
  const std::string norm = prefix + "subln.weight";
  const Shape shape{m.hidden, m.heads * m.head_dim};
  if (m.attention_bias)
    plan.copy(prefix + from.out + ".bias", {m.hidden}, prefix + to.out + ".bias");
  if (from.norm_weight && to.norm_weight) {
    plan.copy(norm, {2 * m.head_dim});
    return plan.copy(source, shape, target);
  }
  if (!from.norm_weight) {
    plan.copy(source, shape, target);
    Recipe ones;
    ones.fill = [](int64_t, std::span<double> row) { row[0] = 1.0; };
    return plan.add(norm, {2 * m.head_dim}, plan.dtype(source), "made: ones", std::move(ones));
  }
  const std::vector<double> weight = numbers_of(plan.source(), plan.take(norm, {2 * m.head_dim}));
  Recipe recipe;
  recipe.source = plan.take(source, shape);
  const bool ones = std::ranges::all_of(weight, [](double w) { return w == 1.0; });
  if (ones) return plan.add(target, shape, plan.dtype(source), "renamed", std::move(recipe));
  for (int64_t column = 0; column < shape[1]; ++column) {
    recipe.factors.push_back(weight[static_cast<size_t>(column % (2 * m.head_dim))]);
  }
  plan.add(target, shape, plan.dtype(source), "columns times subln.weight", std::move(recipe),
           false);
}

}  // namespace

void plan_microsoft_diffllama(Plan& plan) {
  const Model& m = plan.model();
  const Layout from = layout_of(m.format), to = layout_of(plan.options().to);
  const RowMaps maps = row_maps(m, from, to, plan.options().pairing);
  plan.copy_rest();
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = attention_prefix(layer);
    const auto project = [&](const char* name, const std::vector<int64_t>& rows, int64_t heads,
                             bool expanded) {
      const std::string what = expanded ? "rows permuted and repeated" : "rows permuted";
      const std::string weight = prefix + name + ".weight", bias = prefix + name + ".bias";
      plan.rows(weight, {heads * m.head_dim, m.hidden}, weight, rows, what);
      if (m.attention_bias) plan.rows(bias, {heads * m.head_dim}, bias, rows, what);
    };
    project("q_proj", maps.q, m.heads, false);
    project("k_proj", maps.k, m.kv_heads, maps.expanded);
    project("v_proj", maps.v, m.kv_heads, maps.expanded);
    plan_output(plan, prefix, from, to);
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      plan.copy(prefix + name, {m.head_dim});
    }
  }
  plan.change("num_key_value_heads", maps.kv_heads);
  if (maps.expanded) {
    plan.note(
        "every head has its own keys now: no other layout shares keys as Microsoft's naive file "
        "does");
  }
}

}  // namespace diffattn::convert
