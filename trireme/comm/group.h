#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/work.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// Ranks that communicate with each other: the world, or an axis of the mesh.
///
/// A small value: copies refer to the same group. Every operation is recorded (recorder.h) under this group's name
/// and a running number, is asynchronous, and returns the Work to wait on. The tensor's device selects the
/// backend: every group has one for the host, and opens one per kind of device with open() or the first tensor on
/// it. `what` names the tensor in messages: "bucket 3", "loss". Ranks here are ranks in the group, 0 <= r <
/// size(). Cost, P bytes and N ranks: all_reduce sends 2P(N-1)/N per rank, reduce_scatter and all_gather P(N-1)/N
/// (P: the full tensor), broadcast P*ceil(log2 N) at the root, send P. Errors: PeerError from wait() (lost peer,
/// deadline), Error for a tensor that is not contiguous, of the wrong size, or on a device that no backend here
/// supports.
class Group {
 public:
  /// A group of one over the null backend.
  Group();
  // Not inline: gcc 12 warns of members of a moved default argument ("may be used uninitialized").
  ~Group();
  Group(const Group& other);
  Group(Group&& other) noexcept;
  Group& operator=(const Group& other);
  Group& operator=(Group&& other) noexcept;

  int rank() const;
  int size() const;
  const std::string& name() const;
  /// Backend for tensors on such a device: "null", "gloo", "nccl", ...; "" before open() or the first tensor there.
  const char* backend(at::Device device = at::kCPU) const;
  /// World rank of each member, in group order.
  const std::vector<int>& members() const;

  Work all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, std::string_view what = "") const;
  Work reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op = ReduceOp::sum, std::string_view what = "") const;
  Work all_gather(at::Tensor out, at::Tensor in, std::string_view what = "") const;
  Work broadcast(at::Tensor tensor, int root, std::string_view what = "") const;
  Work all_to_all(at::Tensor out, at::Tensor in, std::string_view what = "") const;
  Work send(at::Tensor tensor, int to, int tag = 0, std::string_view what = "") const;
  Work recv(at::Tensor tensor, int from, int tag = 0, std::string_view what = "") const;
  Work barrier(std::string_view what = "") const;

  /// Opens the backend for tensors on such a device now, so that a missing requirement is an error here and not in the
  /// first operation. Also opens its messages between neighbours: NCCL sends none otherwise. Collective, with the same
  /// `neighbours` on every rank; does nothing for the CPU, in a group of one, or a second time. Errors: Error when no
  /// backend here moves such tensors; PeerError naming the rank that does not connect.
  void open(at::Device device, Neighbours neighbours = Neighbours::none) const;

  /// Creates a group of these ranks of this group. Collective: every member calls it with the same ranks and name in
  /// the same order; members outside `ranks` get a group of one. Errors: Error for ranks that repeat or are not
  /// members; PeerError naming the rank that does not connect in time.
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;

  /// Reports this rank's failure to the other ranks, so that their errors name it too.
  void report_failure(const std::string& why) const;

  /// Allocates uninitialised memory, 64-byte aligned. On the host the group's backend moves it without a
  /// copy.
  at::Tensor allocate(int64_t numel, at::ScalarType type, at::Device device = at::kCPU) const;

  /// Bytes that this rank has sent through this group (closed form of the algorithm in use, without
  /// headers).
  int64_t bytes_sent() const;

  class State;
  explicit Group(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

} // namespace trireme::comm
