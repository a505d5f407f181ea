#pragma once

#include <trireme/base/error.h>
#include <trireme/extensions/horovod/exchange.h>
#include <trireme/extensions/horovod/horovod.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::horovod {

/// The exchange of a process set on this rank.
class ProcessSet::State {
 public:
  State(std::vector<int> ranks, const comm::Group& group, int rank, const ExchangeOptions& options)
      : ranks(std::move(ranks)), rank(rank) {
    if (rank >= 0) {
      exchange = std::make_unique<Exchange>(group, options);
    }
  }
  /// Numbers an operation without a name; after all checks, so that one refused on this rank alone takes no number.
  std::shared_ptr<Task> submit(Request request, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs = {},
                               std::optional<at::ScalarType> type = std::nullopt) {
    if (request.name.empty()) {
      request.name = concat(name_of(request.kind), '.', ++numbers[static_cast<size_t>(request.kind)]);
    }
    return exchange->submit(std::move(request), std::move(inputs), std::move(outputs), type);
  }
  void number_anew() {
    for (auto& number : numbers) {
      number = 0;
    }
  }

  const std::vector<int> ranks; // ranks of the world
  const int rank;               // within the set; -1: not in it
  std::unique_ptr<Exchange> exchange;

 private:
  std::array<std::atomic<int64_t>, 8> numbers{};
};

/// The set of all ranks if `set` is empty. Errors: InputError before init().
ProcessSet::State& state_of(const ProcessSet& set);
/// The same for operations that only members may call. Errors: InputError for other ranks.
ProcessSet::State& member_of(const ProcessSet& set);

} // namespace trireme::horovod
