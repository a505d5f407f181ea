#include <trireme/memory/aio/queue.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace trireme::aio {
namespace {

// How often a request may be returned with nothing done before it fails.
constexpr int kMostAttempts = 1000;

std::string what_to_do(int code) {
  if (is_disk_full(code)) {
    return kMakeRoom;
  }
  switch (code) {
    case EIO:
      return "The disk or its connection fails: check the system's log (dmesg), or name a folder on another disk.";
    case EBADF:
      return "The file is open read-only: check its permissions.";
    default:
      return "Check the system's log (dmesg), or name a folder on another disk.";
  }
}

} // namespace

uint64_t Queue::add(const File& file, bool write, int64_t offset, std::byte* memory, int64_t bytes) {
  uint64_t id = 0;
  {
    const Lock lock(mutex_);
    id = ++last_;
    if (bytes == 0) {
      return id; // finished
    }
    transfers_.emplace(id, Transfer{file, write, offset, memory, bytes});
    uncut_.push_back(id);
    ++unfinished_;
  }
  if (bytes > block_size_) {
    work_.notify_all();
  } else {
    work_.notify_one();
  }
  if (wake_) {
    wake_();
  }
  return id;
}

std::optional<Request> Queue::next() {
  if (!again_.empty()) {
    const Request request = again_.front();
    again_.pop_front();
    return request;
  }
  if (uncut_.empty()) {
    return std::nullopt;
  }
  const uint64_t id = uncut_.front();
  Transfer& transfer = transfers_.at(id);
  const int64_t bytes = std::min(block_size_, transfer.bytes - transfer.cut);
  const Request request{
      id,   transfer.write, transfer.file.descriptor(), transfer.offset + transfer.cut, transfer.memory + transfer.cut,
      bytes};
  transfer.cut += bytes;
  ++transfer.out;
  if (transfer.cut == transfer.bytes) {
    uncut_.pop_front();
  }
  return request;
}

std::optional<Request> Queue::take(bool waits) {
  Lock lock(mutex_);
  std::optional<Request> request = next();
  while (!request && waits && !closed_) {
    work_.wait(lock);
    request = next();
  }
  return request;
}

void Queue::fail(Transfer& transfer, const Request& request, const std::string& reason, const std::string& next) {
  if (!transfer.error.empty()) {
    return; // the first error is reported
  }
  transfer.error =
      concat("cannot ", request.write ? "write " : "read ", request.bytes, " bytes at offset ", request.offset, " of ",
             transfer.file.path().string(), ": ", reason, free_space_near(transfer.file.path()));
  transfer.next = next;
  // Drops what has not begun.
  std::erase(uncut_, request.transfer);
  transfer.out -= static_cast<int64_t>(
      std::erase_if(again_, [&](const Request& other) { return other.transfer == request.transfer; }));
}

bool Queue::fails(Transfer& transfer, Request& request, int64_t result, int64_t& moved) {
  moved = 0;
  int code = 0;
  if (result < 0) {
    code = static_cast<int>(-result);
    if (code != EINTR && code != EAGAIN) {
      fail(transfer, request, std::strerror(code), what_to_do(code));
      return true;
    }
  } else {
    // A direct transfer continues at a multiple of the alignment. Bytes transferred twice are the same both times.
    moved = transfer.file.direct() && result < request.bytes ? result - result % kAlignment : result;
    if (!request.write && result < request.bytes && (result == 0 || moved != result)) {
      struct stat now{};
      if (::fstat(request.descriptor, &now) == 0 && request.offset + result >= now.st_size) {
        fail(transfer, request, concat("the file ends after ", now.st_size, " bytes"),
             "It was truncated, or belongs to another run: remove it, and start again from a checkpoint.");
        return true;
      }
    }
  }
  request.attempts = moved > 0 ? 0 : request.attempts + 1;
  if (request.attempts > kMostAttempts) {
    fail(transfer, request,
         code != 0 ? std::strerror(code) : concat("the system moved ", result, " bytes, again and again"),
         what_to_do(code));
    return true;
  }
  return false;
}

void Queue::give_back(Request request, int64_t result) {
  bool is_done = false;
  bool goes_on = false;
  {
    const Lock lock(mutex_);
    Transfer& transfer = transfers_.at(request.transfer);
    int64_t moved = 0;
    if (!fails(transfer, request, result, moved)) {
      (request.write ? bytes_written_ : bytes_read_) += moved;
      request.offset += moved;
      request.memory += moved;
      request.bytes -= moved;
      goes_on = request.bytes > 0 && transfer.error.empty();
    }
    if (goes_on) {
      again_.push_back(request);
    } else {
      --transfer.out;
      is_done = transfer.out == 0 && (transfer.cut == transfer.bytes || !transfer.error.empty());
    }
    if (is_done) {
      --unfinished_;
      transfer.finished = true;
      if (transfer.error.empty()) {
        transfers_.erase(request.transfer);
      }
    }
  }
  if (is_done) {
    done_.notify_all();
  } else if (goes_on) {
    work_.notify_one();
  }
}

void Queue::wait(uint64_t id) {
  Lock lock(mutex_);
  if (id == 0 || id > last_) {
    throw Error("aio", concat("cannot wait for transfer ", id, "; transfers started: ", last_));
  }
  const auto is_done = [&] {
    const auto found = transfers_.find(id);
    return found == transfers_.end() || found->second.finished;
  };
  done_.wait(lock, is_done);
  if (const auto found = transfers_.find(id); found != transfers_.end()) {
    found->second.reported = true;
    throw Error("aio", found->second.error, found->second.next);
  }
}

bool Queue::finished(uint64_t id) {
  const Lock lock(mutex_);
  const auto found = transfers_.find(id);
  return found == transfers_.end() || found->second.finished;
}

std::vector<std::string> Queue::wait_for_all() {
  Lock lock(mutex_);
  done_.wait(lock, [&] { return unfinished_ == 0; });
  std::vector<std::string> errors;
  for (auto& [id, failed] : transfers_) {
    if (!std::exchange(failed.reported, true)) {
      errors.push_back(failed.error);
    }
  }
  return errors;
}

void Queue::close() {
  {
    const Lock lock(mutex_);
    closed_ = true;
  }
  work_.notify_all();
}

bool Queue::closed() {
  const Lock lock(mutex_);
  return closed_;
}

int64_t Queue::bytes_read() {
  const Lock lock(mutex_);
  return bytes_read_;
}

int64_t Queue::bytes_written() {
  const Lock lock(mutex_);
  return bytes_written_;
}

void pause_if_refused(const Request& request) {
  if (request.attempts > 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int64_t transfer_now(const Request& request) {
  const auto bytes = static_cast<size_t>(request.bytes);
  const ssize_t moved = request.write ? ::pwrite(request.descriptor, request.memory, bytes, request.offset)
                                      : ::pread(request.descriptor, request.memory, bytes, request.offset);
  return moved < 0 ? -errno : moved;
}

} // namespace trireme::aio
