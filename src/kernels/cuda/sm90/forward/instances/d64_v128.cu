// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/forward/launch.cuh"

namespace diffattn::cuda::sm90 {

template void launch_forward<bfloat16, 64, 128>(const ForwardParams&, void*, cudaStream_t);
template void launch_forward<float16, 64, 128>(const ForwardParams&, void*, cudaStream_t);
template void launch_recompute<bfloat16, 64, 128>(const ForwardParams&, void*, cudaStream_t);
template void launch_recompute<float16, 64, 128>(const ForwardParams&, void*, cudaStream_t);

}  // namespace diffattn::cuda::sm90
