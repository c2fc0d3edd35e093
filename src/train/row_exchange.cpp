// SPDX-License-Identifier: Apache-2.0
#include "train/row_exchange.h"

#include <map>

namespace diffattn::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Move = RowExchange::Move;

Move way_back(Move kind) {
  switch (kind) {
    case Move::kToHeads: return Move::kToRows;
    case Move::kToRows: return Move::kToHeads;
    case Move::kGather: return Move::kSumToRows;
    case Move::kSumToRows: break;
  }
  return Move::kGather;
}

class MoveFunction : public torch::autograd::Function<MoveFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x,
                        const c10::intrusive_ptr<RowExchange>& exchange, int64_t kind) {
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    ctx->saved_data["kind"] = kind;
    return exchange->move(static_cast<Move>(kind), x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto exchange =
        c10::static_intrusive_pointer_cast<RowExchange>(ctx->saved_data["exchange"].toCapsule());
    const auto kind = static_cast<Move>(ctx->saved_data["kind"].toInt());
    return {exchange->move(way_back(kind), grads[0]), Tensor(), Tensor()};
  }
};

}  // namespace

RowExchange::RowExchange(std::shared_ptr<parallel::Collective> world, int64_t size, int64_t tokens,
                         bool zigzag)
    : world_(std::move(world)), size_(size), rank_(world_->rank() % size) {
  for (int64_t i = 0; i < size; ++i) {
    ranges_.push_back(parallel::token_ranges(tokens, i, size, zigzag));
    int64_t count = 0;
    for (const TokenRange& range : ranges_.back()) count += range.size();
    counts_.push_back(count);
  }
}

std::vector<Tensor> RowExchange::exchange(const std::vector<Tensor>& parts,
                                          const std::vector<Shape>& shapes) const {
  // Ranks outside the group get and send nothing.
  const auto ranks = static_cast<size_t>(world_->size());
  const auto first = static_cast<size_t>(world_->rank() - rank_);
  std::vector<int64_t> in_counts(ranks, 0), out_counts(ranks, 0);
  std::vector<Tensor> flat;
  int64_t received = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    flat.push_back(parts[i].reshape({-1}));
    in_counts[first + i] = flat.back().numel();
    out_counts[first + i] = c10::multiply_integers(shapes[i]);
    received += out_counts[first + i];
  }
  const Tensor sent = torch::cat(flat);
  const Tensor all = torch::empty({received}, sent.options());
  world_->exchange(all, sent, out_counts, in_counts).wait();
  std::vector<Tensor> result;
  int64_t begin = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    result.push_back(all.narrow(0, begin, out_counts[first + i]).view(shapes[i]));
    begin += out_counts[first + i];
  }
  return result;
}

/// Returns the rows of each process of the group, of [B, all tokens, H, D].
std::vector<Tensor> RowExchange::parts_by_rows(const Tensor& all) const {
  std::vector<Tensor> parts;
  for (const auto& ranges : ranges_) {
    std::vector<Tensor> pieces;
    for (const TokenRange& range : ranges) pieces.push_back(all.slice(1, range.begin, range.end));
    parts.push_back(pieces.size() == 1 ? pieces.front() : torch::cat(pieces, 1));
  }
  return parts;
}

/// Returns [B, all tokens, H, D] from the rows of each process of the group.
Tensor RowExchange::in_order(const std::vector<Tensor>& parts) const {
  std::map<int64_t, Tensor> by_begin;  // an empty range has no place
  for (size_t i = 0; i < parts.size(); ++i) {
    int64_t at = 0;
    for (const TokenRange& range : ranges_[i]) {
      if (range.size() > 0) by_begin[range.begin] = parts[i].narrow(1, at, range.size());
      at += range.size();
    }
  }
  std::vector<Tensor> pieces;
  for (const auto& [begin, rows] : by_begin) pieces.push_back(rows);
  return torch::cat(pieces, 1);
}

Tensor RowExchange::move(Move kind, const Tensor& x) const {
  const torch::NoGradGuard no_grad;
  const int64_t batch = x.size(0), heads = x.size(2), width = x.size(3);
  const int64_t own = counts_[static_cast<size_t>(rank_)];
  std::vector<Shape> shapes;
  switch (kind) {
    case Move::kToHeads: {
      for (const int64_t count : counts_) shapes.push_back({batch, count, heads / size_, width});
      return in_order(exchange(x.split(heads / size_, 2), shapes));
    }
    case Move::kToRows: {
      shapes.assign(counts_.size(), {batch, own, heads, width});
      return torch::cat(exchange(parts_by_rows(x), shapes), 2);
    }
    case Move::kGather: {
      for (const int64_t count : counts_) shapes.push_back({batch, count, heads, width});
      return in_order(exchange(std::vector<Tensor>(counts_.size(), x), shapes));
    }
    case Move::kSumToRows: break;
  }
  shapes.assign(counts_.size(), {batch, own, heads, width});
  return torch::stack(exchange(parts_by_rows(x), shapes)).sum(0);
}

Tensor moved(const c10::intrusive_ptr<RowExchange>& exchange, Move kind, const Tensor& x) {
  return MoveFunction::apply(x, exchange, static_cast<int64_t>(kind));
}

}  // namespace diffattn::train
