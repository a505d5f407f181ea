#pragma once

#include <trireme/comm/group.h>
#include <trireme/device/stream.h>
#include <trireme/extensions/horovod/negotiation.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme::horovod {

/// This rank's tensors for a request, and their results.
struct Operands {
  std::vector<at::Tensor> inputs;  // on a GPU: complete after `ready`
  std::vector<at::Tensor> outputs; // of operations in place; empty: made during execution
  device::Event ready{at::kCPU};

  std::optional<at::ScalarType> type; // of outputs that are made during execution, if not the inputs'

  std::vector<int64_t> received; // of allgather and alltoall: rows from each rank
  device::Event done{at::kCPU};

  at::TensorOptions output_options(const at::Tensor& like) const {
    return like.options().dtype(type.value_or(like.scalar_type()));
  }
};

/// Carries out the requests of all ranks of a group in the agreed order. For one thread.
class Execution {
 public:
  /// Fuses allreduces of one type that are ready at the same time, up to `fusion_bytes`. A larger tensor is reduced
  /// alone. `device`: for a rank that joins before its first tensor on a GPU.
  Execution(comm::Group group, int64_t fusion_bytes, at::Device device);

  /// `operands_of` returns this rank's operands; null if it has joined. Collective. Calls `finished` for each response
  /// when its outputs are complete or, on a GPU, when they are ready for the caller's stream after Operands::done.
  void run(const std::vector<Response>& responses, const std::function<Operands*(const Response&)>& operands_of,
           const std::function<void(const Response&)>& finished);

 private:
  using Batch = std::vector<const Response*>;

  bool fits(const Batch& batch, const Response& next) const;
  void allreduce(const Batch& batch, const std::vector<Operands*>& operands);
  void reduce(const at::Tensor& flat, const Request& request);
  void run_one(const Response& response, Operands* operands);
  void allgather(const Response& response, Operands& operands);
  void alltoall(const Response& response, Operands& operands);
  void reducescatter(const Response& response, Operands& operands);
  at::Device device_of(const Request& request, const Operands* operands);

  comm::Group group_;
  int64_t fusion_bytes_;
  device::KeptStreams streams_;
  at::Device last_device_;
};

/// The number of `rows` that rank r gets of a reducescatter: the first ranks get one more if they do not divide evenly.
int64_t rows_of_rank(int64_t rows, int rank, int ranks);

} // namespace trireme::horovod
