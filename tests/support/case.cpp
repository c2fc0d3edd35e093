// SPDX-License-Identifier: Apache-2.0
#include "tests/support/case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace diffattn::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> normals(Rng& rng, int64_t count, double deviation = 1.0) {
  std::vector<double> values(count);
  for (double& x : values) x = rng.normal() * deviation;
  return values;
}

const int32_t* as_index(const Memory& memory) {
  return reinterpret_cast<const int32_t*>(memory.data());
}

Memory index_memory(const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
  Memory memory(bytes);
  std::memcpy(memory.data(), values.data(), static_cast<size_t>(bytes));
  return memory;
}

/// Returns the dense index of an element of `dims`, in which dimensions of size 1 are broadcast.
int64_t broadcast_index(const Dims& dims, int64_t b, int64_t l, int64_t h, int64_t w) {
  const auto within = [](int64_t i, int64_t size) { return size == 1 ? 0 : i; };
  return ((within(b, dims.batch) * dims.seq + within(l, dims.seq)) * dims.heads +
          within(h, dims.heads)) *
             dims.width +
         within(w, dims.width);
}

}  // namespace

Case::Case(const Spec& given, Dtype type)
    : spec(given), dtype(type), accumulator(accumulator_of(type)) {
  Rng rng(spec.seed ^ 0xca5e);
  draw_indices(rng);
  const int64_t query_count = rows_q() * spec.heads, key_count = rows_k() * spec.kv_heads;
  values.q1 = normals(rng, query_count * spec.head_dim, spec.logit_spread);
  values.q2 = normals(rng, rows_q() * noise_heads() * spec.head_dim, spec.logit_spread);
  values.k1 = normals(rng, key_count * spec.head_dim);
  values.k2 = normals(rng, key_count * spec.head_dim);
  values.v = normals(rng, key_count * spec.value_dim);
  values.dout = normals(rng, query_count * spec.value_dim);
  if (spec.norm && spec.norm_weight) {
    for (int64_t c = 0; c < spec.value_dim; ++c) {
      values.norm_weight.push_back(rng.uniform(0.3, 1.7) * (rng.chance(0.2) ? -1.0 : 1.0));
    }
  }
  build_tensors();
  for (int64_t i = 0; i < lambda_.dims().count(); ++i) {
    values.lambda.push_back(rng.uniform(spec.lambda_low, spec.lambda_high));
  }
  draw_mask(rng);
  store();
}

void Case::draw_indices(Rng& rng) {
  std::vector<int64_t> lengths(spec.batch, spec.seq_k);
  if (spec.varlen) {
    values.cu_seqlens_q.assign(1, 0);
    values.cu_seqlens_k.assign(1, 0);
    int64_t longest_q = 0, longest_k = 0;
    for (int64_t b = 0; b < spec.batch; ++b) {
      const int64_t length_q =
          rng.chance(0.1) ? 0 : rng.integer(1, std::max<int64_t>(1, spec.seq_q));
      lengths[b] = spec.seq_q == spec.seq_k ? length_q : rng.integer(0, spec.seq_k);
      longest_q = std::max(longest_q, length_q);
      longest_k = std::max(longest_k, lengths[b]);
      values.cu_seqlens_q.push_back(static_cast<int32_t>(values.cu_seqlens_q.back() + length_q));
      values.cu_seqlens_k.push_back(static_cast<int32_t>(values.cu_seqlens_k.back() + lengths[b]));
    }
    spec.seq_q = longest_q;
    spec.seq_k = longest_k;
  }
  for (int64_t b = 0; b < spec.batch; ++b) {
    const int64_t length = rng.chance(0.1) ? 0 : rng.integer((lengths[b] + 1) / 2, lengths[b]);
    if (spec.key_lengths) values.key_lengths.push_back(static_cast<int32_t>(length));
    // Sometimes the start is beyond the length, so that the batch entry sees nothing at all.
    const int64_t start = rng.chance(0.1) ? lengths[b] : rng.integer(0, (lengths[b] + 1) / 2);
    if (spec.key_starts) values.key_starts.push_back(static_cast<int32_t>(start));
  }
}

void Case::build_tensors() {
  const auto tensor = [&](Dims dims, Layout layout) {
    return Tensor(dtype, dims, layout, spec.offset);
  };
  q1_ = tensor(query_dims(spec.head_dim), spec.query_layout);
  if (!spec.shared_q) q2_ = tensor(noise_dims(spec.head_dim), spec.query_layout);
  k1_ = tensor(key_dims(spec.head_dim), spec.key_layout);
  if (!spec.shared_k) k2_ = tensor(key_dims(spec.head_dim), spec.key_layout);
  v_ = tensor(key_dims(spec.value_dim), spec.value_layout);
  dout_ = tensor(query_dims(spec.value_dim), spec.out_layout);
  Dims lambda_dims{1, 1, 1, 1};
  if (spec.lambda_shape != LambdaShape::kScalar) lambda_dims.heads = spec.heads;
  if (spec.lambda_shape == LambdaShape::kPerToken) lambda_dims = query_dims(1);
  lambda_ = Tensor(accumulator, lambda_dims, Layout::kBmhd, spec.offset);
  if (!values.norm_weight.empty()) {
    norm_weight_ = Tensor(accumulator, {1, 1, 1, spec.value_dim}, Layout::kBmhd, spec.offset);
  }
  if (spec.mask == MaskKind::kNone) return;
  mask_dims_ = {spec.mask_batch ? spec.batch : 1, spec.mask_row ? spec.seq_q : 1,
                spec.mask_head ? spec.heads : 1, spec.mask_column ? spec.seq_k : 1};
  if (spec.mask_transposed) std::swap(mask_dims_.seq, mask_dims_.width);
}

void Case::draw_mask(Rng& rng) {
  if (spec.mask == MaskKind::kNone) return;
  values.mask.resize(mask_dims_.count());
  for (double& x : values.mask) {
    const bool hidden = rng.chance(spec.mask_hidden);
    const double bias = rng.normal();
    x = hidden ? -kInfinity : spec.mask == MaskKind::kAdditive ? bias : 0.0;
  }
}

void Case::store() {
  const auto exchange = [](Tensor& tensor, std::vector<double>& numbers) {
    tensor.set(numbers);
    numbers = tensor.get();
  };
  exchange(q1_, values.q1);
  exchange(k1_, values.k1);
  if (spec.shared_q) {
    values.q2 = values.q1;
  } else {
    exchange(q2_, values.q2);
  }
  if (spec.shared_k) {
    values.k2 = values.k1;
  } else {
    exchange(k2_, values.k2);
  }
  exchange(v_, values.v);
  exchange(dout_, values.dout);
  exchange(lambda_, values.lambda);
  if (!values.norm_weight.empty()) exchange(norm_weight_, values.norm_weight);
  store_mask();
  key_starts_ = index_memory(values.key_starts);
  key_lengths_ = index_memory(values.key_lengths);
  cu_seqlens_q_ = index_memory(values.cu_seqlens_q);
  cu_seqlens_k_ = index_memory(values.cu_seqlens_k);
}

void Case::store_mask() {
  if (spec.mask == MaskKind::kAdditive) {
    additive_ = Tensor(spec.mask_dtype, mask_dims_, Layout::kBmhd);
    additive_.set(values.mask);
    values.mask = additive_.get();
  } else if (spec.mask == MaskKind::kBoolean) {
    boolean_ = Memory(mask_dims_.count());
    // Any non-zero byte means "visible", not only 1.
    constexpr uint8_t kTrue[] = {1, 255, 2, 128};
    for (size_t i = 0; i < values.mask.size(); ++i) {
      boolean_.data()[i] = std::byte{values.mask[i] == 0.0 ? kTrue[i % 4] : uint8_t{0}};
    }
  }
}

Problem Case::problem() const {
  Problem p;
  p.dtype = dtype;
  p.batch = spec.batch;
  p.heads = spec.heads;
  p.kv_heads = spec.kv_heads;
  p.noise_heads = spec.noise_heads;
  p.seq_q = spec.seq_q;
  p.seq_k = spec.seq_k;
  p.head_dim = spec.head_dim;
  p.value_dim = spec.value_dim;
  const auto packed = [&](View<const void> view) {
    if (spec.varlen) view.batch_stride = 0;
    return view;
  };
  p.q1 = packed(q1_.input());
  p.q2 = spec.shared_q ? p.q1 : packed(q2_.input());
  p.k1 = packed(k1_.input());
  p.k2 = spec.shared_k ? p.k1 : packed(k2_.input());
  const View<void> lambda = lambda_.broadcast_view();
  p.lambda = {lambda.data, lambda.batch_stride, lambda.seq_stride, lambda.head_stride};
  p.scale = spec.scale;
  p.scale2 = spec.scale2;
  p.causal = spec.causal;
  p.window = spec.window;
  p.key_starts = as_index(key_starts_);
  p.key_lengths = as_index(key_lengths_);
  p.align_to_key_lengths = spec.align_to_key_lengths;
  p.cu_seqlens_q = as_index(cu_seqlens_q_);
  p.cu_seqlens_k = as_index(cu_seqlens_k_);
  if (spec.varlen) {
    p.total_q = values.cu_seqlens_q.back();
    p.total_k = values.cu_seqlens_k.back();
  }
  p.mask.kind = spec.mask;
  p.mask.dtype = spec.mask_dtype;
  if (spec.mask == MaskKind::kBoolean) p.mask.data = boolean_.data();
  if (spec.mask == MaskKind::kAdditive) p.mask.data = additive_.data();
  if (spec.mask != MaskKind::kNone) p.mask.strides = mask_strides();
  return p;
}

ForwardParams Case::forward() const {
  ForwardParams p;
  static_cast<Problem&>(p) = problem();
  p.v = v_.input();
  if (spec.varlen) p.v.batch_stride = 0;
  p.epilogue.norm = spec.norm;
  p.epilogue.norm_eps = spec.norm_eps;
  if (norm_weight_) p.epilogue.norm_weight = norm_weight_.data();
  p.epilogue.out_scale = spec.out_scale;
  return p;
}

BackwardParams Case::backward() const {
  BackwardParams p;
  static_cast<Problem&>(p) = problem();
  const ForwardParams f = forward();
  p.v = f.v;
  p.epilogue = f.epilogue;
  p.dout = dout_.input();
  if (spec.varlen) p.dout.batch_stride = 0;
  return p;
}

MaskStrides Case::mask_strides() const {
  const Dims& d = mask_dims_;  // [batch, seq, heads, width], dense
  const auto stride = [](int64_t size, int64_t dense) { return size == 1 ? 0 : dense; };
  MaskStrides strides;
  strides.batch = stride(d.batch, d.seq * d.heads * d.width);
  strides.head = stride(d.heads, d.width);
  const int64_t outer = stride(d.seq, d.heads * d.width), inner = stride(d.width, 1);
  strides.row = spec.mask_transposed ? inner : outer;
  strides.column = spec.mask_transposed ? outer : inner;
  return strides;
}

std::string Case::describe() const { return std::string(name_of(dtype)) + " " + to_string(spec); }

Dims Case::query_dims(int64_t width) const {
  if (spec.varlen) return {1, rows_q(), spec.heads, width};
  return {spec.batch, spec.seq_q, spec.heads, width};
}

Dims Case::noise_dims(int64_t width) const {
  Dims dims = query_dims(width);
  dims.heads = noise_heads();
  return dims;
}

Dims Case::key_dims(int64_t width) const {
  if (spec.varlen) return {1, rows_k(), spec.kv_heads, width};
  return {spec.batch, spec.seq_k, spec.kv_heads, width};
}

int64_t Case::rows_q() const {
  return spec.varlen ? values.cu_seqlens_q.back() : spec.batch * spec.seq_q;
}
int64_t Case::rows_k() const {
  return spec.varlen ? values.cu_seqlens_k.back() : spec.batch * spec.seq_k;
}
int64_t Case::len_q(int64_t b) const {
  return spec.varlen ? values.cu_seqlens_q[b + 1] - values.cu_seqlens_q[b] : spec.seq_q;
}
int64_t Case::len_k(int64_t b) const {
  return spec.varlen ? values.cu_seqlens_k[b + 1] - values.cu_seqlens_k[b] : spec.seq_k;
}
int64_t Case::row_q(int64_t b, int64_t m) const {
  return (spec.varlen ? values.cu_seqlens_q[b] : b * spec.seq_q) + m;
}
int64_t Case::row_k(int64_t b, int64_t n) const {
  return (spec.varlen ? values.cu_seqlens_k[b] : b * spec.seq_k) + n;
}

int64_t Case::lambda_index(int64_t b, int64_t m, int64_t h) const {
  if (spec.lambda_shape == LambdaShape::kScalar) return 0;
  if (spec.lambda_shape == LambdaShape::kPerHead) return h;
  return row_q(b, m) * spec.heads + h;
}

int64_t Case::mask_index(int64_t b, int64_t h, int64_t m, int64_t n) const {
  return spec.mask_transposed ? broadcast_index(mask_dims_, b, n, h, m)
                              : broadcast_index(mask_dims_, b, m, h, n);
}

}  // namespace diffattn::testing
