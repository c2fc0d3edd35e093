// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/host/head.h"

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {
namespace {

Matrix matrix_of(const View<const void>& view, const Problem& problem, const Head& head,
                 int64_t width) {
  return {.data = at(view, problem.dtype, head.b, head.seq.k_begin, head.g),
          .stride = view.seq_stride,
          .dtype = problem.dtype,
          .rows = head.seq.seq_k,
          .width = width};
}

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

struct Host;  // tag for Carver

}  // namespace

int64_t element_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 8;
    case Dtype::kFloat32: return 4;
    case Dtype::kBFloat16:
    case Dtype::kFloat16: return 2;
  }
  return 0;
}

std::vector<Head> heads_of(const Problem& problem, bool empty) {
  std::vector<Head> heads;
  const int64_t group = problem.kv_heads == 0 ? 0 : problem.heads / problem.kv_heads;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence seq = sequence_of(problem, b);
    for (int64_t g = 0; g < problem.kv_heads; ++g) {
      if (seq.seq_q == 0 && !empty) continue;
      heads.push_back(
          {.b = b, .g = g, .seq = seq, .first_head = g * group, .rows = group * seq.seq_q});
    }
  }
  return heads;
}

bool PackPlan::shared_keys() const {
  const View<const void>&k1 = problem.k1, &k2 = problem.k2;
  return k1.data == k2.data && k1.batch_stride == k2.batch_stride &&
         k1.seq_stride == k2.seq_stride && k1.head_stride == k2.head_stride;
}

int64_t PackPlan::panels(const Head& head) const { return ceil_div(head.seq.seq_k, code.columns); }

PackedKeys PackPlan::rows_only(const Head& head) const {
  PackedKeys keys{};
  keys.k_rows[0] = matrix_of(problem.k1, problem, head, problem.head_dim);
  keys.k_rows[1] = matrix_of(problem.k2, problem, head, problem.head_dim);
  keys.v_rows = matrix_of(v, problem, head, problem.value_dim);
  return keys;
}

PackedKeys PackPlan::place(const Head& head, char* memory) const {
  Carver<Host> carver{memory};
  PackedKeys keys{};
  const int64_t columns = code.columns, d = problem.head_dim, dv = problem.value_dim;
  keys.panels = panels(head);
  const int64_t padded = code.depth(keys.panels * columns);
  const bool shared = shared_keys();
  for (int m = 0; m < 2; ++m) {
    keys.k_rows[m] = matrix_of(m == 0 ? problem.k1 : problem.k2, problem, head, d);
    if (m == 1 && shared) {
      keys.kt[1] = keys.kt[0];
      keys.k[1] = keys.k[0];
      keys.odd_k[1] = keys.odd_k[0];
      continue;
    }
    keys.kt[m] = carver.take<uint32_t>(keys.panels * code.depth(d) * columns);
    if (!backward) continue;
    keys.k[m] = carver.take<uint32_t>(ceil_div(d, columns) * padded * columns);
    keys.odd_k[m] = carver.take<uint32_t>(keys.panels);
  }
  if (v.data != nullptr) keys.v_rows = matrix_of(v, problem, head, dv);
  if (rows_of_v) {
    keys.v = carver.take<uint32_t>(ceil_div(dv, columns) * padded * columns);
    keys.odd_v = carver.take<uint32_t>(keys.panels);
  }
  if (backward) keys.vt = carver.take<uint32_t>(keys.panels * code.depth(dv) * columns);
  return keys;
}

int64_t PackPlan::bytes(const Head& head) const {
  const int64_t columns = code.columns, d = problem.head_dim, dv = problem.value_dim;
  const int64_t count = panels(head), padded = code.depth(count * columns);
  const int64_t maps = shared_keys() ? 1 : 2;
  int64_t operands = maps * count * code.depth(d) * columns;
  if (rows_of_v) operands += ceil_div(dv, columns) * padded * columns + count;
  if (backward) {
    operands += maps * (ceil_div(d, columns) * padded * columns + count);
    operands += count * code.depth(dv) * columns;
  }
  constexpr int64_t kArrays = 16;  // at most; Carver rounds each up to a cache line
  return operands * 4 + kArrays * 64;
}

void PackPlan::pack(const Head& head, const PackedKeys& keys, int64_t panel) const {
  const int64_t columns = code.columns, d = problem.head_dim, dv = problem.value_dim;
  const int64_t first = head.seq.first_key, end = head.seq.end_key;
  const int64_t column_stride = code.depth(keys.panels * columns) * columns;
  const int64_t row_at = code.depth(panel * columns) * columns;
  const auto operand = [](const void* data, int64_t i) {
    return static_cast<uint32_t*>(const_cast<void*>(data)) + i;
  };
  for (int m = 0; m < (shared_keys() ? 1 : 2); ++m) {
    code.pack_transposed(&keys.k_rows[m], first, end, panel,
                         operand(keys.kt[m], panel * code.depth(d) * columns));
    if (!backward) continue;
    *operand(keys.odd_k[m], panel) = code.pack_rows(&keys.k_rows[m], first, end, panel,
                                                    column_stride, operand(keys.k[m], row_at));
  }
  if (rows_of_v) {
    *operand(keys.odd_v, panel) =
        code.pack_rows(&keys.v_rows, first, end, panel, column_stride, operand(keys.v, row_at));
  }
  if (backward) {
    code.pack_transposed(&keys.v_rows, first, end, panel,
                         operand(keys.vt, panel * code.depth(dv) * columns));
  }
}

Row row_of(const Problem& problem, const Head& head, int64_t r) {
  const int64_t h = head.head(r), m = head.query(r), l = head.seq.q_begin + m;
  const Columns columns = columns_of(problem, head.seq, m);
  Row row{};
  row.q[0] = at(problem.q1, problem.dtype, head.b, l, h);
  row.q[1] = at(problem.q2, problem.dtype, head.b, l, h / problem.noise_group());
  if (columns.begin < columns.end) {
    row.begin = columns.begin;
    row.end = columns.end;
  }
  row.lambda = *problem.lambda.as<const float>().at(head.b, l, h);
  const Mask& mask = problem.mask;
  if (mask.kind != MaskKind::kNone) {
    const int64_t size = mask.kind == MaskKind::kBoolean ? 1 : element_size(mask.dtype);
    const MaskStrides& stride = mask.strides;
    row.mask = static_cast<const char*>(mask.data) +
               (head.b * stride.batch + h * stride.head + m * stride.row) * size;
  }
  return row;
}

MapsBlock maps_of(const Problem& problem, const PackedKeys& keys, int64_t map_panels) {
  MapsBlock block{};
  block.heads = 1;
  block.dtype = problem.dtype;
  block.head_dim = problem.head_dim;
  block.keys = &keys;
  block.scale[0] = static_cast<float>(problem.scale / kLn2);
  block.scale[1] = static_cast<float>(problem.scale2 / kLn2);
  block.mask_kind = problem.mask.kind;
  block.mask_dtype = problem.mask.dtype;
  block.mask_stride = problem.mask.strides.column;
  block.map_panels = map_panels;
  return block;
}

std::vector<float> gain_of(const Epilogue& epilogue, int64_t value_dim) {
  std::vector<float> gain(value_dim, static_cast<float>(epilogue.out_scale));
  if (!epilogue.norm || epilogue.norm_weight == nullptr) return gain;
  const float* weight = static_cast<const float*>(epilogue.norm_weight);
  for (int64_t c = 0; c < value_dim; ++c) {
    gain[c] = static_cast<float>(epilogue.out_scale * static_cast<double>(weight[c]));
  }
  return gain;
}

int64_t panels_in_key_blocks(int64_t keys, const TileCode& code) {
  return ceil_div(keys, kKeyBlock) * (kKeyBlock / code.columns);
}

}  // namespace diffattn::cpu
