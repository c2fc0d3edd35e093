// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm80/forward/launch.cuh"

namespace diffattn::cuda::sm80 {

template void launch_forward<bfloat16, 64, 128>(const ForwardParams&, const ExactOutputs&,
                                                cudaStream_t);
template void launch_forward<float16, 64, 128>(const ForwardParams&, const ExactOutputs&,
                                               cudaStream_t);

}  // namespace diffattn::cuda::sm80
