#pragma once

#include <trireme/comm/compressed/compressor.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// What compression has not sent yet. Its owner keeps it from round to round, and in checkpoints.
struct ErrorFeedback {
  /// Of this rank's numbers: [numel], fp32.
  at::Tensor worker;
  /// Of the means that this rank makes: [CompressedAllReduce::mine().count()], fp32.
  at::Tensor server;
};

/// Adds this rank's numbers of elements [begin, end) to to[0, end - begin). Called by several threads, for each stretch
/// once.
using AddNumbers = std::function<void(int64_t begin, int64_t end, float* to)>;
/// Takes the means of elements [begin, end), which it may change. Called by several threads, for each stretch once.
using TakeMeans = std::function<void(int64_t begin, int64_t end, float* means)>;

/// The mean over the ranks of a group, compressed in both directions, of tensors of one length, over any backend.
///
/// Element ranges of equal length belong to one rank each. A rank adds its error to its numbers and compresses them,
/// range by range; an all-to-all brings each range's messages to its rank, which takes the mean, adds its own error and
/// compresses again; an all-gather brings that to everybody. All ranks get the same bits. What a round leaves out it
/// keeps as error, so that the sum of the results of all rounds is the sum of the true means, less the mean of the
/// workers' errors and the servers' errors. Cost for messages of M bytes (all ranges together) and N ranks: each rank
/// sends 2M(N-1)/N; an error is fp32 and has numel (1 + 1/N) elements; the messages 2M bytes. A group of one exchanges
/// nothing and loses nothing. Source: Tang et al. 2021, 1-bit Adam, arXiv:2102.02888, algorithm 1; Tang et al. 2019,
/// DoubleSqueeze, arXiv:1905.05957.
class CompressedAllReduce {
 public:
  /// The same on every rank. `stretches`: what is sent, in order, cut further as cut() does; elements outside must be
  /// 0. Empty: all. Errors: Error for stretches that overlap or leave the tensor.
  CompressedAllReduce(Group group, std::shared_ptr<const Compressor> compressor, int64_t numel,
                      std::vector<Stretch> stretches = {});

  /// The range whose mean this rank makes.
  Stretch mine() const {
    return ranges_[group_.rank()];
  }
  ErrorFeedback no_errors(at::Device device) const;
  /// Bytes that this rank sends in a round; the same on every rank.
  int64_t bytes_a_round() const;

  /// `x` [numel], fp32 or bf16, contiguous, becomes the mean. Returns when it is done. Collective.
  /// Errors: Error for a tensor or errors of another shape, type or device; PeerError as Group's.
  void run(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what = "");

  // The same in three steps, between which something else may be done: every rank takes those of all its rounds in one
  // order, and one object's before its next round.

  /// Takes in x (fp32 or bf16), which may change afterwards, and starts the all-to-all.
  void start(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what = "");
  /// Waits for it and starts the all-gather.
  void turn(const ErrorFeedback& errors);
  /// Waits for that and writes the mean to `out` (fp32 or bf16).
  void finish(const at::Tensor& out);

  // Their first and last where neither the numbers nor the means have to be a tensor: with by_stretches(). A stretch is
  // read and written while it is in the first cache, so memory is read and written for the errors (start(): 8 bytes an
  // element) and by the functions only. The same bits.

  /// On the CPU, with compressors that have loops of their own.
  bool by_stretches(const at::Device& device) const {
    return device.is_cpu() && compressor_->loops() != nullptr;
  }
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
  at::Tensor sent_;                                      // [ranks * slice_], then what the all-gather brings
  at::Tensor received_;
  std::string what_;
  Work work_;
};

} // namespace trireme::comm
