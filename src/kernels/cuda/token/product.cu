// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step on the host: describes each as segments of one product and
// launches it with a tile shape for the number of rows.

#include "kernels/cuda/token/launch.cuh"
#include "kernels/cuda/token/plain_product.cuh"
#include "kernels/cuda/token/product.cuh"
#include "kernels/cuda/token/tiled_product.cuh"

namespace diffattn::cuda::token {
namespace {

/// Up to this many rows a block computes all of them, and its warps split the inner dimension.
constexpr int kFewRows = 32;

template <class Config>
constexpr int row_chunks_of(int rows) {
  return (rows + Config::kRows - 1) / Config::kRows;
}

template <class Config>
int blocks_of(int rows, int tiles) {
  return (tiles + Config::kN - 1) / Config::kN * row_chunks_of<Config>(rows);
}

template <class T, int kHalves, int kN>
void launch_as(const ProductArguments<T>& args, ProductConfig<kHalves, kN>, cudaStream_t stream) {
  using Config = ProductConfig<kHalves, kN>;
  launch_step(product_kernel<T, Config>,
              static_cast<unsigned>(blocks_of<Config>(args.rows, args.tiles)), Config::kThreads,
              Config::smem_bytes(args.rows, args.in), stream, "token product", args,
              row_chunks_of<Config>(args.rows));
}

template <class T, int kRows, int kN, int kWarpsN, int kStages>
void launch_as(const ProductArguments<T>& args, TiledConfig<kRows, kN, kWarpsN, kStages>,
               cudaStream_t stream) {
  using Config = TiledConfig<kRows, kN, kWarpsN, kStages>;
  launch_step(tiled_product_kernel<T, Config>,
              static_cast<unsigned>(blocks_of<Config>(args.rows, args.tiles)), Config::kThreads,
              Config::kSmemBytes, stream, "token product", args, row_chunks_of<Config>(args.rows));
}

void launch_as(const ProductArguments<float>& args, PlainConfig, cudaStream_t stream) {
  launch_step(plain_product_kernel,
              static_cast<unsigned>(blocks_of<PlainConfig>(args.rows, args.tiles)),
              PlainConfig::kThreads, 0, stream, "token product", args,
              row_chunks_of<PlainConfig>(args.rows));
}

/// Calls visit with a configuration for few rows. Every SM should load weights at once; wider
/// blocks read `a` less often.
template <int kHalves, class Visit>
auto visit_few(int rows, int tiles, Visit visit) {
  if (blocks_of<ProductConfig<kHalves, 1>>(rows, tiles) <= sm_count()) {
    return visit(ProductConfig<kHalves, 1>());
  }
  if (blocks_of<ProductConfig<kHalves, 3>>(rows, tiles) <= sm_count()) {
    return visit(ProductConfig<kHalves, 3>());
  }
  return visit(ProductConfig<kHalves, 6>());
}

/// Returns what the SM with most blocks loads, in rows of a and of weights.
template <class Config>
int loads_of(int rows, int tiles) {
  const int sms = sm_count();
  return (blocks_of<Config>(rows, tiles) + sms - 1) / sms * (Config::kRows + 8 * Config::kN);
}

/// Calls visit with the configuration of a product on tensor cores.
template <class Visit>
auto visit_mma_config(int rows, int tiles, Visit visit) {
  using Large = TiledConfig<128, 12, 2, 4>;
  using Medium = TiledConfig<64, 12, 2, 5>;
  using Small = TiledConfig<64, 4, 1, 8>;
  // GPUs with 99 KiB of shared memory per block (sm_86, sm_89) have room for this one only.
  if (block_smem_bytes() < 160 * 1024) return visit(Small());
  if (rows <= 8) return visit_few<1>(rows, tiles, visit);
  // Many blocks one after another are faster if copies and products overlap in each of them.
  const bool one_wave = blocks_of<ProductConfig<4, 6>>(rows, tiles) <= 2 * sm_count();
  if (rows <= 16 && one_wave) return visit_few<2>(rows, tiles, visit);
  if (rows <= kFewRows && one_wave) return visit_few<4>(rows, tiles, visit);
  const int large = loads_of<Large>(rows, tiles), medium = loads_of<Medium>(rows, tiles);
  const int small = loads_of<Small>(rows, tiles);
  if (small <= medium && small <= large) return visit(Small());
  return medium <= large ? visit(Medium()) : visit(Large());
}

/// Calls visit with the configuration of a product.
template <class T, class Visit>
auto visit_config(int rows, int tiles, Visit visit) {
  if constexpr (__is_same(T, float)) {
    return visit(PlainConfig());
  } else {
    return visit_mma_config(rows, tiles, visit);
  }
}

template <class T>
void launch(const ProductArguments<T>& args, cudaStream_t stream) {
  visit_config<T>(args.rows, args.tiles, [&](auto config) { launch_as(args, config, stream); });
}

/// Returns the number of sums of squares per row that `add` stores.
template <class T>
int parts_of(int rows, int width) {
  const int tiles = width / 8;
  return visit_config<T>(rows, tiles, [&](auto config) {
    constexpr int kPartTiles = decltype(config)::kPartTiles;
    return (tiles + kPartTiles - 1) / kPartTiles;
  });
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
  args.parts = parts_of<T>(batch.rows, residual.width);
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
  const int columns = (width + parts - 1) / parts;  // 8 to 48 per part
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
              static_cast<const T*>(next.weight), residual,
              parts_of<T>(batch.rows, residual.width));
}

/// Calls run with an element of the batch's type.
template <class Run>
void with_type(const Batch& batch, const Run& run) {
  switch (batch.dtype) {
    case Dtype::kFloat32: return run(float{});
    case Dtype::kBFloat16: return run(bfloat16{});
    default: return run(float16{});
  }
}

cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void embed(const Batch& batch, const void* embedding, const Norm& next, const Residual& residual,
           Stream stream) {
  with_type(batch, [&](auto type) {
    embed_as<decltype(type)>(batch, embedding, next, residual, cuda(stream));
  });
}

void project(const Batch& batch, const Residual& residual, float eps, const Projection& projection,
             const Cache& cache, Stream stream) {
  with_type(batch, [&](auto type) {
    project_as<decltype(type)>(batch, residual, eps, projection, cache, cuda(stream));
  });
}

void add(const Batch& batch, const void* input, int in, const Matrix& matrix, const Norm& next,
         const Residual& residual, Stream stream) {
  with_type(batch, [&](auto type) {
    add_as<decltype(type)>(batch, input, in, matrix, next, residual, cuda(stream));
  });
}

void gate(const Batch& batch, const Residual& residual, float eps, const Matrix& gate_matrix,
          const Matrix& up, void* out, Stream stream) {
  with_type(batch, [&](auto type) {
    gate_as<decltype(type)>(batch, residual, eps, gate_matrix, up, out, cuda(stream));
  });
}

void logits(const Batch& batch, const Residual& residual, float eps, const Matrix& head, float* out,
            Stream stream) {
  with_type(batch, [&](auto type) {
    logits_as<decltype(type)>(batch, residual, eps, head, out, cuda(stream));
  });
}

}  // namespace diffattn::cuda::token
