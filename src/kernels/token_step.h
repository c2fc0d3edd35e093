// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "diffattn/kernels/params.h"
#include "kernels/few_rows.h"

/// One generation step: the next token of each row of a batch, in a few fused kernels per layer.
/// `x` is the residual stream. Every product reads its input in the model's type and sums in
/// float32:
///
///   embed      x = embedding of the row's token
///   project    q, k, v (and lambda) = products of norm(x); rotates q and k; appends k and v
///   attend     attention to the paged cache
///   add        x += product (output projection)
///   gate       inner = silu(gate product) * (up product), both of norm(x)
///   poly_gate  the same with PolyNorm for silu
///   add        x += product (down projection)
///   logits     product of norm(x) with the head
///   sample     chooses each row's token and advances its position
///
/// Kernels that write x also write the next product's input, x times the weight of the next norm,
/// and the sums of squares of x. The product then multiplies its result by each row's 1 / RMS.
namespace diffattn::token {

using Stream = void*;

/// Largest number of rows in a step.
inline constexpr int kMaxRows = 1024;

/// weight [rows, in], bias [rows] or null, both of the model's type.
struct Matrix {
  const void* weight = nullptr;
  const void* bias = nullptr;
  int rows = 0;
};

/// The residual stream. The block that computes columns [c, c + n) of x stores the sum of their
/// squares as one part; `parts` depends on the kernel that last wrote x.
struct Residual {
  float* x = nullptr;        // [rows, width]
  void* scaled = nullptr;    // [rows, width], model's type: x times the next norm's weight
  float* squares = nullptr;  // [rows, kMaxParts]
  int width = 0;
  static constexpr int kMaxParts = 512;
};

/// The norm before a product: eps, and the weight [width] of the model's type.
struct Norm {
  const void* weight = nullptr;
  float eps = 0.0f;
};

/// The activation PolyNorm (PolyGlu in kernels/layers.h). weight [3] and bias [1] have the model's
/// type.
struct PolyNorm {
  const void* weight = nullptr;
  const void* bias = nullptr;
  float eps = 0.0f;
};

/// The rows of a batch. A step reads the state and `sample` advances it.
struct Batch {
  Dtype dtype = Dtype::kBFloat16;  // of the model
  int rows = 0;
  int32_t* tokens = nullptr;     // [rows]: the newest token
  int32_t* positions = nullptr;  // [rows]: its position, which is the number of cached tokens
  int32_t* lengths = nullptr;    // [rows]: position + 1
};

/// A paged KV cache of one layer. Page p of kv head h starts at p page_stride + h head_stride; a
/// token in it has k1, k2 (absent if both maps share the key) and v side by side.
struct Cache {
  void* pages = nullptr;
  const int32_t* table = nullptr;  // [rows, table_stride]: pages of each row
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  int table_stride = 0;
  int page_size = 0;  // tokens
};

/// The projections of an attention layer. Sub-head s of q goes to head slots [first, first + count)
/// of `q`, where (first, count) = q_slots[s].
struct Projection {
  Matrix q, k, v, lambda;  // lambda: rows = 0 if it is not computed from x
  int head_dim = 0, value_dim = 0, kv_heads = 0, key_heads = 0;
  /// Pairs of keys and of values: sub-heads j and j + count / 2 (halves) or 2j and 2j + 1.
  bool halves = false;
  const int32_t* q_slots = nullptr;  // [query sub-heads, 2]
  void* q_out = nullptr;             // [rows, q_width]
  int q_width = 0;
  float* lambda_out = nullptr;  // [rows, heads]: sigmoid of the product, times lambda_factor
  float lambda_factor = 1.0f;
  const float *cos = nullptr, *sin = nullptr;  // [positions, rotary_width / 2]
  int rotary_width = 0;                        // 0: no rotation
  bool interleaved = false;                    // pairs (2i, 2i + 1), else (i, i + width / 2)
};

/// How a row chooses its tokens, as in nn::SamplingOptions.
struct SamplingRule {
  uint64_t seed = 0;
  float temperature = 0.0f;  // 0: always the likeliest token
  float top_p = 1.0f;
  int32_t top_k = 0;        // 0: all
  float repetition = 1.0f;  // divides positive and multiplies negative logits of tokens that occur
  float presence = 0.0f;    // subtracted from the logits of tokens that were generated
  float frequency = 0.0f;   // subtracted once for each time a token was generated
};

/// Tokens chosen for a row, as the host reads them. A step writes entry `steps % kRing`.
struct Chosen {
  int32_t token;  // -1: no logit is finite, or one is NaN
  float log_probability;
};

/// Chooses the next token of each row from `logits` and advances the row's state in `batch`. The
/// result depends on the row's logits, rule and `steps` alone, not on the other rows.
struct Sampling {
  static constexpr int kRing = 8;
  static constexpr uint16_t kInPrompt = 0x8000;  // the lower bits count generated tokens

  const float* logits = nullptr;  // [rows, vocabulary]
  int vocabulary = 0;
  const SamplingRule* rules = nullptr;  // [rows]
  uint16_t* counts = nullptr;           // [rows, vocabulary]: occurrences
  int32_t* steps = nullptr;             // [rows]: tokens chosen so far; negative: an idle row
  Chosen* chosen = nullptr;             // [rows, kRing]
};

}  // namespace diffattn::token

/// The step on a GPU, for float32, bfloat16 and float16. All pointers are device memory, 16-byte
/// aligned. Calls only enqueue work on `stream` and may be captured in a CUDA graph.
namespace diffattn::cuda::token {

using namespace diffattn::token;

void embed(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual,
           Stream stream);

void project(const Batch& batch, const Residual& residual, float eps, const Projection& projection,
             const Cache& cache, Stream stream);

/// True if `attend` supports the type and widths.
bool takes_attend(Dtype dtype, int64_t head_dim, int64_t value_dim);

/// Computes the attention of one query per row to its paged cache: a forward with `pages`, seq_q 1,
/// key_lengths and align_to_key_lengths, which stores `out`. Starts to load old keys before the
/// previous kernel has ended, so that kernel must write nothing but the row's newest token.
size_t attend_workspace_bytes(const ForwardParams& params);
void attend(const ForwardParams& params, void* workspace, Stream stream);

/// x += input matrix^T; input [rows, in] of the model's type.
void add(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
         const Residual& residual, Stream stream);

/// out [rows, inner] = silu(gate) * up.
void gate(const Batch& batch, const Residual& residual, float eps, const Matrix& gate,
          const Matrix& up, void* out, Stream stream);

/// out [rows, head.rows], float32.
void logits(const Batch& batch, const Residual& residual, float eps, const Matrix& head, float* out,
            Stream stream);

void sample(const Batch& batch, const Sampling& sampling, Stream stream);

/// Work captured once and launched many times.
class Graph {
 public:
  /// Captures what `enqueue` puts on `stream`. It must not allocate memory or wait.
  Graph(Stream stream, const std::function<void()>& enqueue);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();
  void launch(Stream stream) const;

 private:
  void* exec_ = nullptr;  // a cudaGraphExec_t
};

}  // namespace diffattn::cuda::token

/// The parts of a generation step on a CPU, for float32 and bfloat16 models. Pointers are host
/// memory, and calls return when their results are there. `products` computes the products, by
/// default `few_rows`, with one read of the weights for all rows. `Residual::scaled` is float32
/// here and already divided by the RMS of x, so that `squares` and the products' `eps` are not
/// used.
namespace diffattn::cpu::token {

using namespace diffattn::token;
using Products = void (*)(const FewRows& params);

void embed(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual);
void project(const Batch& batch, const Residual& residual, const Projection& projection,
             const Cache& cache, Products products = few_rows);
void add(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
         const Residual& residual, Products products = few_rows);
void gate(const Batch& batch, const Residual& residual, const Matrix& gate, const Matrix& up,
          void* out, Products products = few_rows);
void poly_gate(const Batch& batch, const Residual& residual, const Matrix& gate, const Matrix& up,
               const PolyNorm& norm, void* out, Products products = few_rows);
void logits(const Batch& batch, const Residual& residual, const Matrix& head, float* out,
            Products products = few_rows);
void sample(const Batch& batch, const Sampling& sampling);

}  // namespace diffattn::cpu::token
