#include <trireme/comm/hierarchy/hierarchical_backend.h>

#include <trireme/base/text.h>
#include <trireme/comm/gloo/gloo_backend.h>
#include <trireme/comm/hierarchy/host_blocks.h>
#include <trireme/comm/hierarchy/task_thread.h>
#include <trireme/comm/reduce.h>
#include <trireme/comm/shm/shm_backend.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>

namespace trireme::comm {
namespace {

/// Below this, two short steps are faster than three with less traffic.
constexpr int64_t kSmallBytes = 16 << 10;
/// Bytes on the link while memory prepares the next chunk.
constexpr int64_t kChunkBytes = 4 << 20;

void finish(const std::shared_ptr<Pending>& pending) {
  if (pending) {
    pending->wait();
  }
}

// On the caller's thread, because an error in a task ends the group.
void check_type(const at::Tensor& tensor, const char* op) {
  element_of(tensor.scalar_type(), op, "shared memory");
}

class HierarchicalBackend : public Backend {
 public:
  HierarchicalBackend(const GroupSetup& setup, HostBlocks blocks, std::shared_ptr<Backend> inner,
                      std::shared_ptr<Backend> outer, std::shared_ptr<Backend> everyone)
      : Backend(setup.rank, setup.size),
        blocks_(blocks),
        inner_(std::move(inner)),
        outer_(std::move(outer)),
        everyone_(std::move(everyone)),
        name_(concat(inner_->name(), "+", outer_->name())),
        interrupt_([parts = std::array<std::weak_ptr<Backend>, 3>{inner_, outer_, everyone_}] {
          for (const auto& part : parts) {
            if (const auto backend = part.lock()) {
              backend->interrupt();
            }
          }
        }),
        thread_(std::make_unique<TaskThread>(interrupt_)) {}
  ~HierarchicalBackend() override { HierarchicalBackend::close(); }

  const char* name() const override { return name_.c_str(); }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    check_type(tensor, "all_reduce");
    return run([this, tensor = flat(tensor), op] { reduce_everywhere(tensor, op); });
  }

  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    check_type(in, "reduce_scatter");
    return run([this, out = flat(out), in = flat(in), op] {
      // For every host: this host's part for its l-th rank.
      const int64_t slice = out.numel();
      const int64_t block = slice * blocks_.per_host;
      at::Tensor sums = inner_->allocate(slice * blocks_.hosts, out.scalar_type());
      std::vector<std::shared_ptr<Pending>> steps;
      for (int host = 0; host < blocks_.hosts; ++host) {
        steps.push_back(
            inner_->reduce_scatter(sums.narrow(0, host * slice, slice), in.narrow(0, host * block, block), op));
      }
      for (const auto& step : steps) {
        finish(step);
      }
      finish(outer_->reduce_scatter(out, sums, op));
    });
  }

  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    return run([this, out = flat(out), in = flat(in)] {
      const int64_t slice = in.numel();
      const int64_t block = slice * blocks_.per_host;
      at::Tensor mine = inner_->allocate(slice * blocks_.hosts, in.scalar_type());
      finish(outer_->all_gather(mine, in));
      std::vector<std::shared_ptr<Pending>> steps;
      for (int host = 0; host < blocks_.hosts; ++host) {
        steps.push_back(inner_->all_gather(out.narrow(0, host * block, block), mine.narrow(0, host * slice, slice)));
      }
      for (const auto& step : steps) {
        finish(step);
      }
    });
  }

  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    return run([this, tensor = flat(tensor), root] {
      const int local_root = root % blocks_.per_host;
      if (inner_->rank() == local_root) {
        finish(outer_->broadcast(tensor, root / blocks_.per_host));
      }
      finish(inner_->broadcast(tensor, local_root));
    });
  }

  std::shared_ptr<Pending> barrier() override {
    return run([this] {
      finish(inner_->barrier());
      finish(outer_->barrier());
      finish(inner_->barrier());
    });
  }

  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override { return everyone_->all_to_all(out, in); }
  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    return same_host(to) ? inner_->send(tensor, to % blocks_.per_host, tag) : everyone_->send(tensor, to, tag);
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    return same_host(from) ? inner_->recv(tensor, from % blocks_.per_host, tag) : everyone_->recv(tensor, from, tag);
  }

  at::Tensor allocate(int64_t numel, at::ScalarType type) override { return inner_->allocate(numel, type); }
  int64_t bytes_sent() const override { return inner_->bytes_sent() + outer_->bytes_sent() + everyone_->bytes_sent(); }

  void interrupt() override { interrupt_(); }
  void close() override {
    if (!thread_) {
      return;
    }
    interrupt();
    thread_.reset();
    for (const auto& part : {everyone_, outer_, inner_}) {
      part->close();
    }
  }

 private:
  bool same_host(int member) const { return member / blocks_.per_host == rank_ / blocks_.per_host; }

  std::shared_ptr<Pending> run(std::function<void()> steps) {
    if (!thread_) {
      throw Trouble(Trouble::Kind::lost, "the group is closed");
    }
    return thread_->run(std::move(steps));
  }

  void reduce_everywhere(const at::Tensor& tensor, ReduceOp op) {
    const int64_t locals = blocks_.per_host;
    const int64_t sliced = static_cast<int64_t>(tensor.nbytes()) <= kSmallBytes ? 0 : tensor.numel() / locals * locals;
    struct Chunk {
      at::Tensor whole;
      at::Tensor mine;
      std::shared_ptr<Pending> step;
    };
    std::vector<Chunk> chunks;
    const int64_t chunk =
        std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(tensor.element_size()) / locals) * locals;
    for (int64_t begin = 0; begin < sliced; begin += chunk) {
      const int64_t count = std::min(chunk, sliced - begin);
      Chunk next{tensor.narrow(0, begin, count), {}, {}};
      next.mine = next.whole.narrow(0, count / locals * inner_->rank(), count / locals);
      next.step = inner_->reduce_scatter(next.mine, next.whole, op);
      chunks.push_back(std::move(next));
    }
    for (Chunk& part : chunks) {
      finish(part.step);
      part.step = outer_->all_reduce(part.mine, op);
    }
    for (Chunk& part : chunks) {
      finish(part.step);
      part.step = inner_->all_gather(part.whole, part.mine);
    }
    for (const Chunk& part : chunks) {
      finish(part.step);
    }
    if (sliced < tensor.numel()) {
      const at::Tensor rest = tensor.narrow(0, sliced, tensor.numel() - sliced);
      finish(inner_->all_reduce(rest, op));
      finish(outer_->all_reduce(rest, op));
    }
  }

  HostBlocks blocks_;
  /// The members of this host; those with this local rank on all hosts; all members.
  std::shared_ptr<Backend> inner_;
  std::shared_ptr<Backend> outer_;
  std::shared_ptr<Backend> everyone_;
  std::string name_;
  /// Interrupts all three backends. An operation may outlive this object.
  std::function<void()> interrupt_;
  std::unique_ptr<TaskThread> thread_;
};

/// The setup of a part of the group, under its own keys.
GroupSetup part_of(const GroupSetup& setup, const std::string& name, int first, int stride, int count, int rank) {
  GroupSetup part = setup;
  part.name = concat(setup.name, " (", name, ")");
  part.store = setup.store.scoped(name + "/");
  part.rank = rank;
  part.size = count;
  part.members.clear();
  part.hosts.clear();
  for (int i = 0; i < count; ++i) {
    part.members.push_back(setup.members[static_cast<size_t>(first + i * stride)]);
    part.hosts.push_back(setup.hosts[static_cast<size_t>(first + i * stride)]);
  }
  return part;
}

} // namespace

bool hierarchy_suits(const GroupSetup& setup) {
  const auto blocks = host_blocks(setup.hosts);
  return blocks && blocks->hosts > 1 && blocks->per_host > 1 && blocks->per_host <= kMostShmRanks;
}

std::shared_ptr<Backend> connect_hierarchy(const GroupSetup& group) {
  GroupSetup setup = group;
  if (!hierarchy_suits(setup)) {
    throw InputError("comm",
                     concat("backend \"shm+gloo\" is for several hosts with equally many ranks, 2 to ", kMostShmRanks,
                            ", on each; group \"", setup.name, "\" has another layout."),
                     "Set the backend to \"auto\" or \"gloo\" (TRIREME_BACKEND or WorldOptions::backend).");
  }
  const HostBlocks blocks = *host_blocks(setup.hosts);
  const int host = setup.rank / blocks.per_host;
  const int local = setup.rank % blocks.per_host;
  std::shared_ptr<Backend> inner;
  std::string verdict = "well";
  try {
    inner = connect_shm(part_of(setup, concat("host", host), host * blocks.per_host, 1, blocks.per_host, local));
  } catch (const Trouble& trouble) {
    verdict = trouble.happened;
  }
  for (const auto& answer : exchange(setup, "hierarchy", verdict)) {
    if (answer != "well") {
      throw Trouble(Trouble::Kind::lost, answer);
    }
  }
  auto outer = connect_gloo(part_of(setup, concat("between", local), local, blocks.per_host, blocks.hosts, host));
  auto everyone = connect_gloo(part_of(setup, "all", 0, 1, setup.size, setup.rank));
  return std::make_shared<HierarchicalBackend>(setup, blocks, std::move(inner), std::move(outer), std::move(everyone));
}

} // namespace trireme::comm
