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

/// What this rank gave for a name, and what it gets.
struct Operands {
  std::vector<at::Tensor> inputs;  // on a device: complete after `ready`
  std::vector<at::Tensor> outputs; // where it is done in place; empty: made here
  device::Event ready{at::kCPU};

  std::optional<at::ScalarType> type; // of outputs that are made here, if not the inputs'

  std::vector<int64_t> received; // of allgather and alltoall: rows from each rank
  device::Event done{at::kCPU};

  at::TensorOptions output_options(const at::Tensor& like) const {
    return like.options().dtype(type.value_or(like.scalar_type()));
  }
};

/// Carries out what all ranks of a group have asked for, in the order they agreed on. One thread.
class Execution {
 public:
  /// Allreduces of one type that are ready together are done as one, of at most `fusion_bytes`. A tensor larger than
  /// that is done alone. `device`: of a rank that joins before it has given a tensor of a device.
  Execution(comm::Group group, int64_t fusion_bytes, at::Device device);

  /// `operands_of` gives what this rank asked for; null where it has joined. Collective.
  /// Calls `finished` for each response, when its outputs are there or, on a device, are what comes next on the
  /// caller's stream after Operands::done.
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

/// How many rows of `rows` rank r gets of a reducescatter: the first ranks get one more where they do not divide.
int64_t rows_of_rank(int64_t rows, int rank, int ranks);

} // namespace trireme::horovod
