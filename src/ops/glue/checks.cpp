// SPDX-License-Identifier: Apache-2.0
#include "ops/glue/checks.h"

#include <array>
#include <cmath>
#include <sstream>
#include <string>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/error.h"

namespace diffattn::ops {
namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::string shape(const Tensor& tensor) { return text(tensor.sym_sizes()); }

bool same(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

void check_shape(const char* name, const Tensor& tensor, c10::SymIntArrayRef expected,
                 const char* meaning) {
  if (same(tensor.sym_sizes(), expected)) return;
  throw_argument_error(name, "shape " + text(expected) + " " + meaning, "shape " + shape(tensor));
}

void check_device(const char* name, const Tensor& tensor, const Tensor& q1) {
  if (tensor.device() == q1.device()) return;
  throw_argument_error(name, "a tensor on " + text(q1.device()) + ", like q1",
                       "a tensor on " + text(tensor.device()));
}

void check_defined(const char* name, const Tensor& tensor) {
  if (!tensor.defined()) throw_argument_error(name, "a tensor", "an undefined tensor");
}

void check_floating(const char* name, const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (dtype == torch::kFloat32 || dtype == torch::kFloat64 || dtype == torch::kBFloat16 ||
      dtype == torch::kFloat16) {
    return;
  }
  throw_argument_error(name, "float32, float64, bfloat16 or float16", text(dtype));
}

/// Checks rank, type, device and last stride of an activation tensor.
void check_activation(const char* name, const Tensor& tensor, const Tensor& q1, bool packed) {
  check_defined(name, tensor);
  const int64_t rank = packed ? 3 : 4;
  if (tensor.dim() != rank) {
    throw_argument_error(name,
                         packed ? "3 axes [total, heads, width], packed by cu_seqlens"
                                : "4 axes [batch, sequence, heads, width]",
                         std::to_string(tensor.dim()) + " axes, shape " + shape(tensor));
  }
  check_floating(name, tensor);
  if (tensor.scalar_type() != q1.scalar_type()) {
    throw_argument_error(name, text(q1.scalar_type()) + ", like q1", text(tensor.scalar_type()));
  }
  check_device(name, tensor, q1);
  if (tensor.sym_size(-1) > 1 && tensor.sym_numel() > 0 && tensor.sym_stride(-1) != 1) {
    throw_argument_error(name, "a last stride of 1", "strides " + text(tensor.sym_strides()));
  }
}

/// Checks the type, device and length of an index tensor, if there is one.
void check_index(const char* name, const OptionalTensor& index, const Tensor& q1,
                 const c10::SymInt& length, const char* meaning) {
  if (!index) return;
  if (index->scalar_type() != torch::kInt && index->scalar_type() != torch::kLong) {
    throw_argument_error(name, "int32 or int64", text(index->scalar_type()));
  }
  check_device(name, *index, q1);
  check_shape(name, *index, {length}, meaning);
}

/// Consecutive heads may share a noise head if they read the same kv head.
void check_noise_heads(const ProblemArguments& a) {
  const c10::SymInt heads = a.q1.sym_size(-2), noise_heads = a.q2.sym_size(-2),
                    kv_heads = a.k1.sym_size(-2);
  if (noise_heads == heads) return;
  if (noise_heads > 0 && noise_heads < heads && heads % noise_heads == 0 &&
      noise_heads % kv_heads == 0) {
    return;
  }
  throw_argument_error("q2",
                       "a number of heads that divides q1's " + text(heads) +
                           " and is a multiple of k1's " + text(kv_heads),
                       text(noise_heads) + " heads, shape " + shape(a.q2));
}

void check_lambda(const ProblemArguments& a) {
  check_defined("lambda", a.lambda);
  check_floating("lambda", a.lambda);
  check_device("lambda", a.lambda, a.q1);
  const auto rows = a.q1.sym_sizes().slice(0, a.q1.dim() - 1);  // [B, M, H] or [total, H]
  const auto sizes = a.lambda.sym_sizes();
  const bool number = sizes.size() == 0 || (sizes.size() == 1 && sizes[0] == 1);
  const bool per_head = sizes.size() == 1 && sizes[0] == rows.back();
  if (number || per_head || same(sizes, rows)) return;
  throw_argument_error("lambda",
                       "one number, [H] = [" + text(rows.back()) + "] or " +
                           (a.packed() ? "[total, H] = " : "[B, M, H] = ") + text(rows),
                       "shape " + shape(a.lambda));
}

void check_mask(const ProblemArguments& a, const c10::SymInt& batch) {
  if (!a.mask) return;
  const Tensor& mask = *a.mask;
  if (mask.scalar_type() != torch::kBool) {
    if (!mask.is_floating_point()) {
      throw_argument_error("mask", "bool (true = visible) or a floating type (added to the scores)",
                           text(mask.scalar_type()));
    }
    check_floating("mask", mask);
  }
  check_device("mask", mask, a.q1);
  // A mask for packed tensors has the rows and columns of the longest sequence. Only the data of
  // cu_seqlens gives that length, so HostProblem checks those two axes.
  const std::array<std::optional<c10::SymInt>, 4> full{
      batch, a.q1.sym_size(-2), a.packed() ? std::nullopt : std::optional(a.q1.sym_size(1)),
      a.packed() ? std::nullopt : std::optional(a.sym_keys())};
  bool fits = mask.dim() <= 4;
  for (int64_t axis = 0; fits && axis < mask.dim(); ++axis) {
    const c10::SymInt size = mask.sym_size(mask.dim() - 1 - axis);
    const auto& expected = full[3 - axis];
    fits = size == 1 || !expected || size == *expected;
  }
  if (fits) return;
  const auto axis_text = [&](int i, const char* name) { return full[i] ? text(*full[i]) : name; };
  throw_argument_error("mask",
                       "a shape that broadcasts to [B, H, M, N] = [" + axis_text(0, "B") + ", " +
                           axis_text(1, "H") + ", " + axis_text(2, "M") + ", " + axis_text(3, "N") +
                           "]",
                       "shape " + shape(mask));
}

void check_block_table(const ProblemArguments& a, const c10::SymInt& batch) {
  if (!a.paged()) return;
  const Tensor& table = *a.block_table;
  if (!a.key_lengths) {
    throw_argument_error("block_table", "key_lengths to be given too", "no key_lengths");
  }
  if (table.scalar_type() != torch::kInt && table.scalar_type() != torch::kLong) {
    throw_argument_error("block_table", "int32 or int64", text(table.scalar_type()));
  }
  check_device("block_table", table, a.q1);
  if (table.dim() != 2 || table.sym_size(0) != batch) {
    throw_argument_error("block_table", "shape [" + text(batch) + ", pages of a sequence]",
                         "shape " + shape(table));
  }
  if (a.k1.sym_size(1) < 16 || a.k1.sym_size(1) % 16 != 0) {
    throw_argument_error("k1", "pages of a multiple of 16 rows", "shape " + shape(a.k1));
  }
}

void check_window(const ProblemArguments& a) {
  if (a.window && *a.window < 0) {
    throw_argument_error("window", "a number of columns, at least 0", text(*a.window));
  }
  for (const auto& [name, columns] :
       {std::pair{"window_left", a.window_left}, std::pair{"window_right", a.window_right}}) {
    if (columns < -1) {
      throw_argument_error(name, "a number of columns, or -1 for no bound", text(columns));
    }
    if (a.window && columns != -1) {
      throw_argument_error(name, "no bound beside window = " + text(*a.window), text(columns));
    }
  }
}

void check_finite(const char* name, const std::optional<double>& value) {
  if (!value || std::isfinite(*value)) return;
  throw_argument_error(name, "a finite number", text(*value));
}

}  // namespace

void check(const ProblemArguments& a) {
  if (a.cu_seqlens_q.has_value() != a.cu_seqlens_k.has_value()) {
    throw_argument_error(a.packed() ? "cu_seqlens_k" : "cu_seqlens_q",
                         "both or neither of cu_seqlens_q and cu_seqlens_k",
                         a.packed() ? "only cu_seqlens_q" : "only cu_seqlens_k");
  }
  for (const auto& [name, tensor] : {std::pair{"q1", a.q1}, std::pair{"q2", a.q2},
                                     std::pair{"k1", a.k1}, std::pair{"k2", a.k2}}) {
    check_activation(name, tensor, a.q1, a.packed());
  }
  auto q2_sizes = a.q1.sym_sizes().vec();
  q2_sizes[q2_sizes.size() - 2] = a.q2.sym_size(-2);
  if (!same(a.q2.sym_sizes(), q2_sizes)) check_shape("q2", a.q2, a.q1.sym_sizes(), "like q1");
  check_shape("k2", a.k2, a.k1.sym_sizes(), "like k1");

  const c10::SymInt batch =
      a.packed() ? a.cu_seqlens_q->sym_numel() - 1 : c10::SymInt(a.q1.sym_size(0));
  if (a.packed() && batch < 0) {
    throw_argument_error("cu_seqlens_q", "at least one offset", "none");
  }
  if (!a.packed() && !a.paged() && a.k1.sym_size(0) != batch) {
    throw_argument_error("k1", "batch " + text(batch) + ", like q1", "shape " + shape(a.k1));
  }
  if (a.k1.sym_size(-1) != a.q1.sym_size(-1)) {
    throw_argument_error("k1", "head width " + text(a.q1.sym_size(-1)) + ", like q1",
                         "shape " + shape(a.k1));
  }
  if (a.q1.sym_size(-1) < 1) throw_argument_error("q1", "a head width of at least 1", "0");
  const c10::SymInt heads = a.q1.sym_size(-2), kv_heads = a.k1.sym_size(-2);
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    throw_argument_error("q1", "a number of heads that is a multiple of k1's " + text(kv_heads),
                         text(heads));
  }
  check_noise_heads(a);

  check_lambda(a);
  check_block_table(a, batch);
  check_mask(a, batch);
  check_index("key_starts", a.key_starts, a.q1, batch, "(one per sequence)");
  check_index("key_lengths", a.key_lengths, a.q1, batch, "(one per sequence)");
  check_index("cu_seqlens_q", a.cu_seqlens_q, a.q1, batch + 1, "(offsets of the sequences)");
  check_index("cu_seqlens_k", a.cu_seqlens_k, a.q1, batch + 1, "(as many as cu_seqlens_q)");
  check_finite("scale", a.scale);
  check_finite("scale2", a.scale2);
  check_window(a);
}

void check(const AttentionArguments& a) {
  check(static_cast<const ProblemArguments&>(a));
  check_activation("v", a.v, a.q1, a.packed());
  if (!same(a.v.sym_sizes().slice(0, a.v.dim() - 1), a.k1.sym_sizes().slice(0, a.k1.dim() - 1))) {
    throw_argument_error("v", "all axes but the last as in k1, shape " + shape(a.k1),
                         "shape " + shape(a.v));
  }
  check_finite("norm_eps", a.norm_eps);
  if (a.norm_eps && *a.norm_eps < 0) {
    throw_argument_error("norm_eps", "a number that is not negative", text(*a.norm_eps));
  }
  check_finite("out_scale", a.out_scale);
  if (!a.norm_weight) return;
  if (!a.norm_eps) throw_argument_error("norm_weight", "norm_eps to be given too", "no norm_eps");
  check_floating("norm_weight", *a.norm_weight);
  check_device("norm_weight", *a.norm_weight, a.q1);
  check_shape("norm_weight", *a.norm_weight, {a.v.sym_size(-1)}, "(the width of v)");
}

void check_grid(const MapGrid& grid, int64_t seq_q, int64_t seq_k) {
  check_range("rows", grid.row_begin, grid.row_end, grid.rows, seq_q);
  check_range("columns", grid.col_begin, grid.col_end, grid.cols, seq_k);
}

void check_lse(const Tensor& lse1, const Tensor& lse2, const AttentionArguments& a) {
  auto sizes = a.q1.sym_sizes().slice(0, a.q1.dim() - 1).vec();
  std::swap(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
  const auto type = accumulator_type(a.q1.scalar_type());
  const auto check_one = [&](const char* name, const Tensor& lse) {
    check_device(name, lse, a.q1);
    check_shape(name, lse, sizes, "(one number per head and row)");
    if (lse.scalar_type() == type) return;
    throw_argument_error(name, text(type) + ", as attention_forward returns it",
                         text(lse.scalar_type()));
  };
  check_one("lse1", lse1);
  check_one("lse2", lse2);
}

void check_output(const char* name, const Tensor& tensor, const AttentionArguments& a,
                  std::optional<c10::SymInt> width) {
  auto sizes = a.q1.sym_sizes().vec();
  sizes.back() = width ? *width : a.v.sym_size(-1);
  check_activation(name, tensor, a.q1, a.packed());
  check_shape(name, tensor, sizes, "like the output");
}

}  // namespace diffattn::ops
