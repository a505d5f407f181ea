#include <trireme/extensions/horovod/exchange.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/comm/same_ranks.h>
#include <trireme/monitor/chrome_trace.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <cstring>

namespace trireme::horovod {
namespace {

using monitor::Lane;
using monitor::Tracer;
using monitor::tracer;

constexpr int64_t kMessage = 4096; // its first 8 bytes are the length of the whole message

// All ranks must fuse the same tensors, so rank 0's threshold counts.
int64_t agreed(const comm::Group& ranks, int64_t fusion_bytes) {
  at::Tensor bytes = at::full({1}, fusion_bytes, at::kLong);
  ranks.broadcast(bytes, 0, "fusion threshold").wait();
  return bytes.item<int64_t>();
}

std::string upper(std::string text) {
  for (char& letter : text) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return text;
}

} // namespace

bool Task::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Task::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  if (error_) {
    std::rethrow_exception(error_);
  }
  for (const at::Tensor& output : operands.outputs) {
    const c10::Stream stream = device::current_stream(output.device());
    operands.done.block(stream);
    device::record_stream(output, stream); // it may have been allocated on the exchange's stream
  }
}

void Task::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

Exchange::Exchange(const comm::Group& ranks, const ExchangeOptions& options)
    : group_(comm::same_ranks(ranks, "horovod")),
      options_(options),
      negotiation_(group_.size()),
      execution_(group_, agreed(group_, options.fusion_bytes), options.device.value_or(at::kCPU)) {
  if (options_.device) {
    // Opened before the first tensor, at which threads of several exchanges would wait for each other's ranks.
    group_.open(*options_.device);
  }
  thread_ = std::thread([this] { run(); });
}

Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Task> Exchange::submit(Request request, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                                       std::optional<at::ScalarType> type) {
  auto task = std::make_shared<Task>(std::move(request));
  task->operands.inputs = std::move(inputs);
  task->operands.outputs = std::move(outputs);
  task->operands.type = type;
  task->asked_ns = Tracer::now_ns();
  if (task->request.on_device) {
    const at::Device device = task->operands.inputs.front().device();
    task->operands.ready = device::Event(device.type());
    task->operands.ready.record(device::current_stream(device));
  }
  const std::lock_guard lock(mutex_);
  if (ended_) {
    std::rethrow_exception(ended_);
  }
  if (!waiting_.try_emplace(task->request.name, task).second) {
    throw Error("horovod",
                concat(name_of(task->request.kind), " of \"", task->request.name,
                       "\" while an operation of this name is in progress"),
                "Synchronize the first one, or give each its own name.");
  }
  fresh_.push_back(task);
  changed_.notify_all();
  return task;
}

std::vector<std::shared_ptr<Task>> Exchange::collect() {
  std::unique_lock lock(mutex_);
  const auto wanted = [this] { return !fresh_.empty() || stopping_; };
  if (waiting_.empty()) {
    changed_.wait_for(lock, options_.idle, wanted);
  } else if (fresh_.empty()) {
    changed_.wait_for(lock, options_.cycle, wanted);
  }
  return std::exchange(fresh_, {});
}

std::vector<std::string> Exchange::exchange(const std::string& mine) {
  const int ranks = group_.size();
  const auto gather = [&](const char* bytes, int64_t count, int64_t each) {
    const at::Tensor sent = group_.allocate(each, at::kByte).zero_();
    at::Tensor all = group_.allocate(each * ranks, at::kByte);
    std::memcpy(sent.data_ptr(), bytes, static_cast<size_t>(count));
    group_.all_gather(all, sent, "requests").wait();
    return all;
  };
  const auto length = static_cast<int64_t>(mine.size());
  std::string first(sizeof(length), '\0');
  std::memcpy(first.data(), &length, sizeof(length));
  first += mine.substr(0, static_cast<size_t>(kMessage) - sizeof(length));
  const at::Tensor heads = gather(first.data(), std::ssize(first), kMessage);
  std::vector<int64_t> lengths(static_cast<size_t>(ranks));
  const auto* const bytes = static_cast<const char*>(heads.const_data_ptr());
  int64_t longest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::memcpy(&lengths[static_cast<size_t>(rank)], bytes + rank * kMessage, sizeof(int64_t));
    longest = std::max(longest, lengths[static_cast<size_t>(rank)]);
  }
  const bool one_message = longest <= kMessage - static_cast<int64_t>(sizeof(int64_t));
  const at::Tensor rest = one_message ? at::Tensor() : gather(mine.data(), length, longest);
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) {
    const char* const begin = one_message ? bytes + rank * kMessage + sizeof(int64_t)
                                          : static_cast<const char*>(rest.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, static_cast<size_t>(lengths[static_cast<size_t>(rank)]));
  }
  return texts;
}

void Exchange::run() {
  const Note note("horovod's exchange");
  try {
    if (options_.device) {
      device::make_current(*options_.device);
    }
    for (;;) {
      nlohmann::json requests = nlohmann::json::array();
      for (const auto& task : collect()) {
        requests.push_back(task->request.to_json());
      }
      std::string mine;
      nlohmann::json::to_cbor({why_end(), std::move(requests)}, mine);
      std::string ending;
      const std::vector<std::string> texts = exchange(mine);
      for (int rank = 0; rank < group_.size(); ++rank) {
        const nlohmann::json message = nlohmann::json::from_cbor(texts[static_cast<size_t>(rank)]);
        for (const auto& request : message.at(1)) {
          negotiation_.add(rank, Request::from_json(request));
        }
        if (const std::string why = message.at(0); ending.empty() && !why.empty()) {
          ending = concat("rank ", rank, ' ', why);
        }
      }
      carry_out(negotiation_.take_ready());
      if (!ending.empty()) {
        end(std::make_exception_ptr(
            PeerError("horovod", ending, "Run the same operations on all ranks before one of them ends.")));
        return;
      }
      warn_of_stalls();
    }
  } catch (const PeerError&) {
    end(std::current_exception());
  } catch (const std::exception& error) {
    group_.report_failure(error.what());
    end(std::current_exception());
  }
}

std::string Exchange::why_end() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return "has shut Horovod down";
    }
  }
  if (options_.stall_shutdown.count() > 0 && negotiation_.oldest() > options_.stall_shutdown) {
    return concat("ends, because an operation has waited for other ranks for more than ",
                  options_.stall_shutdown.count(), " s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)");
  }
  return "";
}

void Exchange::end(const std::exception_ptr& why) {
  std::map<std::string, std::shared_ptr<Task>> left;
  {
    const std::lock_guard lock(mutex_);
    ended_ = why;
    left = std::exchange(waiting_, {});
    fresh_.clear();
  }
  for (const auto& [name, task] : left) {
    task->finish(why);
  }
}

std::shared_ptr<Task> Exchange::take(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) {
    return nullptr;
  }
  std::shared_ptr<Task> task = std::move(found->second);
  waiting_.erase(found);
  return task;
}

void Exchange::carry_out(const std::vector<Response>& responses) {
  // Leaves tasks in waiting_ until they are finished, so that an exception below fails them too.
  const auto find = [this](const Response& response) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(response.name);
    return found == waiting_.end() ? nullptr : found->second;
  };
  const int64_t begin_ns = Tracer::now_ns();
  execution_.run(
      responses,
      [&](const Response& response) -> Operands* {
        const auto task = find(response);
        return task ? &task->operands : nullptr;
      },
      [&](const Response& response) {
        const auto task = take(response.name);
        if (!task) {
          return;
        }
        if (tracer().on()) {
          const std::string kind = upper(name_of(task->request.kind));
          tracer().add(Lane::data, concat("NEGOTIATE_", kind, " ", response.name), task->asked_ns, begin_ns);
          tracer().add(Lane::communication, concat(kind, " ", response.name), begin_ns, Tracer::now_ns());
        }
        task->last_joined = response.any().root;
        task->finish(response.error.empty()
                         ? nullptr
                         : std::make_exception_ptr(
                               InputError("horovod", response.error,
                                          "Give the operation the same arguments on all ranks, or another name.")));
      });
}

void Exchange::warn_of_stalls() {
  if (options_.stall_check.count() == 0 || group_.rank() != 0) {
    return;
  }
  for (const std::string& line : negotiation_.stalled(options_.stall_check)) {
    log::warning("horovod: ", line, ". Do all ranks make the same calls?");
  }
}

} // namespace trireme::horovod
