// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm80/decode/launch.cuh"

namespace diffattn::cuda::sm80 {

template void launch_decode<bfloat16, 64, 128>(const ForwardParams&, const Partials&, cudaStream_t);
template void launch_decode<float16, 64, 128>(const ForwardParams&, const Partials&, cudaStream_t);

}  // namespace diffattn::cuda::sm80
