// SPDX-License-Identifier: Apache-2.0
//
// Converts a Llama to Microsoft V2. V2 computes O = A(q1) - sigmoid(lambda_proj x) A(q2) with
// shared keys and values. With q2 = q1 and lambda_proj = 0 that is A / 2, so doubling the output
// projection gives exactly the Llama's function. Both maps and lambda get gradients from the first
// step on.

#include <cstring>

#include "convert/numbers.h"
#include "convert/plan.h"
#include "diffattn/io/error.h"

namespace diffattn::convert {
namespace {

struct Rows {
  std::vector<int64_t> q, k;
};

/// Returns the row in V2's interleaved order of a row in half-split order.
int64_t turned(int64_t row, int64_t d) {
  return row / d * d + rotary_row(RotaryOrder::kInterleaved, row % d, d);
}

Rows rows_to_v2(const Model& m) {
  const int64_t d = m.head_dim;
  Rows rows;
  rows.q = rows_between({HeadOrder::kStripes, RotaryOrder::kInterleaved}, RotaryOrder::kHalfSplit,
                        m.heads, d, [](int64_t j, int64_t) { return j; });
  rows.k.resize(static_cast<size_t>(m.kv_heads * d));
  for (int64_t row = 0; row < m.kv_heads * d; ++row) {
    rows.k[static_cast<size_t>(turned(row, d))] = row;
  }
  return rows;
}

Rows rows_from_v2(const Model& m) {
  const int64_t d = m.head_dim;
  Rows rows;
  for (int64_t row = 0; row < m.heads * d; ++row) {
    rows.q.push_back(row / d * d + turned(row, d));  // head j: sub-head 2j
  }
  for (int64_t row = 0; row < m.kv_heads * d; ++row) rows.k.push_back(turned(row, d));
  return rows;
}

void plan_attention(Plan& plan, int64_t layer, const Rows& rows, bool back) {
  const Model& m = plan.model();
  const std::string prefix = attention_prefix(layer);
  const int64_t q_rows = (back ? 2 : 1) * m.heads * m.head_dim, kv_rows = m.kv_heads * m.head_dim;
  const auto project = [&](const char* name, int64_t count, const std::vector<int64_t>& list,
                           const char* what) {
    const std::string weight = prefix + name + ".weight", bias = prefix + name + ".bias";
    plan.rows(weight, {count, m.hidden}, weight, list, what);
    if (m.attention_bias) plan.rows(bias, {count}, bias, list, what);
  };
  project("q_proj", q_rows, rows.q,
          back ? "first maps, rows permuted" : "both maps, rows permuted");
  project("k_proj", kv_rows, rows.k, "rows permuted");
  plan.copy(prefix + "v_proj.weight", {kv_rows, m.hidden});
  if (m.attention_bias) plan.copy(prefix + "v_proj.bias", {kv_rows});
  const std::string out = prefix + "o_proj.weight";
  const Shape shape{m.hidden, m.heads * m.head_dim};
  Recipe recipe;
  recipe.source = plan.take(out, shape);
  recipe.factors.assign(static_cast<size_t>(shape[1]), back ? 0.5 : 2.0);
  plan.add(out, shape, plan.dtype(out), back ? "halved" : "doubled", std::move(recipe));
  if (m.attention_bias) plan.copy(prefix + "o_proj.bias", {m.hidden});
}

/// Throws io::Error if the two maps of a head have different rows.
void check_equal_maps(Plan& plan, const std::string& name, const Shape& shape) {
  const Model& m = plan.model();
  const auto bytes = plan.source().read_bytes(plan.take(name, shape));
  const size_t half = bytes.size() / static_cast<size_t>(2 * m.heads);
  for (size_t at = 0; half > 0 && at < bytes.size(); at += 2 * half) {
    if (std::memcmp(bytes.data() + at, bytes.data() + at + half, half) != 0) {
      throw io::Error(plan.source().name(),
                      "tensor " + io::in_quotes(name) +
                          ": expected equal queries in both maps of head " +
                          std::to_string(at / (2 * half)) +
                          ", got different ones: it does not compute a Llama's function");
    }
  }
}

/// Throws io::Error if the layer does not compute the function of a Llama layer.
void check_is_plain(Plan& plan, int64_t layer) {
  const Model& m = plan.model();
  const std::string prefix = attention_prefix(layer);
  const std::string lambda = prefix + "lambda_proj.weight";
  for (const double value : numbers_of(plan.source(), plan.take(lambda, {m.heads, m.hidden}))) {
    if (value != 0.0) {
      throw io::Error(plan.source().name(), "tensor " + io::in_quotes(lambda) +
                                                ": expected zeros, got other numbers: lambda "
                                                "depends on the token, unlike in a Llama");
    }
  }
  plan.leave(lambda, "all zero");
  const int64_t rows = 2 * m.heads * m.head_dim;
  check_equal_maps(plan, prefix + "q_proj.weight", {rows, m.hidden});
  if (m.attention_bias) check_equal_maps(plan, prefix + "q_proj.bias", {rows});
}

}  // namespace

void plan_llama_to_v2(Plan& plan) {
  const Model& m = plan.model();
  const Rows rows = rows_to_v2(m);
  plan.copy_rest();
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    plan_attention(plan, layer, rows, false);
    const std::string prefix = attention_prefix(layer);
    plan.add(prefix + "lambda_proj.weight", {m.heads, m.hidden},
             plan.dtype(prefix + "q_proj.weight"), "made: zeros", {});
  }
  plan.note(
      "the result computes the same function: both maps of a head are equal and lambda is 1/2; "
      "train "
      "it further");
}

void plan_v2_to_llama(Plan& plan) {
  const Model& m = plan.model();
  const Rows rows = rows_from_v2(m);
  plan.copy_rest();
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    check_is_plain(plan, layer);
    plan_attention(plan, layer, rows, true);
  }
}

}  // namespace diffattn::convert
