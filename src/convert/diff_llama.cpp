// SPDX-License-Identifier: Apache-2.0
//
// Converts a DiffLlama that llama_diff.cpp made from a Llama, and that still computes the same
// function, back to that Llama.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "convert/carrier.h"
#include "convert/numbers.h"
#include "diffattn/io/error.h"

namespace diffattn::convert {
namespace {

constexpr double kSmallestRatio = 512.0;  // of carrier to values; limits the error to 2e-6
constexpr double kLambdaBound = 1e-5;

/// A DiffLlama layer that computes the function of a Llama layer.
struct PlainLayer {
  int k = 0;
  bool has_bias = false;
};

class PlainCheck {
 public:
  PlainCheck(Plan& plan, int64_t layer)
      : plan_(plan), m_(plan.model()), layer_(layer), prefix_(attention_prefix(layer)) {}

  PlainLayer run() {
    check_lambda();
    PlainLayer result;
    result.k = check_carrier();
    check_output();
    result.has_bias = any_bias();
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw io::Error(plan_.source().name(), "layer " + std::to_string(layer_) + ": expected " +
                                               expected + ", got " + got +
                                               ": it does not compute a Llama's function (see "
                                               "docs/convert.md)");
  }
  std::vector<double> numbers(const std::string& name, const Shape& shape) {
    return numbers_of(plan_.source(), plan_.take(prefix_ + name, shape));
  }
  int64_t kv_rows() const { return m_.kv_heads * m_.head_dim; }

  void check_lambda() {
    const auto dot = [&](const char* a, const char* b) {
      const auto x = numbers(a, {m_.head_dim}), y = numbers(b, {m_.head_dim});
      double sum = 0.0;
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
      return sum;
    };
    const double lambda = std::exp(dot("lambda_q1", "lambda_k1")) -
                          std::exp(dot("lambda_q2", "lambda_k2")) + lambda_init(layer_);
    if (!(std::abs(lambda) <= kLambdaBound)) fail("lambda 0", std::to_string(lambda));
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      plan_.leave(prefix_ + name, "lambda is 0");
    }
  }

  int check_carrier() {
    if (!m_.attention_bias) fail("a constant second half of the values", "values without a bias");
    const auto bias = numbers("v_proj.bias", {kv_rows()});
    double squares = 0.0;
    for (int64_t i = 0; i < m_.head_dim; ++i) {
      const double c = bias[static_cast<size_t>(kv_rows() / 2 + i)];
      squares += c * c;
    }
    const double size = std::sqrt(squares / static_cast<double>(m_.head_dim));
    const double exponent = std::log2(size / carrier_size(layer_, 0));
    const double values = largest_values(plan_, prefix_, {kv_rows(), m_.hidden}, m_.kv_heads / 2);
    if (!(std::abs(exponent - std::round(exponent)) < 1e-3) || size < kSmallestRatio * values) {
      fail("a carrier larger than the values in their second half",
           "one of size " + std::to_string(size));
    }
    for (size_t row = bias.size() / 2; row < bias.size(); ++row) {
      const size_t first = row % static_cast<size_t>(m_.head_dim) + bias.size() / 2;
      if (bias[row] != bias[first]) fail("one carrier for all heads", "different ones");
    }
    check_constant();
    return static_cast<int>(std::lround(exponent));
  }

  void check_constant() {
    const std::string name = plan_.take(prefix_ + "v_proj.weight", {kv_rows(), m_.hidden});
    const io::Dtype dtype = plan_.source().at(name).dtype;
    const auto bytes = plan_.source().read_bytes(name);
    for (size_t at = bytes.size() / 2; at < bytes.size(); at += bytes_of(dtype)) {
      if (load_number(dtype, bytes.data() + at) != 0.0) {
        fail("a constant second half of the values", "one that depends on the token");
      }
    }
  }

  void check_output() {
    const Shape shape{m_.hidden, m_.heads * m_.head_dim};
    const std::string name = plan_.take(prefix_ + "o_proj.weight", shape);
    const io::Dtype dtype = plan_.source().at(name).dtype;
    const auto bytes = plan_.source().read_bytes(name);
    for (size_t i = 0; i < bytes.size() / bytes_of(dtype); ++i) {
      const bool second =
          i % static_cast<size_t>(2 * m_.head_dim) >= static_cast<size_t>(m_.head_dim);
      if (second && load_number(dtype, bytes.data() + i * bytes_of(dtype)) != 0.0) {
        fail("an o_proj that ignores the carrier", "one that reads it");
      }
    }
  }

  bool any_bias() {
    const auto is_zero = [](double x) { return x == 0.0; };
    const auto half_is_zero = [&](const char* name, int64_t rows) {
      const auto bias = numbers(name, {rows});
      return std::all_of(bias.begin(), bias.begin() + rows / 2, is_zero);
    };
    return !half_is_zero("q_proj.bias", m_.heads * m_.head_dim) ||
           !half_is_zero("k_proj.bias", kv_rows()) || !half_is_zero("v_proj.bias", kv_rows()) ||
           !std::ranges::all_of(numbers("o_proj.bias", {m_.hidden}), is_zero);
  }

  Plan& plan_;
  const Model& m_;
  int64_t layer_;
  std::string prefix_;
};

void narrow(Plan& plan, int64_t layer, int k, bool biases) {
  const Model& m = plan.model();
  const std::string prefix = attention_prefix(layer);
  const int64_t d = m.head_dim;
  for (const auto& [name, heads] : {std::pair("q_proj", m.heads), std::pair("k_proj", m.kv_heads),
                                    std::pair("v_proj", m.kv_heads)}) {
    const std::string weight = prefix + name + ".weight", bias = prefix + name + ".bias";
    const auto rows = first_rows(heads / 2 * d);
    plan.rows(weight, {heads * d, m.hidden}, weight, rows, "first half");
    if (biases) plan.rows(bias, {heads * d}, bias, rows, "first half");
    if (!biases) plan.leave(bias, "without effect");
  }
  const std::string weight = prefix + "o_proj.weight", bias = prefix + "o_proj.bias";
  Recipe recipe;
  recipe.source = plan.take(weight, {m.hidden, m.heads * d});
  for (int64_t column = 0; column < m.heads / 2 * d; ++column) {
    recipe.columns.push_back(column / d * 2 * d + column % d);
    recipe.factors.push_back(std::ldexp(1.0, -k));
  }
  plan.add(weight, {m.hidden, m.heads / 2 * d}, plan.dtype(weight),
           "first halves times 2^" + std::to_string(-k), std::move(recipe));
  if (biases) return plan.copy(bias, {m.hidden});
  plan.leave(bias, "all zero");
}

}  // namespace

double largest_values(Plan& plan, const std::string& prefix, const Shape& shape, int64_t heads) {
  const Model& m = plan.model();
  const std::string layer = prefix.substr(0, prefix.size() - std::string("self_attn.").size());
  const auto norm =
      numbers_of(plan.source(), plan.take(layer + "input_layernorm.weight", {m.hidden}));
  const std::string name = plan.take(prefix + "v_proj.weight", shape);
  const io::Dtype dtype = plan.source().at(name).dtype;
  const auto bytes = plan.source().read_bytes(name);
  double largest = 0.0;
  std::vector<double> squares;
  for (int64_t head = 0; head < heads; ++head) {
    squares.assign(static_cast<size_t>(m.hidden), 0.0);
    for (int64_t row = head * m.head_dim; row < (head + 1) * m.head_dim; ++row) {
      for (size_t c = 0; c < squares.size(); ++c) {
        const size_t at = static_cast<size_t>(row * m.hidden) + c;
        const double w = load_number(dtype, bytes.data() + at * bytes_of(dtype)) * norm[c];
        squares[c] += w * w;
      }
    }
    largest = std::max(largest, std::ranges::max(squares));
  }
  return std::sqrt(largest * static_cast<double>(m.hidden) / static_cast<double>(m.head_dim));
}

double carrier_size(int64_t layer, int k) {
  return std::ldexp(std::numbers::sqrt2 * (1.0 - lambda_init(layer)), k);
}

void plan_diffllama_to_llama(Plan& plan) {
  const Model& m = plan.model();
  plan.copy_rest();
  std::vector<PlainLayer> layers;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    layers.push_back(PlainCheck(plan, layer).run());
  }
  const bool biases = std::ranges::any_of(layers, &PlainLayer::has_bias);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    narrow(plan, layer, layers[static_cast<size_t>(layer)].k, biases);
  }
  plan.change("num_attention_heads", m.heads / 2);
  plan.change("num_key_value_heads", m.kv_heads / 2);
  plan.change("attention_bias", biases);
}

}  // namespace diffattn::convert
