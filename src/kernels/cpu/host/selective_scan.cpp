// SPDX-License-Identifier: Apache-2.0
//
// The selective scan in float32 (equations in selective_scan.h). A vector holds the same state
// number of 16 channels, so that no sum crosses lanes. Tokens come in chunks: a chunk's rows of B
// and C stay in the cache for all blocks of 16 channels of a task.
//
// A block first computes the step sizes dt of a chunk. The states of a token would otherwise wait
// for the long chain of operations of softplus, which the processor cannot begin a token ahead.
// Tasks hold A log2(e), so that exp(dt A) is a power of two.
//
// The backward pass keeps the states before each chunk, then takes the chunks from the last to the
// first and recomputes the states within one. Tasks split the channels and never depend on the
// number of threads. Each has its own sums of dB and dC, which are added up in order.

#include "kernels/selective_scan.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/host/lane_math.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int64_t kTokens = 64;     // of a chunk: 64 * 16 states * 16 lanes * 4 B = 64 KB of states
constexpr int64_t kTaskBlocks = 8;  // blocks of a forward task: a line of 512 B of u in each token
/// Tokens ahead whose rows are prefetched: rows lie in different pages, which no hardware
/// prefetches.
constexpr int64_t kAhead = 24;
constexpr int64_t kBackwardTasks = 16;
constexpr int kUsualStates = 16;  // of published models; their states stay in registers

using Inputs = ScanInputs<float>;

/// A block of up to 16 channels of one sequence, and tokens [begin, end) of it.
struct Block {
  const Inputs* in = nullptr;
  const Vector* a = nullptr;  // [states]: A log2(e)
  int64_t batch = 0, channel = 0, count = kLanes;
  int64_t begin = 0, end = 0;

  int64_t row(int64_t t) const { return batch * in->length + t; }
  bool starts_at(int64_t t) const { return in->starts != nullptr && in->starts[row(t)] != 0; }
  [[gnu::always_inline]] inline Vector u(int64_t t) const {
    return lanes_of(in->u + row(t) * in->u_stride + channel, count);
  }
  [[gnu::always_inline]] inline Vector delta(int64_t t) const {
    return lanes_of(in->delta + row(t) * in->delta_stride + channel, count);
  }
  const float* b(int64_t t) const { return in->b + row(t) * in->b_stride; }
  const float* c(int64_t t) const { return in->c + row(t) * in->c_stride; }
};

/// True if exp(dt A) never exceeds 1; false with NaN.
bool falls(const Block& k) {
  bool all = true;
  for (int64_t n = 0; n < k.in->states; ++n) {
    for (int j = 0; j < kLanes; ++j) all &= k.a[n][j] <= 0.0f;
  }
  return all;
}

/// (1) dt of tokens [begin, end).
[[gnu::always_inline]] inline void step_sizes(const Block& k, Vector* dt) {
  const Inputs& in = *k.in;
  for (int64_t t = k.begin; t < k.end; ++t) {
    const int64_t ahead = k.row(std::min(t + kAhead, in.length - 1));
    __builtin_prefetch(in.u + ahead * in.u_stride + k.channel);
    __builtin_prefetch(in.delta + ahead * in.delta_stride + k.channel);
    __builtin_prefetch(in.u + k.row(t) * in.u_stride + k.channel + kLanes);  // of the next block
    __builtin_prefetch(in.delta + k.row(t) * in.delta_stride + k.channel + kLanes);
    dt[t - k.begin] = softplus(k.delta(t));
  }
}

/// Computes scan_tokens() for S states, or any number if S is 0.
template <int S, bool kFalling>
[[gnu::always_inline]] inline void scan_states(const Block& k, Vector* states, float* y) {
  const Inputs& in = *k.in;
  const int64_t count = S > 0 ? S : in.states;
  Vector dt[kTokens], held[S > 0 ? S : 1];
  step_sizes(k, dt);
  Vector* const s = S > 0 ? held : states;
  for (int64_t n = 0; n < S; ++n) held[n] = states[n];
  const Vector d = lanes_of(in.d + k.channel, k.count);
  for (int64_t t = k.begin; t < k.end; ++t) {
    if (k.starts_at(t)) {
      for (int64_t n = 0; n < count; ++n) s[n] = Vector{};
    }
    const float *b = k.b(t), *c = k.c(t);
    const Vector u = k.u(t), step = dt[t - k.begin], input = step * u;
    Vector sum{};
#pragma GCC unroll 16
    for (int64_t n = 0; n < count; ++n) {
      s[n] = power_of_two<kFalling>(step * k.a[n]) * s[n] + input * b[n];  // (2)
      sum += c[n] * s[n];                                                  // (3)
    }
    store_lanes(sum + d * u, k.count, y + k.row(t) * in.channels + k.channel);
  }
  for (int64_t n = 0; n < S; ++n) states[n] = held[n];
}

/// Runs tokens [begin, end), with `s` [states] before the first and after the last one.
DIFFATTN_EACH_ISA void scan_tokens(const Block& k, Vector* s, float* y) {
  if (k.in->states == kUsualStates && k.count == kLanes && falls(k)) {
    Block full = k;
    full.count = kLanes;  // tells the compiler
    scan_states<kUsualStates, true>(full, s, y);
  } else {
    scan_states<0, false>(k, s, y);
  }
}

/// As scan_tokens, without y. Writes the states before each token and the decays to `before` and
/// `decay` [tokens, states], or neither if they are null.
DIFFATTN_EACH_ISA void replay_tokens(const Block& k, Vector* s, Vector* before, Vector* decay) {
  const int64_t states = k.in->states;
  Vector dt[kTokens];
  step_sizes(k, dt);
  for (int64_t t = k.begin; t < k.end; ++t) {
    const int64_t at = (t - k.begin) * states;
    const Vector step = dt[t - k.begin], input = step * k.u(t);
    const float* const b = k.b(t);
    const bool starts = k.starts_at(t);
    for (int64_t n = 0; n < states; ++n) {
      const Vector e = power_of_two<false>(step * k.a[n]), old = starts ? Vector{} : s[n];
      s[n] = e * old + input * b[n];
      if (before == nullptr) continue;
      before[at + n] = old;
      decay[at + n] = e;
    }
  }
}

/// Sums over the tokens and channels of a task.
struct Sums {
  Vector* da = nullptr;                 // [states] of this block
  Vector* dd = nullptr;                 // of this block
  Vector *db = nullptr, *dc = nullptr;  // [tokens of the chunk, states]
};

/// Takes tokens [begin, end) backwards; `g` [states] carries exp(dt A) g of the token after them.
DIFFATTN_EACH_ISA void unscan_tokens(const Block& k, const ScanBackward<float>& p,
                                     const Vector* before, const Vector* decay, Vector* g,
                                     const Sums& sums) {
  const Inputs& in = *k.in;
  Vector dt[kTokens];
  step_sizes(k, dt);
  const Vector d = lanes_of(in.d + k.channel, k.count);
  for (int64_t t = k.end - 1; t >= k.begin; --t) {
    const int64_t dense = k.row(t) * in.channels + k.channel, at = (t - k.begin) * in.states;
    const float *b = k.b(t), *c = k.c(t);
    const float kept = k.starts_at(t) ? 0.0f : 1.0f;
    const Vector u = k.u(t), step = dt[t - k.begin], input = step * u;
    const Vector dy = lanes_of(p.dy + dense, k.count);
    Vector to_input{}, to_decay{};
    for (int64_t n = 0; n < in.states; ++n) {
      const Vector old = decay[at + n] * before[at + n];
      const Vector x = g[n] + dy * c[n];  // (4)
      const Vector x_old = x * old;
      sums.dc[at + n] += dy * (old + input * b[n]);  // (5)
      sums.db[at + n] += input * x;
      to_input += x * b[n];        // (6)
      to_decay += x_old * k.a[n];  // (7)
      sums.da[n] += step * x_old;  // (8)
      g[n] = kept * x * decay[at + n];
    }
    const Vector to_step = to_decay * kLn2 + u * to_input;
    store_lanes(d * dy + step * to_input, k.count, p.du + dense);
    store_lanes(to_step * sigmoid(k.delta(t)), k.count, p.ddelta + dense);
    *sums.dd += dy * u;
  }
}

int64_t blocks_of(const Inputs& in) { return (in.channels + kLanes - 1) / kLanes; }

/// Memory for `count` vectors, aligned to cache lines.
struct Memory {
  explicit Memory(int64_t count) : floats(static_cast<size_t>((count + 1) * kLanes)) {}
  Vector* data() {
    const auto at = reinterpret_cast<uintptr_t>(floats.data());
    return reinterpret_cast<Vector*>((at + 63) / 64 * 64);
  }
  std::vector<float> floats;
};

/// Puts A log2(e) of the channels of a block into lanes.
void transpose_a(const Inputs& in, int64_t channel, int64_t count, Vector* to) {
  for (int64_t n = 0; n < in.states; ++n) {
    for (int j = 0; j < kLanes; ++j) {
      to[n][j] = j < count ? in.a[(channel + j) * in.states + n] * kLog2E : 0;
    }
  }
}

/// Reads or writes the states [batch, channels, states] of a block.
void load_states(const Inputs& in, const Block& k, const float* from, Vector* to) {
  std::memset(to, 0, sizeof(Vector) * static_cast<size_t>(in.states));
  if (from == nullptr) return;
  const float* rows = from + (k.batch * in.channels + k.channel) * in.states;
  for (int64_t j = 0; j < k.count; ++j) {
    for (int64_t n = 0; n < in.states; ++n) to[n][j] = rows[j * in.states + n];
  }
}

void store_states(const Inputs& in, const Block& k, const Vector* from, float* to) {
  float* rows = to + (k.batch * in.channels + k.channel) * in.states;
  for (int64_t j = 0; j < k.count; ++j) {
    for (int64_t n = 0; n < in.states; ++n) rows[j * in.states + n] = from[n][j];
  }
}

/// Blocks [first, last) of all channels.
struct Task {
  const Inputs& in;
  int64_t first, last;

  int64_t count() const { return last - first; }
  Block block(int64_t index, int64_t batch, const Vector* a) const {
    const int64_t channel = (first + index) * kLanes;
    return {&in,
            a + index * in.states,
            batch,
            channel,
            std::min<int64_t>(kLanes, in.channels - channel),
            0,
            0};
  }
  void read_a(Vector* a) const {
    for (int64_t i = 0; i < count(); ++i) {
      const Block k = block(i, 0, a);
      transpose_a(in, k.channel, k.count, a + i * in.states);
    }
  }
};

void forward_task(const ScanForward<float>& p, const Task& task, int64_t batch) {
  const Inputs& in = p.in;
  Memory memory(2 * task.count() * in.states);
  Vector *a = memory.data(), *s = a + task.count() * in.states;
  task.read_a(a);
  for (int64_t i = 0; i < task.count(); ++i) {
    load_states(in, task.block(i, batch, a), in.initial, s + i * in.states);
  }
  for (int64_t begin = 0; begin < in.length; begin += kTokens) {
    for (int64_t i = 0; i < task.count(); ++i) {
      Block k = task.block(i, batch, a);
      k.begin = begin;
      k.end = std::min(in.length, begin + kTokens);
      scan_tokens(k, s + i * in.states, p.y);
    }
  }
  for (int64_t i = 0; i < task.count(); ++i) {
    store_states(in, task.block(i, batch, a), s + i * in.states, p.last);
  }
}

/// Adds the lanes of sums [tokens, states] to rows of db or dc.
void add_lanes(const Vector* sums, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0.0f;
    for (int j = 0; j < kLanes; ++j) sum += sums[i][j];
    to[i] = sum;
  }
}

/// The gradients of the channels of a task, over all sequences. `db` and `dc` [rows, states] are
/// its own.
void backward_task(const ScanBackward<float>& p, const Task& task, float* db, float* dc) {
  const Inputs& in = p.in;
  const int64_t states = in.states, all = task.count() * states, inside = kTokens * states;
  const int64_t chunks = (in.length + kTokens - 1) / kTokens;
  Memory memory(4 * all + task.count() + chunks * all + 4 * inside);
  Vector *a = memory.data(), *s = a + all, *g = s + all, *da = g + all, *dd = da + all;
  Vector *kept = dd + task.count(), *before = kept + chunks * all, *decay = before + inside;
  Vector *db_sums = decay + inside, *dc_sums = db_sums + inside;
  std::memset(da, 0, sizeof(Vector) * static_cast<size_t>(all + task.count()));
  task.read_a(a);
  for (int64_t batch = 0; batch < in.batch; ++batch) {
    const auto chunk_of = [&](int64_t i, int64_t chunk) {
      Block k = task.block(i, batch, a);
      k.begin = chunk * kTokens;
      k.end = std::min(in.length, k.begin + kTokens);
      return k;
    };
    for (int64_t i = 0; i < task.count(); ++i) {
      load_states(in, task.block(i, batch, a), in.initial, s + i * states);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        std::memcpy(kept + (chunk * task.count() + i) * states, s + i * states,
                    sizeof(Vector) * static_cast<size_t>(states));
        if (chunk + 1 < chunks) replay_tokens(chunk_of(i, chunk), s + i * states, nullptr, nullptr);
      }
    }
    std::memset(g, 0, sizeof(Vector) * static_cast<size_t>(all));
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t tokens = std::min(in.length - chunk * kTokens, kTokens);
      std::memset(db_sums, 0, sizeof(Vector) * static_cast<size_t>(2 * inside));
      for (int64_t i = 0; i < task.count(); ++i) {
        const Block k = chunk_of(i, chunk);
        replay_tokens(k, kept + (chunk * task.count() + i) * states, before, decay);
        unscan_tokens(k, p, before, decay, g + i * states,
                      {da + i * states, dd + i, db_sums, dc_sums});
      }
      const int64_t row = batch * in.length + chunk * kTokens;
      add_lanes(db_sums, tokens * states, db + row * states);
      add_lanes(dc_sums, tokens * states, dc + row * states);
    }
  }
  for (int64_t i = 0; i < task.count(); ++i) {
    Block k = task.block(i, 0, a);
    store_states(in, k, da + i * states, p.da);
    store_lanes(dd[i], k.count, p.dd + k.channel);
  }
}

}  // namespace

void selective_scan(const ScanForward<float>& p) {
  const int64_t blocks = blocks_of(p.in), groups = (blocks + kTaskBlocks - 1) / kTaskBlocks;
  const int64_t tasks = p.in.batch * groups;
  parallel_for(tasks, worker_count(tasks), [&](int64_t index, int64_t) {
    const int64_t first = index % groups * kTaskBlocks;
    forward_task(p, {p.in, first, std::min(blocks, first + kTaskBlocks)}, index / groups);
  });
}

void selective_scan_backward(const ScanBackward<float>& p) {
  const int64_t blocks = blocks_of(p.in), tasks = std::min(blocks, kBackwardTasks);
  const int64_t count = p.in.batch * p.in.length * p.in.states;
  std::vector<float> parts(static_cast<size_t>(2 * tasks * count));
  parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
    float* db = parts.data() + 2 * task * count;
    backward_task(p, {p.in, task * blocks / tasks, (task + 1) * blocks / tasks}, db, db + count);
  });
  std::copy_n(parts.data(), count, p.db);
  std::copy_n(parts.data() + count, count, p.dc);
  for (int64_t task = 1; task < tasks; ++task) {
    const float *db = parts.data() + 2 * task * count, *dc = db + count;
    for (int64_t i = 0; i < count; ++i) {
      p.db[i] += db[i];
      p.dc[i] += dc[i];
    }
  }
}

}  // namespace diffattn::cpu
