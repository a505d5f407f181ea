#include <trireme/memory/aio/transfers.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/memory/aio/engine.h>
#include <trireme/memory/aio/queue.h>

#include <atomic>
#include <string>

namespace trireme::aio {
namespace {

bool may_use_uring(std::string& why_not) {
  const std::string wanted = env::text("TRIREME_AIO").value_or("io_uring");
  if (wanted != "threads" && wanted != "io_uring") {
    throw InputError("aio", concat("TRIREME_AIO is ", wanted), "Set it to threads or io_uring.");
  }
  why_not = wanted == "threads" ? "TRIREME_AIO is threads" : "";
  return wanted != "threads";
}

} // namespace

void check(const Options& options) {
  const auto refuse = [](const char* key, int64_t value, const std::string& needed) {
    throw InputError("aio", concat(key, " is ", value, ", ", needed, " is needed"));
  };
  if (options.block_size < kAlignment || options.block_size % kAlignment != 0 || options.block_size > kMostBlockBytes) {
    refuse("block_size", options.block_size, concat("a multiple of ", kAlignment, " of at most ", kMostBlockBytes));
  }
  if (options.queue_depth < 1 || options.queue_depth > kMostRequests) {
    refuse("queue_depth", options.queue_depth, concat("a number from 1 to ", kMostRequests));
  }
  if (options.threads < 1 || options.threads > kMostThreads) {
    refuse("intra_op_parallelism", options.threads, concat("a number from 1 to ", kMostThreads));
  }
}

Transfers::Transfers(const Options& options, bool io_uring) : queue_(std::make_unique<Queue>(options.block_size)) {
  check(options);
  std::string why_not = "the caller disabled it";
  if (io_uring && may_use_uring(why_not)) {
    engine_ = make_uring_engine(*queue_, options, why_not);
  }
  if (engine_ == nullptr) {
    static std::atomic<bool> said = false;
    if (io_uring && !said.exchange(true)) {
      log::info("aio: ", options.threads, options.threads == 1 ? " thread transfers" : " threads transfer",
                ", not io_uring: ", why_not);
    }
    engine_ = make_thread_engine(*queue_, options.threads);
  }
}

Transfers::~Transfers() {
  for (const std::string& error : queue_->wait_for_all()) {
    log::warning("aio: ", error);
  }
}

Transfers::Id Transfers::add(bool write, const File& file, int64_t offset, std::byte* memory, int64_t bytes) {
  const bool aligned =
      offset % kAlignment == 0 && bytes % kAlignment == 0 && reinterpret_cast<uintptr_t>(memory) % kAlignment == 0;
  if (offset < 0 || bytes < 0 || !aligned) {
    throw Error("aio", concat("cannot ", write ? "write " : "read ", bytes, " bytes at offset ", offset, " of ",
                              file.path().string(), " with memory at ", static_cast<const void*>(memory),
                              ": multiples of ", kAlignment, " are needed"));
  }
  return queue_->add(file, write, offset, memory, bytes);
}

Transfers::Id Transfers::read(const File& file, int64_t offset, void* to, int64_t bytes) {
  return add(false, file, offset, static_cast<std::byte*>(to), bytes);
}

Transfers::Id Transfers::write(const File& file, int64_t offset, const void* from, int64_t bytes) {
  return add(true, file, offset, const_cast<std::byte*>(static_cast<const std::byte*>(from)), bytes); // only read from
}

void Transfers::wait(Id id) {
  queue_->wait(id);
}

bool Transfers::finished(Id id) {
  return queue_->finished(id);
}

bool Transfers::add_buffer(void* memory, int64_t bytes) {
  return engine_->add_buffer(static_cast<std::byte*>(memory), bytes);
}

void Transfers::remove_buffer(void* memory) {
  engine_->remove_buffer(static_cast<std::byte*>(memory));
}

int64_t Transfers::bytes_read() const {
  return queue_->bytes_read();
}

int64_t Transfers::bytes_written() const {
  return queue_->bytes_written();
}

const char* Transfers::engine() const {
  return engine_->name();
}

} // namespace trireme::aio
