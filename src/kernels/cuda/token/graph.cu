// SPDX-License-Identifier: Apache-2.0

#include <exception>
#include <utility>

#include "kernels/cuda/token/launch.cuh"
#include "kernels/token_step.h"

namespace diffattn::cuda::token {

Graph::Graph(Stream stream, const std::function<void()>& enqueue) {
  const auto on = static_cast<cudaStream_t>(stream);
  check_step(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "begin of capture");
  std::exception_ptr failure;
  try {
    enqueue();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(on, &graph);  // ends the capture in any case
  if (failure) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    std::rethrow_exception(failure);
  }
  check_step(status, "end of capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check_step(made, "instantiation of a graph");
  exec_ = exec;
}

Graph::Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(exec_, other.exec_);
  return *this;
}

Graph::~Graph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec_));
}

void Graph::launch(Stream stream) const {
  check_step(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec_), static_cast<cudaStream_t>(stream)),
      "launch of a graph");
}

}  // namespace diffattn::cuda::token
