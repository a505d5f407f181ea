#pragma once

#include <trireme/comm/group.h>
#include <trireme/extensions/compress/compressors/compressor.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// The compression error not sent yet. Its owner keeps it between rounds, and in checkpoints.
struct ErrorFeedback {
  /// Error of this rank's numbers: [numel], fp32.
  at::Tensor worker;
  /// Error of the means that this rank computes: [CompressedAllReduce::mine().count()], fp32.
  at::Tensor server;
};

/// Adds this rank's numbers of elements [begin, end) to to[0, end - begin). Called by several threads, once per
/// stretch.
using AddNumbers = std::function<void(int64_t begin, int64_t end, float* to)>;
/// Receives the means of elements [begin, end), and may change them. Called by several threads, once per stretch.
using TakeMeans = std::function<void(int64_t begin, int64_t end, float* means)>;

/// The mean over a group's ranks, compressed in both directions, of tensors of one length, over any backend.
///
/// Each rank owns an element range of equal length. A rank adds its error to its numbers and compresses them, range
/// by range. An all-to-all sends each range's messages to its owner, which takes the mean, adds its own error and
/// compresses again; an all-gather distributes the results. All ranks get the same bits. Each round keeps what it
/// lost as error: the sum of all rounds' results is the sum of the true means, less the mean of the workers' errors
/// and the servers' errors. Cost for messages of M bytes (all ranges) and N ranks: each rank sends 2M(N-1)/N; errors
/// are fp32, numel (1 + 1/N) elements; message buffers 2M bytes. A group of one exchanges nothing and loses nothing.
/// Source: Tang et al. 2021, 1-bit Adam, arXiv:2102.02888, algorithm 1; Tang et al. 2019, DoubleSqueeze,
/// arXiv:1905.05957.
class CompressedAllReduce {
 public:
  /// Arguments are the same on every rank. `stretches`: elements to send, in order, cut further as by cut(); all others
  /// must be 0. Empty: all. Errors: Error for stretches that overlap or leave the tensor.
  CompressedAllReduce(Group group, std::shared_ptr<const Compressor> compressor, int64_t numel,
                      std::vector<Stretch> stretches = {});

  /// The range whose mean this rank computes.
  Stretch mine() const { return ranges_[group_.rank()]; }
  ErrorFeedback no_errors(at::Device device) const;

  /// `x` [numel], fp32 or bf16, contiguous, becomes the mean. Returns when it is done. Collective.
  /// Errors: Error for a tensor or errors of another shape, type or device; PeerError as Group's.
  void run(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what = "");

  // The same in three steps, to overlap other work. Every rank runs the steps of all its rounds in one order, and
  // finishes a round of an object before the next.

  /// Reads x (fp32 or bf16), which may change afterwards, and starts the all-to-all.
  void start(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what = "");
  /// Waits for it and starts the all-gather.
  void turn(const ErrorFeedback& errors);
  /// Waits for it and writes the mean to `out` (fp32 or bf16).
  void finish(const at::Tensor& out);

  // First and last step without tensors for numbers and means, with by_stretches(). Each stretch is read and written
  // while in the L1 cache: memory traffic is only that of the errors (start(): 8 bytes per element) and of the
  // functions. The same bits.

  /// True on the CPU, with compressors that have their own loops.
  bool by_stretches(const at::Device& device) const { return device.is_cpu() && compressor_->loops() != nullptr; }
  void start(const AddNumbers& add, const ErrorFeedback& errors, std::string_view what = "");
  void finish(const TakeMeans& take);

 private:
  void make_messages(at::Device device);
  void add_means(const at::Tensor& server, const at::Tensor& mean) const;
  void check(const at::Tensor& x) const;
  void check(const ErrorFeedback& errors, at::Device device) const;
  at::Tensor message(const at::Tensor& all, int rank, int range) const;

  Group group_;
  std::shared_ptr<const Compressor> compressor_;
  int64_t numel_;
  std::vector<Stretch> ranges_;                          // of each rank
  std::vector<std::vector<Stretch>> stretches_;          // of each range, from its beginning on
  std::vector<std::vector<StretchLoops::Place>> places_; // of each range's stretches, with by_stretches()
  int64_t slice_ = 0;                                    // bytes of the longest message of a range, and alignment
  at::Tensor sent_;                                      // [ranks * slice_], then the all-gather's result
  at::Tensor received_;
  std::string what_;
  Work work_;
};

} // namespace trireme::comm
