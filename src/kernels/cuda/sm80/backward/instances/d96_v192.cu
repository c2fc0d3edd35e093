// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm80/backward/launch.cuh"

namespace diffattn::cuda::sm80 {

template void launch_backward<bfloat16, 96, 192>(const BackwardParams&, const BackwardWorkspace&,
                                                 cudaStream_t);
template void launch_backward<float16, 96, 192>(const BackwardParams&, const BackwardWorkspace&,
                                                cudaStream_t);

}  // namespace diffattn::cuda::sm80
