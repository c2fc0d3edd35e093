// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/attention_maps.h"

#include <algorithm>
#include <string>

#include "diffattn/error.h"

namespace diffattn::analysis {
namespace {

using torch::Tensor;

/// Entries of a map that we compute at a time.
constexpr int64_t kBlockEntries = int64_t{1} << 20;

std::optional<Tensor> first_row(const std::optional<Tensor>& per_sequence) {
  if (!per_sequence) return std::nullopt;
  return per_sequence->slice(0, 0, 1);
}

/// Returns batch row 0 and one head of a tensor [.., H, ..]. Either axis may have size 1.
Tensor part_of(const Tensor& tensor, int64_t batch_axis, int64_t head_axis, int64_t head) {
  Tensor part = tensor;
  if (batch_axis >= 0 && part.size(batch_axis) > 1) part = part.slice(batch_axis, 0, 1);
  if (head_axis >= 0 && part.size(head_axis) > 1) part = part.slice(head_axis, head, head + 1);
  return part;
}

void check_unpacked(const nn::HeadTensors& call) {
  if (call.q1.dim() == 4) return;
  throw Error("diffattn: maps: expected a batch [B, M, H, D], got packed sequences");
}

/// Returns the call for one head of the first sequence.
nn::HeadTensors one_head(const nn::HeadTensors& call, int64_t head) {
  check_unpacked(call);
  const int64_t heads = call.q1.size(2);
  nn::HeadTensors out = call;
  for (Tensor* tensor : {&out.q1, &out.q2, &out.k1, &out.k2}) {
    const int64_t group = heads / tensor->size(2);  // heads that share a head of this tensor
    *tensor = part_of(*tensor, 0, 2, head / group);
  }
  if (call.lambda.dim() == 3) out.lambda = part_of(call.lambda, 0, 2, head);
  if (call.lambda.dim() == 1) out.lambda = part_of(call.lambda, -1, 0, head);
  out.options.key_starts(first_row(call.options.key_starts()));
  out.options.key_lengths(first_row(call.options.key_lengths()));
  if (const auto& mask = call.options.mask()) {
    // The last axes are M and N; the head and batch axes before them are optional.
    const int64_t axes = mask->dim();
    out.options.mask(part_of(*mask, axes - 4, axes - 3, head));
  }
  return out;
}

int64_t number_at(const std::optional<Tensor>& per_sequence, int64_t otherwise) {
  return per_sequence ? (*per_sequence)[0].item<int64_t>() : otherwise;
}

/// Narrows the ranges to the visible entries of a mask [.., M, N].
void narrow_by_mask(VisibleColumns& visible, const Tensor& mask, int64_t rows, int64_t columns) {
  const bool boolean = mask.scalar_type() == torch::kBool;
  Tensor open = boolean ? mask : mask > -std::numeric_limits<double>::infinity();
  while (open.dim() > 2) open = open[0];
  open = open.expand({rows, columns}).to(torch::kCPU).contiguous();
  const bool* seen = open.const_data_ptr<bool>();
  for (int64_t m = 0; m < rows; ++m) {
    const bool* row = seen + m * columns;
    int64_t& begin = visible.begin[static_cast<size_t>(m)];
    int64_t& end = visible.end[static_cast<size_t>(m)];
    while (begin < end && !row[begin]) ++begin;
    while (begin < end && !row[end - 1]) --end;
  }
}

Tensor map_rows(const nn::HeadTensors& call, int64_t begin, int64_t end) {
  return attention_map(call.q1, call.q2, call.k1, call.k2, call.lambda, call.options,
                       MapOptions().row_begin(begin).row_end(end));
}

std::vector<float> floats_of(const Tensor& tensor) {
  const Tensor flat = tensor.to(torch::kCPU, torch::kFloat32).flatten().contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

}  // namespace

VisibleColumns visible_columns(const nn::HeadTensors& call) {
  check_unpacked(call);
  const AttentionOptions& options = call.options;
  const int64_t rows = call.q1.size(1), columns = call.k1.size(1);
  const Window bounds = options.bounds();
  if (bounds == Window{} && !options.mask() && !options.key_starts() && !options.key_lengths())
    return {};
  const int64_t from = number_at(options.key_starts(), 0);
  const int64_t to = number_at(options.key_lengths(), columns);
  VisibleColumns visible;
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t last = m + columns - rows;  // the column of row m's own token
    const int64_t end = std::clamp<int64_t>(last + bounds.right + 1, 0, to);
    const int64_t begin = last - bounds.left;
    visible.begin.push_back(std::min(end, std::max(from, begin)));
    visible.end.push_back(end);
  }
  if (options.mask()) narrow_by_mask(visible, *options.mask(), rows, columns);
  return visible;
}

HeadMaps head_maps(const LayerCalls& calls, int64_t layer, int64_t head) {
  const torch::NoGradGuard no_grad;
  const nn::HeadTensors call = one_head(calls.at(static_cast<size_t>(layer)), head);
  const int64_t rows = call.q1.size(1), columns = call.k1.size(1);
  HeadMaps maps;
  maps.layer = layer;
  maps.head = head;
  const auto append = [](std::vector<float>& out, const Tensor& plane) {
    const std::vector<float> values = floats_of(plane);
    out.insert(out.end(), values.begin(), values.end());
  };
  maps.p1.reserve(static_cast<size_t>(rows * columns));
  if (!call.single_map) maps.p2.reserve(maps.p1.capacity());
  const int64_t block = std::max<int64_t>(1, kBlockEntries / std::max<int64_t>(1, columns));
  for (int64_t begin = 0; begin < rows; begin += block) {
    const Tensor planes = map_rows(call, begin, std::min(rows, begin + block))[0][0];
    append(maps.p1, planes[0]);
    if (!call.single_map) append(maps.p2, planes[1]);
  }
  if (!call.single_map) maps.lambda = floats_of(call.lambda);
  return maps;
}

std::vector<double> mass_on(const nn::HeadTensors& call, int64_t row,
                            const std::vector<ColumnRange>& columns) {
  const torch::NoGradGuard no_grad;
  check_unpacked(call);
  const Tensor difference = map_rows(call, row, row + 1)[0].select(1, 2);  // [H, 1, N]
  Tensor sums = torch::zeros({difference.size(0)}, difference.options().dtype(torch::kFloat64));
  for (const ColumnRange& range : columns) {
    sums += difference.slice(2, range.begin, range.end).sum({1, 2}, false, torch::kFloat64);
  }
  sums = sums.to(torch::kCPU);
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

}  // namespace diffattn::analysis
