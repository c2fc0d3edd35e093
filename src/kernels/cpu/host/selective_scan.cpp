// SPDX-License-Identifier: Apache-2.0
//
// The selective scan in float32 (equations in selective_scan.h). A vector holds the same state
// number of 16 channels, so that no sum crosses lanes. Tokens come in chunks: a chunk's rows of B
// and C stay in the cache for all blocks of 16 channels of a task.
//
// `ivdep` says that the arrays of a loop do not overlap: checking that for every state would take
// as long as the loop.
//
// The backward pass keeps the states before each chunk, then takes the chunks from the last to the
// first and recomputes the states within one. Tasks split the channels and never depend on the
// number of threads. Each has its own sums of dB and dC, which are added up in order.

#include "kernels/selective_scan.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int kLanes = 16;          // channels of a block: the floats of the widest vector
constexpr int64_t kTokens = 64;     // of a chunk: 64 * 16 states * 16 lanes * 4 B = 64 KB of states
constexpr int64_t kTaskBlocks = 8;  // blocks of a forward task: a line of 512 B of u in each token
/// Tokens ahead whose rows are prefetched: rows lie in different pages, which no hardware
/// prefetches.
constexpr int64_t kAhead = 8;
constexpr int64_t kBackwardTasks = 16;

using Lanes = float[kLanes];
using Inputs = ScanInputs<float>;

/// Returns log(1 + exp(x)). log(1 + z) is 2 atanh(w) with w = z / (2 + z) <= 1/3.
[[gnu::always_inline]] inline float softplus(float x) {
  const float z = fast_exp(x < 0.0f ? x : -x);
  const float w = z / (2.0f + z), q = w * w;
  float p = 1.0f / 15.0f;
  p = p * q + 1.0f / 13.0f;
  p = p * q + 1.0f / 11.0f;
  p = p * q + 1.0f / 9.0f;
  p = p * q + 1.0f / 7.0f;
  p = p * q + 1.0f / 5.0f;
  p = p * q + 1.0f / 3.0f;
  p = p * q + 1.0f;
  return (x > 0.0f ? x : 0.0f) + 2.0f * w * p;
}

/// A block of up to 16 channels of one sequence, and tokens [begin, end) of it.
struct Block {
  const Inputs* in = nullptr;
  const Lanes* a = nullptr;  // [states], transposed
  int64_t batch = 0, channel = 0, count = kLanes;
  int64_t begin = 0, end = 0;

  int64_t row(int64_t t) const { return batch * in->length + t; }
  bool starts_at(int64_t t) const { return in->starts != nullptr && in->starts[row(t)] != 0; }
};

[[gnu::always_inline]] inline void load(const float* from, int64_t count, Lanes& to) {
  if (count == kLanes) {
    std::memcpy(to, from, sizeof(Lanes));
    return;
  }
  for (int j = 0; j < kLanes; ++j) to[j] = j < count ? from[j] : 0.0f;
}

[[gnu::always_inline]] inline void store(const Lanes& from, int64_t count, float* to) {
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
}

/// u, dt and delta of one token.
struct Token {
  Lanes u, delta, dt;

  [[gnu::always_inline]] inline void read(const Block& k, int64_t t) {
    const Inputs& in = *k.in;
    load(in.u + k.row(t) * in.u_stride + k.channel, k.count, u);
    load(in.delta + k.row(t) * in.delta_stride + k.channel, k.count, delta);
    for (int j = 0; j < kLanes; ++j) dt[j] = softplus(delta[j]);  // (1)
  }
};

/// Runs tokens [begin, end), with `s` [states] before the first and after the last one.
DIFFATTN_EACH_ISA void scan_tokens(const Block& k, Lanes* s, float* y) {
  const Inputs& in = *k.in;
  Lanes d;
  load(in.d + k.channel, k.count, d);
  for (int64_t t = k.begin; t < k.end; ++t) {
    const int64_t ahead = k.row(std::min(t + kAhead, in.length - 1));
    __builtin_prefetch(in.u + ahead * in.u_stride + k.channel);
    __builtin_prefetch(in.delta + ahead * in.delta_stride + k.channel);
    __builtin_prefetch(y + ahead * in.channels + k.channel, 1);
    Token token;
    token.read(k, t);
    if (k.starts_at(t)) std::memset(s, 0, sizeof(Lanes) * static_cast<size_t>(in.states));
    const float *b = in.b + k.row(t) * in.b_stride, *c = in.c + k.row(t) * in.c_stride;
    Lanes sum, step;
#pragma GCC ivdep
    for (int j = 0; j < kLanes; ++j) {
      sum[j] = d[j] * token.u[j];
      step[j] = token.dt[j] * token.u[j];
    }
    for (int64_t n = 0; n < in.states; ++n) {
      const float bn = b[n], cn = c[n];
#pragma GCC ivdep
      for (int j = 0; j < kLanes; ++j) {
        const float x = fast_exp(token.dt[j] * k.a[n][j]) * s[n][j] + step[j] * bn;  // (2)
        s[n][j] = x;
        sum[j] += cn * x;  // (3)
      }
    }
    store(sum, k.count, y + k.row(t) * in.channels + k.channel);
  }
}

/// As scan_tokens, without y. Writes the states before each token and the decays to `before` and
/// `decay` [tokens, states], or neither if they are null.
DIFFATTN_EACH_ISA void replay_tokens(const Block& k, Lanes* s, Lanes* before, Lanes* decay) {
  const Inputs& in = *k.in;
  const auto bytes = sizeof(Lanes) * static_cast<size_t>(in.states);
  for (int64_t t = k.begin; t < k.end; ++t) {
    Token token;
    token.read(k, t);
    if (k.starts_at(t)) std::memset(s, 0, bytes);
    const int64_t at = (t - k.begin) * in.states;
    if (before != nullptr) std::memcpy(before + at, s, bytes);
    const float* b = in.b + k.row(t) * in.b_stride;
    for (int64_t n = 0; n < in.states; ++n) {
      const float bn = b[n];
      Lanes e;
#pragma GCC ivdep
      for (int j = 0; j < kLanes; ++j) {
        e[j] = fast_exp(token.dt[j] * k.a[n][j]);
        s[n][j] = e[j] * s[n][j] + token.dt[j] * token.u[j] * bn;
      }
      if (decay != nullptr) std::memcpy(decay + at + n, e, sizeof(Lanes));
    }
  }
}

/// Sums over the tokens and channels of a task.
struct Sums {
  Lanes* da = nullptr;                 // [states] of this block
  Lanes* dd = nullptr;                 // of this block
  Lanes *db = nullptr, *dc = nullptr;  // [tokens of the chunk, states]
};

/// Takes tokens [begin, end) backwards; `g` [states] carries exp(dt A) g of the token after them.
DIFFATTN_EACH_ISA void unscan_tokens(const Block& k, const ScanBackward<float>& p,
                                     const Lanes* before, const Lanes* decay, Lanes* g,
                                     const Sums& sums) {
  const Inputs& in = *k.in;
  Lanes d;
  load(in.d + k.channel, k.count, d);
  for (int64_t t = k.end - 1; t >= k.begin; --t) {
    Token token;
    token.read(k, t);
    const int64_t dense = k.row(t) * in.channels + k.channel, at = (t - k.begin) * in.states;
    const float *b = in.b + k.row(t) * in.b_stride, *c = in.c + k.row(t) * in.c_stride;
    const float kept = k.starts_at(t) ? 0.0f : 1.0f;
    Lanes dy, to_input{}, to_step{};
    load(p.dy + dense, k.count, dy);
    for (int64_t n = 0; n < in.states; ++n) {
      const float bn = b[n], cn = c[n];
#pragma GCC ivdep
      for (int j = 0; j < kLanes; ++j) {
        const float old = decay[at + n][j] * before[at + n][j];
        const float input = token.dt[j] * token.u[j];
        const float x = g[n][j] + dy[j] * cn;              // (4)
        sums.dc[at + n][j] += dy[j] * (old + input * bn);  // (5)
        sums.db[at + n][j] += input * x;
        to_input[j] += x * bn;                                  // (6)
        to_step[j] += x * (k.a[n][j] * old + token.u[j] * bn);  // (7)
        sums.da[n][j] += token.dt[j] * x * old;                 // (8)
        g[n][j] = kept * x * decay[at + n][j];
      }
    }
    Lanes du, ddelta;
#pragma GCC ivdep
    for (int j = 0; j < kLanes; ++j) {
      du[j] = d[j] * dy[j] + token.dt[j] * to_input[j];
      ddelta[j] = to_step[j] / (1.0f + fast_exp(-token.delta[j]));
      (*sums.dd)[j] += dy[j] * token.u[j];
    }
    store(du, k.count, p.du + dense);
    store(ddelta, k.count, p.ddelta + dense);
  }
}

int64_t blocks_of(const Inputs& in) { return (in.channels + kLanes - 1) / kLanes; }

/// Memory for `count` vectors, aligned to cache lines.
struct Memory {
  explicit Memory(int64_t count) : floats(static_cast<size_t>((count + 1) * kLanes)) {}
  Lanes* data() {
    const auto at = reinterpret_cast<uintptr_t>(floats.data());
    return reinterpret_cast<Lanes*>((at + 63) / 64 * 64);
  }
  std::vector<float> floats;
};

void transpose_a(const Inputs& in, int64_t channel, int64_t count, Lanes* to) {
  for (int64_t n = 0; n < in.states; ++n) {
    for (int j = 0; j < kLanes; ++j) to[n][j] = j < count ? in.a[(channel + j) * in.states + n] : 0;
  }
}

/// Reads or writes the states [batch, channels, states] of a block.
void load_states(const Inputs& in, const Block& k, const float* from, Lanes* to) {
  std::memset(to, 0, sizeof(Lanes) * static_cast<size_t>(in.states));
  if (from == nullptr) return;
  const float* rows = from + (k.batch * in.channels + k.channel) * in.states;
  for (int64_t j = 0; j < k.count; ++j) {
    for (int64_t n = 0; n < in.states; ++n) to[n][j] = rows[j * in.states + n];
  }
}

void store_states(const Inputs& in, const Block& k, const Lanes* from, float* to) {
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
  Block block(int64_t index, int64_t batch, const Lanes* a) const {
    const int64_t channel = (first + index) * kLanes;
    return {&in,
            a + index * in.states,
            batch,
            channel,
            std::min<int64_t>(kLanes, in.channels - channel),
            0,
            0};
  }
  void read_a(Lanes* a) const {
    for (int64_t i = 0; i < count(); ++i) {
      const Block k = block(i, 0, a);
      transpose_a(in, k.channel, k.count, a + i * in.states);
    }
  }
};

void forward_task(const ScanForward<float>& p, const Task& task, int64_t batch) {
  const Inputs& in = p.in;
  Memory memory(2 * task.count() * in.states);
  Lanes *a = memory.data(), *s = a + task.count() * in.states;
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
void add_lanes(const Lanes* sums, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0.0f;
    for (const float lane : sums[i]) sum += lane;
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
  Lanes *a = memory.data(), *s = a + all, *g = s + all, *da = g + all, *dd = da + all;
  Lanes *kept = dd + task.count(), *before = kept + chunks * all, *decay = before + inside;
  Lanes *db_sums = decay + inside, *dc_sums = db_sums + inside;
  std::memset(da, 0, sizeof(Lanes) * static_cast<size_t>(all + task.count()));
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
                    sizeof(Lanes) * static_cast<size_t>(states));
        if (chunk + 1 < chunks) replay_tokens(chunk_of(i, chunk), s + i * states, nullptr, nullptr);
      }
    }
    std::memset(g, 0, sizeof(Lanes) * static_cast<size_t>(all));
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t tokens = std::min(in.length - chunk * kTokens, kTokens);
      std::memset(db_sums, 0, sizeof(Lanes) * static_cast<size_t>(2 * inside));
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
    store(dd[i], k.count, p.dd + k.channel);
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
