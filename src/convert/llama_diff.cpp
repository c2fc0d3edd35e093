// SPDX-License-Identifier: Apache-2.0
//
// Converts a Llama to a Hugging Face DiffLlama that computes the same function.
//
// Each head becomes the first map of a differential head; the second maps are new, and lambda is 0.
// The head norm would still divide a head's output o by its size and lose it. The values of a
// differential head are twice as wide as a Llama's, so we set the new half to a constant c, a
// carrier much larger than o. The rows of a map sum to 1, so the input of the norm is [o, c]:
//
//   (1 - lambda_init) [o, c] / sqrt((mean o^2 + mean c^2) / 2) = 2^-k [o, c]   for
//   mean c^2 = 2 ((1 - lambda_init) 2^k)^2,
//
// with a relative error of (mean o^2 / mean c^2) / 2, below float32's rounding for c >= 4096 |o|.
// The output projection multiplies the first half by 2^k and ignores the second. Powers of two are
// exact, so the conversion back is exact too.

#include <algorithm>
#include <cmath>

#include "convert/carrier.h"
#include "convert/numbers.h"

namespace diffattn::convert {
namespace {

constexpr double kCarrierRatio = 4096.0;         // of carrier to the largest values of a head
constexpr double kSmallestValues = 0.25;         // for smaller values, the norm's eps would matter
constexpr double kLargestHalfCarrier = 32768.0;  // for float16, whose largest number is 65504

int carrier_exponent(Plan& plan, int64_t layer, double values) {
  const double unit = carrier_size(layer, 0);
  int k = static_cast<int>(
      std::ceil(std::log2(kCarrierRatio * std::max(kSmallestValues, values) / unit)));
  if (plan.dtype(attention_prefix(layer) + "v_proj.weight") == io::Dtype::kF16) {
    k = std::min(k, static_cast<int>(std::floor(std::log2(kLargestHalfCarrier / unit))));
  }
  return k;
}

/// Returns the rows of a projection: first all rows of the Llama's, then as many new ones.
std::vector<int64_t> then_new(int64_t rows) {
  std::vector<int64_t> list = first_rows(rows);
  list.resize(static_cast<size_t>(2 * rows), kNone);
  return list;
}

/// FNV-1a; it gives every tensor different random numbers.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

using Fill = std::function<void(int64_t, std::span<double>)>;

/// Plans a weight or bias with twice the rows; `fill` makes the second half, and all rows of a bias
/// that the source does not have.
void widen(Plan& plan, const std::string& name, const Shape& shape, const std::string& what,
           Fill fill = nullptr) {
  const bool is_bias = shape.size() == 1, from_source = !is_bias || plan.model().attention_bias;
  const std::string weight = is_bias ? name.substr(0, name.size() - 4) + "weight" : name;
  Recipe recipe;
  Shape wide = shape;
  wide[0] *= 2;
  if (from_source) {
    recipe.source = plan.take(name, shape);
    recipe.rows = then_new(shape[0]);
  }
  recipe.fill = std::move(fill);
  plan.add(name, wide, plan.dtype(weight), what, std::move(recipe));
}

void widen_queries_and_keys(Plan& plan, const std::string& prefix) {
  const Model& m = plan.model();
  for (const auto& [name, heads] :
       {std::pair("q_proj", m.heads), std::pair("k_proj", m.kv_heads)}) {
    const std::string weight = prefix + name + ".weight", bias = prefix + name + ".bias";
    const uint64_t seed = hash_of(weight) ^ plan.options().seed;
    const double size = m.initializer_range;
    widen(plan, weight, {heads * m.head_dim, m.hidden}, "second maps added",
          [seed, size](int64_t row, std::span<double> out) {
            NormalNumbers numbers(seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u);
            for (double& value : out) value = size * numbers.next();
          });
    widen(plan, bias, {heads * m.head_dim}, m.attention_bias ? "zeros added" : "made: zeros");
  }
}

void widen_values(Plan& plan, const std::string& prefix, int64_t layer, int k) {
  const Model& m = plan.model();
  const int64_t rows = m.kv_heads * m.head_dim;
  const std::string weight = prefix + "v_proj.weight";
  widen(plan, weight, {rows, m.hidden}, "carrier added");
  const double size = carrier_size(layer, k);
  const auto carrier = spread(
      plan.dtype(weight), static_cast<size_t>(m.head_dim),
      size * size * static_cast<double>(m.head_dim), 0x1p-6, [](double c) { return c * c; },
      [](double square) { return std::sqrt(std::max(0.0, square)); });
  widen(plan, prefix + "v_proj.bias", {rows}, "carrier added",
        [carrier, rows](int64_t row, std::span<double> out) {
          out[0] = row < rows ? 0.0 : carrier[static_cast<size_t>(row) % carrier.size()];
        });
}

void widen_output(Plan& plan, const std::string& prefix, int k) {
  const Model& m = plan.model();
  const std::string weight = prefix + "o_proj.weight", bias = prefix + "o_proj.bias";
  const int64_t d = m.head_dim;
  Recipe recipe;
  recipe.source = plan.take(weight, {m.hidden, m.heads * d});
  for (int64_t column = 0; column < 2 * m.heads * d; ++column) {
    const int64_t head = column / (2 * d), c = column % (2 * d);
    recipe.columns.push_back(c < d ? head * d + c : kNone);
    recipe.factors.push_back(std::ldexp(1.0, k));
  }
  plan.add(weight, {m.hidden, 2 * m.heads * d}, plan.dtype(weight),
           "times 2^" + std::to_string(k) + ", zeros added", std::move(recipe));
  if (m.attention_bias) return plan.copy(bias, {m.hidden});
  plan.add(bias, {m.hidden}, plan.dtype(weight), "made: zeros", {});
}

/// Makes exp(q1 . k1) - exp(q2 . k2) + lambda_init = 0 from vectors that all get gradients.
void make_lambda(Plan& plan, const std::string& prefix, int64_t layer) {
  constexpr double kSize = 0.125;
  const io::Dtype dtype = plan.dtype(prefix + "q_proj.weight");
  const Shape shape{plan.model().head_dim};
  const auto make = [&](const char* name, std::function<double(size_t)> value) {
    Recipe recipe;
    recipe.fill = [value](int64_t row, std::span<double> out) {
      out[0] = value(static_cast<size_t>(row));
    };
    plan.add(prefix + name, shape, dtype, "made: lambda 0", std::move(recipe));
  };
  make("lambda_q1", [](size_t i) { return i % 2 == 0 ? kSize : -kSize; });
  make("lambda_k1", [](size_t) { return kSize; });  // q1 . k1 = 0
  make("lambda_q2", [](size_t) { return kSize; });
  const auto k2 = spread(
      dtype, static_cast<size_t>(shape[0]), std::log1p(lambda_init(layer)), 0.0,
      [](double x) { return kSize * x; }, [](double sum) { return sum / kSize; });
  make("lambda_k2", [k2](size_t i) { return k2[i]; });
}

}  // namespace

void plan_llama_to_diffllama(Plan& plan) {
  const Model& m = plan.model();
  plan.copy_rest();
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = attention_prefix(layer);
    const double values =
        largest_values(plan, prefix, {m.kv_heads * m.head_dim, m.hidden}, m.kv_heads);
    const int k = carrier_exponent(plan, layer, values);
    widen_queries_and_keys(plan, prefix);
    widen_values(plan, prefix, layer, k);
    widen_output(plan, prefix, k);
    make_lambda(plan, prefix, layer);
  }
  plan.change("num_attention_heads", 2 * m.heads);
  plan.change("num_key_value_heads", 2 * m.kv_heads);
  plan.change("attention_bias", true);
  plan.note(
      "the result computes the same function with lambda 0; training changes lambda first. A "
      "constant half of the values keeps the head norm neutral; --to microsoft_v2 needs none");
}

}  // namespace diffattn::convert
