// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/nn/decoder.h"
#include "diffattn/nn/generate.h"

namespace diffattn::infer {

struct GeneratorOptions {
  /// Rows of a batch that one step computes. More requests wait until a row ends.
  TORCH_ARG(int64_t, max_rows) = 256;
  /// Tokens of a page of the KV cache; a multiple of 16, on CPUs best of 64.
  TORCH_ARG(int64_t, page_size) = 64;
  /// Tokens that the KV cache has room for. Requests wait until enough of it is free. 0: the cache
  /// grows as needed.
  TORCH_ARG(int64_t, cache_tokens) = 0;
  /// Prompt tokens that are computed between two steps, so that a long prompt does not hold up the
  /// rows that run. 0: all at once.
  TORCH_ARG(int64_t, prefill_tokens) = 0;
  /// Lets rows whose prompts begin alike share pages.
  TORCH_ARG(bool, share_prefixes) = true;
};

/// A prompt, of at least one token, and how to continue it.
struct Request {
  std::vector<int64_t> prompt;
  nn::SamplingOptions options;
  /// Likeliest tokens that each new token comes with. A GPU then computes one step at a time.
  int64_t alternatives = 0;
};

struct Alternative {
  int64_t token = 0;
  float log_probability = 0.0f;
};

/// Why a row ended. kNotFinite: the model's logits are NaN or infinite.
enum class Finish : uint8_t { kStopToken, kLength, kNotFinite };

/// A new token of a request. `log_probability` is that of the model, before temperature and
/// penalties.
struct NewToken {
  uint64_t request = 0;
  int64_t token = 0;
  float log_probability = 0.0f;
  std::optional<Finish> finish = {};           // set with the last token
  std::vector<Alternative> alternatives = {};  // the likeliest first
};

/// Continues many requests together: each step computes one token of every running row, and rows
/// join and leave between steps. All rows share one read of the weights. A row's tokens do not
/// depend on the other rows, up to the rounding of kernels for few and for many rows. Rows whose
/// prompts begin alike share the pages of their common part.
///
/// On a GPU a step is one launch of a CUDA graph of a few fused kernels per layer, for float32,
/// bfloat16 and float16 models of the usual blocks; on a CPU the same steps run on the fused CPU
/// kernels, for float32 and bfloat16. Other models compute row by row with the modules. The batcher
/// reads the model's parameters where they are, so the caller must not move the model while it
/// exists. Not thread-safe.
class Batcher {
 public:
  explicit Batcher(nn::CausalLM model, const GeneratorOptions& options = {});
  Batcher(Batcher&&) noexcept;
  Batcher& operator=(Batcher&&) noexcept;
  ~Batcher();

  /// Queues a request and returns its number, which counts up from 0. Throws diffattn::Error as
  /// `nn::generate` does, and if the request can never fit into the cache.
  uint64_t submit(Request request);

  /// Drops a request. It has no further tokens.
  void cancel(uint64_t request);

  /// Admits waiting requests, computes some of their prompts and a step, and returns the tokens of
  /// the oldest step that was not yet returned. A GPU already computes the next step meanwhile. May
  /// return none. If it throws because new requests could not join, these are dropped.
  std::vector<NewToken> step();

  /// True if nothing runs or waits.
  bool idle() const;
  /// True if the request runs or waits.
  bool contains(uint64_t request) const;

  struct Load {
    int64_t running = 0, waiting = 0;   // requests
    int64_t used_pages = 0, pages = 0;  // of the KV cache
    int64_t captures = 0;               // CUDA graphs made so far
    double capture_seconds = 0.0;       // for all of them
    int64_t cache_bytes = 0;
  };
  Load load() const;

  /// True if steps use fused kernels; else `reason` says why not.
  bool uses_steps() const;
  const std::string& reason() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace diffattn::infer
