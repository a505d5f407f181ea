#pragma once

#include <trireme/base/env.h>
#include <trireme/comm/environment.h>
#include <trireme/comm/group_state.h>
#include <trireme/comm/rendezvous.h>
#include <trireme/comm/staged/staged_backend.h>

#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gtest/gtest.h>

#include <signal.h>

// What a staged backend must do, whatever device the tensors are on: it is compared with a host backend of its kind.
namespace trireme::comm {

/// Small, so that tensors of a test are several pieces.
constexpr StagedOptions kSmallPieces{.piece_bytes = 16 << 10, .ahead = 2};

/// One rank: a host backend, and a staged one over another of the same kind.
class StagedRank {
 public:
  StagedRank(const std::string& host, at::Device device, std::chrono::milliseconds timeout)
      : device(device),
        timeout_(timeout),
        environment_(read_environment([](const std::string& name) { return env::text(name.c_str()); })),
        meeting_(meet(environment_, timeout)),
        watch_(
            std::make_shared<Watch>(meeting_.watch_store, environment_.rank, environment_.size, meeting_.store_host)) {
    signal(SIGPIPE, SIG_IGN);
    const BackendEntry& entry = find_backend(host);
    direct = entry.connect(setup("direct"));
    staged = make_staged_backend(entry.connect(setup("staged")), device.type(), kSmallPieces);
  }
  ~StagedRank() {
    watch_->leave("", timeout_);
    if (state_) {
      state_->close();
    }
    staged->close();
    direct->close();
  }

  int rank() const { return environment_.rank; }
  int size() const { return environment_.size; }
  /// A group that moves tensors with the staged backend, watched as those of a World are.
  Group group() {
    std::vector<int> all;
    for (int member = 0; member < size(); ++member) {
      all.push_back(member);
    }
    state_ = std::make_shared<Group::State>("staged", "staged/0", all, std::make_unique<Routes>(staged), timeout_,
                                            watch_, size());
    watch_->add(state_);
    return Group(state_);
  }

  const at::Device device;
  std::shared_ptr<Backend> direct;
  std::shared_ptr<Backend> staged;

 private:
  GroupSetup setup(const std::string& key) const {
    GroupSetup setup{.name = key,
                     .store = meeting_.store.scoped(key + "/"),
                     .rank = rank(),
                     .size = size(),
                     .members = {},
                     .hosts = meeting_.hosts};
    setup.timeout = timeout_;
    for (int member = 0; member < size(); ++member) {
      setup.members.push_back(member);
    }
    return setup;
  }

  const std::chrono::milliseconds timeout_;
  Environment environment_;
  Meeting meeting_;
  std::shared_ptr<Watch> watch_;
  std::shared_ptr<Group::State> state_;
};

/// Forks the ranks; `prepare` runs first in each (it makes a device known, where that is needed).
inline std::vector<std::string> run_staged(int ranks, const std::string& host, at::Device device,
                                           const std::function<void(StagedRank&)>& body,
                                           std::chrono::milliseconds timeout = std::chrono::seconds(30),
                                           const std::function<void()>& prepare = nullptr) {
  return test::run_processes(ranks, [&](int) {
    if (prepare) {
      prepare();
    }
    StagedRank rank(host, device, timeout);
    body(rank);
  });
}

inline void complete(const std::shared_ptr<Pending>& pending) {
  if (pending) {
    pending->wait();
    EXPECT_NO_THROW(pending->wait()) << "a second time";
  }
}

/// Numbers with all their bits in use, the same in every run, others on every rank.
inline at::Tensor bits(int rank, int64_t numel, at::ScalarType type, int64_t salt) {
  const at::Tensor whole = (torch::arange(numel, torch::kInt64) * 2654435761 + rank * 40503 + salt * 97) % 1000003;
  return at::isFloatingType(type) ? (whole.to(torch::kDouble) / 7919.0 - 60).to(type) : (whole % 61).to(type);
}

inline void expect_bits(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  const at::Tensor host = found.cpu();
  ASSERT_EQ(host.numel(), wanted.numel()) << what;
  EXPECT_TRUE(torch::equal(host, wanted))
      << what << ": " << (host != wanted).sum().item<int64_t>() << " of " << wanted.numel() << " differ";
}

/// Columns of one piece, as the backend cuts them.
inline int64_t piece_columns(int size, int64_t rows, at::ScalarType type) {
  const int64_t cut = 64 * size;
  return std::max(cut, kSmallPieces.piece_bytes / static_cast<int64_t>(c10::elementSize(type)) / rows / cut * cut);
}

/// Every operation, in sizes around that of a piece, against the host backend. `same_order`: the host adds pieces as it
/// adds the whole.
inline void equal_the_host(StagedRank& peer, at::ScalarType type, bool same_order) {
  const int size = peer.size();
  const int rank = peer.rank();
  const auto there = [&](const at::Tensor& tensor) { return tensor.clone().to(peer.device); };
  for (const bool by_rows : {false, true}) {
    const int64_t piece = piece_columns(size, by_rows ? size : 1, type);
    for (const int64_t n : {int64_t{0}, int64_t{1}, piece - 1, piece, piece + 1, 3 * piece + 5}) {
      const std::string what = concat(c10::toString(type), " x ", n, by_rows ? " each of " : " of ", size);
      const bool exact = same_order || n <= piece || !at::isFloatingType(type);
      const auto expect_sum = [&](const at::Tensor& found, const at::Tensor& wanted, const std::string& op) {
        if (exact) {
          expect_bits(found, wanted, op + " " + what);
        } else {
          EXPECT_TRUE(torch::allclose(found.cpu().to(torch::kDouble), wanted.to(torch::kDouble), 1e-2, 1.0))
              << op << " " << what;
        }
      };
      if (!by_rows) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
          at::Tensor wanted = bits(rank, n, type, 1);
          at::Tensor found = there(wanted);
          complete(n == 0 ? nullptr : peer.direct->all_reduce(wanted, op));
          complete(peer.staged->all_reduce(found, op));
          expect_sum(found, wanted, "all_reduce");
        }
        for (int root = 0; root < size; ++root) {
          at::Tensor wanted = bits(rank, n, type, 2);
          at::Tensor found = there(wanted);
          complete(n == 0 ? nullptr : peer.direct->broadcast(wanted, root));
          complete(peer.staged->broadcast(found, root));
          expect_bits(found, wanted, "broadcast " + what);
        }
        continue;
      }
      at::Tensor whole = bits(rank, n * size, type, 3);
      at::Tensor part = torch::zeros({n}, type);
      at::Tensor far_whole = there(whole);
      at::Tensor far_part = there(part);
      complete(n == 0 ? nullptr : peer.direct->reduce_scatter(part, whole, ReduceOp::sum));
      complete(peer.staged->reduce_scatter(far_part, far_whole, ReduceOp::sum));
      expect_sum(far_part, part, "reduce_scatter");
      expect_bits(far_whole, whole, "the input of reduce_scatter " + what);
      complete(peer.staged->reduce_scatter(far_whole.narrow(0, rank * n, n), far_whole, ReduceOp::sum));
      expect_sum(far_whole.narrow(0, rank * n, n), part, "reduce_scatter into its own slice");

      part = bits(rank, n, type, 4);
      far_part = there(part);
      complete(n == 0 ? nullptr : peer.direct->all_gather(whole, part));
      complete(peer.staged->all_gather(far_whole, far_part));
      expect_bits(far_whole, whole, "all_gather " + what);
      far_whole.zero_();
      far_whole.narrow(0, rank * n, n).copy_(far_part);
      complete(peer.staged->all_gather(far_whole, far_whole.narrow(0, rank * n, n)));
      expect_bits(far_whole, whole, "all_gather from its own slice " + what);

      at::Tensor out = torch::zeros_like(whole);
      whole = bits(rank, n * size, type, 5);
      far_whole = there(whole);
      at::Tensor far_out = torch::zeros_like(far_whole);
      complete(n == 0 ? nullptr : peer.direct->all_to_all(out, whole));
      complete(peer.staged->all_to_all(far_out, far_whole));
      expect_bits(far_out, out, "all_to_all " + what);
    }
  }
  complete(peer.staged->barrier());
}

/// Messages of all sizes between all pairs: every rank sends before it receives, and waits in the other order than it
/// has begun.
inline void messages_in_crossing_orders(StagedRank& peer) {
  const int64_t piece = piece_columns(1, 1, torch::kFloat32);
  const std::vector<int64_t> sizes = {1, piece - 1, piece, piece + 1, 3 * piece + 5, 0, 40 * piece};
  std::vector<at::Tensor> kept;
  std::vector<std::shared_ptr<Pending>> sends;
  struct Incoming {
    std::shared_ptr<Pending> pending;
    at::Tensor tensor;
    at::Tensor wanted;
  };
  std::vector<Incoming> incoming;
  for (size_t tag = 0; tag < sizes.size(); ++tag) {
    for (int other = 0; other < peer.size(); ++other) {
      if (other != peer.rank()) {
        kept.push_back(bits(peer.rank(), sizes[tag], torch::kFloat32, static_cast<int64_t>(tag)).to(peer.device));
        sends.push_back(peer.staged->send(kept.back(), other, static_cast<int>(tag)));
      }
    }
  }
  for (size_t tag = sizes.size(); tag-- > 0;) {
    for (int other = 0; other < peer.size(); ++other) {
      if (other != peer.rank()) {
        const at::Tensor tensor = torch::zeros({sizes[tag]}).to(peer.device);
        incoming.push_back({peer.staged->recv(tensor, other, static_cast<int>(tag)), tensor,
                            bits(other, sizes[tag], torch::kFloat32, static_cast<int64_t>(tag))});
      }
    }
  }
  // A collective in between has its own way.
  at::Tensor ones = torch::ones({5 * piece}).to(peer.device);
  complete(peer.staged->all_reduce(ones, ReduceOp::sum));
  expect_bits(ones, torch::full({5 * piece}, static_cast<float>(peer.size())), "all_reduce among messages");
  for (size_t i = 0; i < incoming.size(); ++i) {
    Incoming& one = incoming[(i * 7 + 3) % incoming.size()];
    complete(one.pending);
    EXPECT_TRUE(!one.pending || one.pending->done() || !peer.device.is_cpu());
    expect_bits(one.tensor, one.wanted, concat("message of ", one.wanted.numel()));
  }
  for (auto send = sends.rbegin(); send != sends.rend(); ++send) {
    complete(*send);
  }
}

/// A message that nobody takes yet keeps none behind it.
inline void later_message_first(StagedRank& peer) {
  const int next = (peer.rank() + 1) % peer.size();
  const int before = (peer.rank() + peer.size() - 1) % peer.size();
  std::vector<at::Tensor> kept;
  std::vector<std::shared_ptr<Pending>> sends;
  for (int tag = 0; tag < 3; ++tag) {
    kept.push_back(bits(peer.rank(), 500'000, torch::kFloat32, tag).to(peer.device));
    sends.push_back(peer.staged->send(kept.back(), next, tag));
  }
  for (int tag = 2; tag >= 0; --tag) {
    const at::Tensor tensor = torch::zeros({500'000}).to(peer.device);
    complete(peer.staged->recv(tensor, before, tag));
    expect_bits(tensor, bits(before, 500'000, torch::kFloat32, tag), concat("message ", tag));
  }
  for (const auto& send : sends) {
    complete(send);
  }
}

/// Operations on results of operations, with nobody but streams waiting in between.
inline void many_under_way(StagedRank& peer) {
  std::vector<at::Tensor> tensors;
  std::vector<std::shared_ptr<Pending>> pendings;
  for (int index = 0; index < 40; ++index) {
    tensors.push_back(
        (torch::arange(100 + index * 997) % 13 + peer.rank() + index).to(torch::kFloat32).to(peer.device).mul_(2));
    pendings.push_back(peer.staged->all_reduce(tensors.back(), ReduceOp::sum));
  }
  for (int index = 39; index >= 0; --index) {
    complete(pendings[static_cast<size_t>(index)]);
    const int size = peer.size();
    const at::Tensor wanted =
        ((torch::arange(100 + index * 997) % 13 + index) * size + size * (size - 1) / 2).to(torch::kFloat32) * 2 + 1;
    expect_bits(tensors[static_cast<size_t>(index)].add_(1), wanted, concat("tensor ", index));
  }
  pendings.clear();
  at::Tensor dropped = torch::ones({50'000}).to(peer.device);
  peer.staged->all_reduce(dropped, ReduceOp::sum);
  expect_bits(dropped, torch::full({50'000}, static_cast<float>(peer.size())), "an operation that nobody waits for");
}

} // namespace trireme::comm
