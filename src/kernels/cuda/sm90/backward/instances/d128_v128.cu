// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/backward/launch.cuh"

namespace diffattn::cuda::sm90 {

template void launch_rows<bfloat16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                              cudaStream_t);
template void launch_rows<float16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                             cudaStream_t);
template void launch_backward<bfloat16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                                  cudaStream_t);
template void launch_backward<float16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                                 cudaStream_t);
template void launch_repair<bfloat16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                                cudaStream_t);
template void launch_repair<float16, 128, 128>(const BackwardParams&, const BackwardWorkspace&,
                                               cudaStream_t);

}  // namespace diffattn::cuda::sm90
