// SPDX-License-Identifier: Apache-2.0
//
// Times forward and backward of whole heads on every CPU backend that this machine has:
//
//   [DIFFATTN_BENCH_THREADS=n] attention_bench [--benchmark_filter=avx512/float32/forward]
//
// Counters: ns_pair = time per visible (query, key) pair of one head; flops counts 8 D (forward) or
// 20 D (backward) FLOP per pair; peak_share = flops / (threads * peak measured just before).

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/cpu/peak.h"
#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"
#include "diffattn/kernels/half.h"

namespace diffattn::bench {
namespace {

/// Tensors [1, N, H, width] of normal random numbers, and parameters that point to them.
template <class T>
class Heads {
 public:
  Heads(Dtype dtype, int64_t seq, int64_t dim, bool causal) : seq_(seq), dim_(dim) {
    Problem problem;
    problem.dtype = dtype;
    problem.batch = 1;
    problem.heads = problem.kv_heads = kHeads;
    problem.seq_q = problem.seq_k = seq;
    problem.head_dim = dim;
    problem.value_dim = 2 * dim;
    problem.q1 = input(dim);
    problem.q2 = input(dim);
    problem.k1 = input(dim);
    problem.k2 = input(dim);
    problem.lambda = {&lambda_};
    problem.scale = problem.scale2 = 1.0 / std::sqrt(static_cast<double>(dim));
    problem.causal = causal;
    static_cast<Problem&>(forward) = problem;
    static_cast<Problem&>(backward) = problem;
    forward.v = backward.v = input(2 * dim);
    backward.dout = input(2 * dim);
    forward.out = output<T>(2 * dim);
    forward.lse1 = output<float>(1);
    forward.lse2 = output<float>(1);
    backward.lse1 = constant(forward.lse1);
    backward.lse2 = constant(forward.lse2);
    backward.dq1 = output<T>(dim);
    backward.dq2 = output<T>(dim);
    backward.dk1 = output<T>(dim);
    backward.dk2 = output<T>(dim);
    backward.dv = output<T>(2 * dim);
    backward.dlambda = {&dlambda_};
    const auto n = static_cast<double>(seq);
    pairs = kHeads * (causal ? n * (n + 1) / 2 : n * n);
  }

  ForwardParams forward;
  BackwardParams backward;
  double pairs;

 private:
  static constexpr int64_t kHeads = 2;

  View<const void> input(int64_t width) {
    std::normal_distribution<float> normal;
    memory_.emplace_back(seq_ * kHeads * width * sizeof(T));
    T* data = reinterpret_cast<T*>(memory_.back().data());
    for (int64_t i = 0; i < seq_ * kHeads * width; ++i) data[i] = T(normal(random_));
    return {data, 0, kHeads * width, width};
  }
  template <class U>
  View<void> output(int64_t width) {
    memory_.emplace_back(seq_ * kHeads * width * sizeof(U));
    return {memory_.back().data(), 0, kHeads * width, width};
  }
  static View<const void> constant(const View<void>& view) {
    return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
  }

  const int64_t seq_, dim_;
  std::mt19937 random_{1};
  std::vector<std::vector<char>> memory_;
  float lambda_ = 0.4f, dlambda_ = 0.0f;
};

int64_t bench_threads() {
  const char* count = std::getenv("DIFFATTN_BENCH_THREADS");
  return count == nullptr ? 1 : std::atoll(count);
}

template <class T>
void run(benchmark::State& state, const Backend& backend, Dtype dtype, bool is_forward) {
  const int64_t seq = state.range(0), dim = state.range(1);
  Heads<T> heads(dtype, seq, dim, state.range(2) != 0);
  cpu::set_thread_count(bench_threads());
  const double peak = peak_flops(backend.name) * static_cast<double>(bench_threads());
  backend.forward(heads.forward);
  for (auto _ : state) {
    if (is_forward) {
      backend.forward(heads.forward);
    } else {
      backend.backward(heads.backward);
    }
  }
  const double calls = static_cast<double>(state.iterations());
  const double flop = (is_forward ? 8.0 : 20.0) * static_cast<double>(dim) * heads.pairs;
  using benchmark::Counter;
  state.counters["ns_pair"] =
      Counter(calls * heads.pairs * 1e-9, Counter::kIsRate | Counter::kInvert);
  state.counters["flops"] = Counter(calls * flop, Counter::kIsRate);
  state.counters["peak_share"] = Counter(calls * flop / peak, Counter::kIsRate);
}

void register_backend(const Backend& backend) {
  for (const bool is_forward : {true, false}) {
    const auto add = [&](const char* type, Dtype dtype, auto run_typed) {
      Problem problem;
      problem.dtype = dtype;
      if (!backend.takes(problem)) return;
      const std::string name =
          std::string(backend.name) + "/" + type + (is_forward ? "/forward" : "/backward");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [=, &backend](benchmark::State& state) { run_typed(state, backend, dtype, is_forward); })
          ->ArgNames({"N", "D", "causal"})
          ->ArgsProduct({{2048}, {64}, {0, 1}})
          ->Args({512, 64, 1})
          ->Args({4096, 64, 1})
          ->Args({2048, 128, 1})
          ->Args({2048, 32, 1})
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    };
    add("float32", Dtype::kFloat32, run<float>);
    add("bfloat16", Dtype::kBFloat16, run<BFloat16>);
  }
}

}  // namespace
}  // namespace diffattn::bench

int main(int argc, char** argv) {
  for (const diffattn::Backend& backend : diffattn::cpu_backends()) {
    const bool is_reference = std::string_view(backend.name) == "reference";
    if (backend.available() && !is_reference) diffattn::bench::register_backend(backend);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
