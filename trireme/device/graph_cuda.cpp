#include <trireme/device/graph.h>

#include <trireme/base/log.h>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <exception>

namespace trireme::device {
namespace {

class CudaGraph final : public Graph {
 public:
  CudaGraph(at::Device device, c10::cuda::MempoolId_t pool) : device_(device), pool_(pool) {}

  void begin_capture() override {
    const c10::cuda::CUDAGuard guard(device_);
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache(); // eager steps have filled it; the pool needs as much
    try {
      // Threads of autograd launch on the recorded stream, and loaders pin memory meanwhile.
      graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    } catch (const std::exception&) {
      leave_pool();
      throw;
    }
  }
  void end_capture() override {
    const c10::cuda::CUDAGuard guard(device_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(), &status);
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      leave_pool();
      if (status == cudaStreamCaptureStatusInvalidated) { // then CUDAGraph does not release what it has taken
        attempt([&] { c10::cuda::CUDACachingAllocator::releasePool(device_.index(), pool_); });
        attempt([&] { at::getHostAllocator(at::kCUDA)->release_pool(pool_); });
        attempt([&] { c10::cuda::CUDACachingAllocator::emptyCache(); });
      }
      throw;
    }
  }
  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  template <class F>
  static void attempt(const F& f) noexcept {
    try {
      f();
    } catch (const std::exception& error) { // it was not there any more
      log::debug("the pool of a failed CUDA graph: ", error.what());
    }
  }
  // After a failure CUDAGraph leaves its filter in both allocators, which refers to it.
  void leave_pool() const noexcept {
    (void)cudaGetLastError(); // clears the error for later calls
    attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_); });
    attempt([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
  }

  at::Device device_;
  c10::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

class CudaGraphPool final : public GraphPool {
 public:
  explicit CudaGraphPool(at::Device device) : device_(device) {}
  std::unique_ptr<Graph> graph() override { return std::make_unique<CudaGraph>(device_, id_); }

 private:
  at::Device device_;
  c10::cuda::MempoolId_t id_ = at::cuda::graph_pool_handle();
};

} // namespace

std::unique_ptr<GraphPool> make_cuda_graph_pool(at::Device device) {
  return std::make_unique<CudaGraphPool>(device);
}

} // namespace trireme::device
