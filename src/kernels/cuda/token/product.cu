// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step on the host: describes each as segments of one product and
// launches it with a tile shape for the number of rows.

#include "kernels/cuda/token/launch.cuh"
#include "kernels/cuda/token/product.cuh"

namespace diffattn::cuda::token {
namespace {

template <class T, class Config>
void launch_as(const ProductArguments<T>& args, cudaStream_t stream) {
  const int row_chunks = (args.rows + Config::kRows - 1) / Config::kRows;
  const int blocks = (args.tiles + Config::kN - 1) / Config::kN * row_chunks;
  launch_step(product_kernel<T, Config>, static_cast<unsigned>(blocks), Config::kThreads,
              Config::smem_bytes(args.rows, args.in), stream, "token product", args, row_chunks);
}

/// Returns the tiles of 8 outputs per block. Every SM should load weights at once; wider blocks
/// read `a` less often.
int tiles_per_block(int rows, int tiles) {
  const int row_chunks = (rows + 63) / 64;
  for (const int n : {1, 3}) {
    if ((tiles + n - 1) / n * row_chunks <= sm_count()) return n;
  }
  return rows > 32 ? 3 : 6;  // accumulators of 64 rows leave registers for 3 tiles
}

template <class T, int kHalves>
void launch_rows(const ProductArguments<T>& args, cudaStream_t stream) {
  const int n = tiles_per_block(args.rows, args.tiles);
  if (n == 1) return launch_as<T, ProductConfig<kHalves, 1>>(args, stream);
  if constexpr (kHalves <= 4) {
    if (n == 6) return launch_as<T, ProductConfig<kHalves, 6>>(args, stream);
  }
  launch_as<T, ProductConfig<kHalves, 3>>(args, stream);
}

template <class T>
void launch(const ProductArguments<T>& args, cudaStream_t stream) {
  if (args.rows <= 8) return launch_rows<T, 1>(args, stream);
  if (args.rows <= 16) return launch_rows<T, 2>(args, stream);
  if (args.rows <= 32) return launch_rows<T, 4>(args, stream);
  launch_rows<T, 8>(args, stream);
}

/// Returns the number of sums of squares per row that `add` stores: one per block.
int parts_of(int rows, int width) {
  const int tiles = width / 8, n = tiles_per_block(rows, tiles);
  return (tiles + n - 1) / n;
}

template <class T>
ProductArguments<T> arguments_of(const Batch& batch, const void* a, int in) {
  ProductArguments<T> args;
  args.a = static_cast<const T*>(a);
  args.rows = batch.rows;
  args.in = in;
  args.positions = batch.positions;
  return args;
}

template <class T>
ProductArguments<T> normed_arguments(const Batch& batch, const Residual& residual, float eps) {
  ProductArguments<T> args = arguments_of<T>(batch, residual.scaled, residual.width);
  args.squares = residual.squares;
  args.parts = parts_of(batch.rows, residual.width);
  args.eps = eps;
  return args;
}

template <class T>
void append(ProductArguments<T>& args, const Matrix& matrix, TileRows tile_rows) {
  Segment<T>& segment = args.segments[args.segment_count++];
  segment.weight = static_cast<const T*>(matrix.weight);
  segment.bias = static_cast<const T*>(matrix.bias);
  segment.rows = matrix.rows;
  segment.first_tile = args.tiles;
  segment.tile_rows = tile_rows;
  args.tiles += (matrix.rows + 7) / 8;
}

template <class T>
void project_as(const Batch& batch, const Residual& residual, float eps, const Projection& p,
                const Cache& cache, cudaStream_t stream) {
  ProductArguments<T> args = normed_arguments<T>(batch, residual, eps);
  args.epilogue = Epilogues::kHeads;
  args.projection = p;
  args.cache = cache;
  args.head_dim = p.head_dim;
  args.rotary_width = p.rotary_width;
  const TileRows rotary = p.interleaved ? TileRows::kRotaryAdjacent : TileRows::kRotaryHalves;
  append(args, p.q, rotary);
  append(args, p.k, rotary);
  append(args, p.v, TileRows::kConsecutive);
  if (p.lambda.rows > 0) append(args, p.lambda, TileRows::kConsecutive);
  launch(args, stream);
}

template <class T>
void add_as(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
            const Residual& residual, cudaStream_t stream) {
  ProductArguments<T> args = arguments_of<T>(batch, input, in);
  args.epilogue = Epilogues::kAdd;
  args.residual = residual;
  args.next_norm = static_cast<const T*>(next.weight);
  append(args, matrix, TileRows::kConsecutive);
  launch(args, stream);
}

template <class T>
void gate_as(const Batch& batch, const Residual& residual, float eps, const Matrix& gate,
             const Matrix& up, void* out, cudaStream_t stream) {
  ProductArguments<T> args = normed_arguments<T>(batch, residual, eps);
  args.epilogue = Epilogues::kGate;
  args.out = out;
  args.out_width = gate.rows;
  append(args, gate, TileRows::kTwoMatrices);
  args.segments[0].second = static_cast<const T*>(up.weight);
  args.segments[0].second_bias = static_cast<const T*>(up.bias);
  args.tiles = (gate.rows + 3) / 4;
  launch(args, stream);
}

template <class T>
void logits_as(const Batch& batch, const Residual& residual, float eps, const Matrix& head,
               float* out, cudaStream_t stream) {
  ProductArguments<T> args = normed_arguments<T>(batch, residual, eps);
  args.epilogue = Epilogues::kLogits;
  args.out = out;
  args.out_width = head.rows;
  append(args, head, TileRows::kConsecutive);
  launch(args, stream);
}

/// A block normalises nothing: it stores the row's embedding and the sums of squares of the column
/// groups that `add` would store.
template <class T>
__global__ void __launch_bounds__(256) embed_kernel(const int32_t* tokens, const T* embedding,
                                                    const T* norm, Residual residual, int parts) {
  // Every later kernel of the step may read positions and lengths without waiting, so they start
  // after the previous step has ended.
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  const int row = static_cast<int>(blockIdx.x), width = residual.width;
  const T* const from = embedding + int64_t{tokens[row]} * width;
  const int64_t to = int64_t{row} * width;
  const int columns = (width + parts - 1) / parts;  // 8 to 32 per part
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += 256) {
    float squares = 0.0f;
    for (int c = part * columns; c < min(width, (part + 1) * columns); ++c) {
      const float x = widen(from[c]);
      residual.x[to + c] = x;
      static_cast<T*>(residual.scaled)[to + c] = narrow<T>(x * widen(norm[c]) * kScaled<T>);
      squares += x * x;
    }
    residual.squares[int64_t{row} * Residual::kMaxParts + part] = squares;
  }
}

template <class T>
void embed_as(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual,
              cudaStream_t stream) {
  launch_step(embed_kernel<T>, static_cast<unsigned>(batch.rows), 256, 0, stream, "token embed",
              static_cast<const int32_t*>(batch.tokens), static_cast<const T*>(embedding),
              static_cast<const T*>(next.weight), residual, parts_of(batch.rows, residual.width));
}

bool is_bfloat16(const Batch& batch) { return batch.dtype == Dtype::kBFloat16; }

}  // namespace

void embed(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual,
           Stream stream) {
  const auto run = is_bfloat16(batch) ? embed_as<bfloat16> : embed_as<float16>;
  run(batch, embedding, next, residual, static_cast<cudaStream_t>(stream));
}

void project(const Batch& batch, const Residual& residual, float eps, const Projection& projection,
             const Cache& cache, Stream stream) {
  const auto run = is_bfloat16(batch) ? project_as<bfloat16> : project_as<float16>;
  run(batch, residual, eps, projection, cache, static_cast<cudaStream_t>(stream));
}

void add(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
         const Residual& residual, Stream stream) {
  const auto run = is_bfloat16(batch) ? add_as<bfloat16> : add_as<float16>;
  run(batch, input, in, matrix, next, residual, static_cast<cudaStream_t>(stream));
}

void gate(const Batch& batch, const Residual& residual, float eps, const Matrix& gate_matrix,
          const Matrix& up, void* out, Stream stream) {
  const auto run = is_bfloat16(batch) ? gate_as<bfloat16> : gate_as<float16>;
  run(batch, residual, eps, gate_matrix, up, out, static_cast<cudaStream_t>(stream));
}

void logits(const Batch& batch, const Residual& residual, float eps, const Matrix& head, float* out,
            Stream stream) {
  const auto run = is_bfloat16(batch) ? logits_as<bfloat16> : logits_as<float16>;
  run(batch, residual, eps, head, out, static_cast<cudaStream_t>(stream));
}

}  // namespace diffattn::cuda::token
