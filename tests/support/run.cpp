// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run.h"

#include <deque>
#include <ostream>

namespace diffattn::testing {
namespace {

/// Returns a small problem with which to ask a backend whether it takes the element type.
Problem probe(Dtype dtype) {
  static double zero[64] = {};
  Problem p;
  p.dtype = dtype;
  p.batch = p.heads = p.kv_heads = p.seq_q = p.seq_k = 1;
  p.head_dim = p.value_dim = 64;
  p.q1 = p.q2 = p.k1 = p.k2 = View<const void>{zero, 64, 64, 64};
  p.lambda = {zero};
  return p;
}

/// Returns the backend, or the reference if the backend does not take the problem.
const Backend& serving(const Backend& backend, const Problem& problem) {
  return backend.takes(problem) ? backend : cpu_backends().back();
}

/// The outputs of one call, filled with NaN.
class Outputs {
 public:
  Tensor& add(const char* name, Dtype dtype, Dims dims, Layout layout, int64_t offset) {
    tensors_.push_back({name, Tensor(dtype, dims, layout, offset)});
    tensors_.back().tensor.make_output();
    return tensors_.back().tensor;
  }

  void check(const Case& c) const {
    for (const Output& output : tensors_) {
      const std::string damage = output.tensor.damage();
      EXPECT_EQ(damage, "") << "around " << output.name << "; " << c.describe();
    }
  }

 private:
  struct Output {
    const char* name;
    Tensor tensor;
  };
  std::deque<Output> tensors_;  // references stay valid
};

View<void> view_of(const Case& c, const Tensor& tensor) {
  View<void> view = tensor.view();
  if (c.spec.varlen) view.batch_stride = 0;
  return view;
}

View<const void> input_of(const Case& c, const Tensor& tensor) {
  const View<void> view = view_of(c, tensor);
  return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
}

struct ForwardOutputs {
  ForwardOutputs(const Case& c, ForwardParams& p) {
    const auto add = [&](const char* name, Dtype dtype, int64_t width) {
      return &outputs.add(name, dtype, c.query_dims(width), c.spec.out_layout, c.spec.offset);
    };
    out = add("out", c.dtype, c.spec.value_dim);
    lse1 = add("lse1", c.accumulator, 1);
    lse2 = add("lse2", c.accumulator, 1);
    p.out = view_of(c, *out);
    p.lse1 = view_of(c, *lse1);
    p.lse2 = view_of(c, *lse2);
    if (!c.spec.save_o) return;
    o = add("o", c.dtype, c.spec.value_dim);
    o2 = add("o2", c.dtype, c.spec.value_dim);
    p.o = view_of(c, *o);
    p.o2 = view_of(c, *o2);
  }

  Outputs outputs;
  Tensor *out, *lse1, *lse2, *o = nullptr, *o2 = nullptr;
};

/// The gradients that a call computes, indexed as in kGradients.
class GradientOutputs {
 public:
  GradientOutputs(const Case& c, unsigned wanted) : c_(c), wanted_(wanted) {}

  /// Adds a gradient; returns null if it is not wanted.
  const Tensor* add(int which, Dtype dtype, const Dims& dims, Layout layout) {
    if ((wanted_ >> which & 1u) == 0) return nullptr;
    return tensors_[which] =
               &outputs_.add(kGradients[which].name, dtype, dims, layout, c_.spec.offset);
  }

  View<void> view(int which, const Dims& dims) {
    const Tensor* tensor = add(which, c_.dtype, dims, c_.spec.out_layout);
    return tensor == nullptr ? View<void>{} : view_of(c_, *tensor);
  }

  void give_problem_gradients(ProblemGradients& p) {
    p.dq1 = view(0, c_.query_dims(c_.spec.head_dim));
    p.dq2 = view(1, c_.noise_dims(c_.spec.head_dim));
    p.dk1 = view(2, c_.key_dims(c_.spec.head_dim));
    p.dk2 = view(3, c_.key_dims(c_.spec.head_dim));
    const Tensor* dlambda = add(5, c_.accumulator, c_.lambda_dims(), Layout::kBmhd);
    if (dlambda != nullptr) p.dlambda = dlambda->broadcast_view();
    if (c_.spec.mask != MaskKind::kAdditive) return;
    const Tensor* dmask = add(7, c_.accumulator, c_.mask_dims(), Layout::kBmhd);
    if (dmask == nullptr) return;
    p.dmask = dmask->data();
    p.dmask_strides = c_.mask_strides();
  }

  BackwardResult take() const {
    outputs_.check(c_);
    BackwardResult result;
    for (size_t i = 0; i < std::size(kGradients); ++i) {
      if (tensors_[i] != nullptr) result.*kGradients[i].values = tensors_[i]->get();
    }
    return result;
  }

 private:
  const Case& c_;
  const unsigned wanted_;
  Outputs outputs_;
  const Tensor* tensors_[std::size(kGradients)] = {};
};

}  // namespace

void PrintTo(const Target& target, std::ostream* out) {
  *out << target.backend->name << " " << name_of(target.dtype);
}

std::vector<Backend>& extra_backends() {
  static std::vector<Backend> backends;
  return backends;
}

std::vector<Target> targets() {
  std::vector<Target> list;
  const auto add = [&](const Backend& backend) {
    if (!backend.available()) return;
    for (const Dtype dtype :
         {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
      if (backend.takes(probe(dtype))) list.push_back({&backend, dtype});
    }
  };
  for (const Backend& backend : cpu_backends()) add(backend);
  for (const Backend& backend : extra_backends()) add(backend);
  return list;
}

std::string target_name(const ::testing::TestParamInfo<Target>& info) {
  return std::string(info.param.backend->name) + "_" + name_of(info.param.dtype);
}

ForwardResult run_forward(const Backend& backend, const Case& c) {
  ForwardParams p = c.forward();
  ForwardOutputs forward(c, p);
  serving(backend, p).forward(p);
  forward.outputs.check(c);
  ForwardResult result{forward.out->get(), forward.lse1->get(), forward.lse2->get(), {}, {}};
  if (c.spec.save_o) {
    result.o = forward.o->get();
    result.o2 = forward.o2->get();
  }
  return result;
}

BackwardResult run_backward(const Backend& backend, const Case& c, unsigned wanted) {
  ForwardParams f = c.forward();
  ForwardOutputs forward(c, f);
  serving(backend, f).forward(f);

  BackwardParams p = c.backward();
  if (c.spec.save_lse) {
    p.lse1 = input_of(c, *forward.lse1);
    p.lse2 = input_of(c, *forward.lse2);
  }
  if (c.spec.save_o) {
    p.o = input_of(c, *forward.o);
    p.o2 = input_of(c, *forward.o2);
  }
  GradientOutputs gradients(c, wanted);
  gradients.give_problem_gradients(p);
  p.dv = gradients.view(4, c.key_dims(c.spec.value_dim));
  if (c.spec.norm) {
    const Tensor* dweight =
        gradients.add(6, c.accumulator, {1, 1, 1, c.spec.value_dim}, Layout::kBmhd);
    if (dweight != nullptr) p.dnorm_weight = dweight->data();
  }
  serving(backend, p).backward(p);
  return gradients.take();
}

std::vector<double> run_stats(const Backend& backend, const Case& c, double sparse_threshold) {
  StatsParams p;
  static_cast<Problem&>(p) = c.problem();
  p.sparse_threshold = sparse_threshold;
  Outputs outputs;
  Tensor& stats = outputs.add("stats", c.accumulator, c.query_dims(kStatCount), c.spec.out_layout,
                              c.spec.offset);
  p.stats = view_of(c, stats);
  serving(backend, p).stats(p);
  outputs.check(c);
  return stats.get();
}

BackwardResult run_stats_backward(const Backend& backend, const Case& c,
                                  const std::vector<double>& dstats) {
  StatsBackwardParams p;
  static_cast<Problem&>(p) = c.problem();
  Tensor input(c.accumulator, c.query_dims(kStatCount), c.spec.out_layout, c.spec.offset);
  input.set(dstats);
  p.dstats = input_of(c, input);
  GradientOutputs gradients(c, kAllGradients);
  gradients.give_problem_gradients(p);
  serving(backend, p).stats_backward(p);
  return gradients.take();
}

std::vector<double> run_map(const Backend& backend, const Case& c, const Tile& tile) {
  MapParams p;
  static_cast<Problem&>(p) = c.problem();
  p.row_begin = tile.row_begin;
  p.row_end = tile.row_end;
  p.col_begin = tile.col_begin;
  p.col_end = tile.col_end;
  p.rows = tile.rows;
  p.cols = tile.cols;
  Outputs outputs;
  Tensor& map =
      outputs.add("map", c.accumulator, {c.spec.batch, c.spec.heads, 3, tile.rows * tile.cols},
                  Layout::kBmhd, c.spec.offset);
  p.map = map.data();
  serving(backend, p).map(p);
  outputs.check(c);
  return map.get();
}

}  // namespace diffattn::testing
