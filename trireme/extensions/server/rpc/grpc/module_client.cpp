#include <trireme/extensions/server/rpc/grpc/module_client.h>

#include <trireme/extensions/server/rpc/grpc/frames.h>

#include <algorithm>

namespace trireme::rpc::grpc {

std::shared_ptr<ModuleClient::Call> ModuleClient::call(std::string header, std::span<const std::byte> body,
                                                       std::span<std::byte> room) {
  auto made = std::make_shared<Call>();
  made->header = std::move(header);
  made->body = body;
  made->room = room;
  const std::lock_guard lock(mutex_);
  made->id = ++last_id_;
  if (!broken_.empty()) {
    return made;
  }
  waiting_.emplace(made->id, made);
  outgoing_.push_back(made);
  if (!writing_) {
    send_part();
  }
  return made;
}

/// Sends the next part; call it with the mutex. The part is copied: after wait() gives up, the caller's memory is not
/// read.
void ModuleClient::send_part() {
  Call& call = *outgoing_.front();
  Frame frame;
  frame.id = call.id;
  frame.part_bytes = std::min(kPartBytes, call.body.size() - call.sent);
  if (!call.begun) {
    call.begun = true;
    frame.header = std::move(call.header);
    frame.body_bytes = call.body.size();
    frame.room_bytes = call.room.size();
  }
  std::vector<::grpc::Slice> slices = {::grpc::Slice(encode(frame))};
  if (frame.part_bytes != 0) {
    slices.emplace_back(call.body.data() + call.sent, frame.part_bytes);
  }
  call.sent += frame.part_bytes;
  sent_ += static_cast<int64_t>(frame.part_bytes);
  if (call.sent == call.body.size()) {
    outgoing_.pop_front();
  }
  writing_ = true;
  stream_->Write(::grpc::ByteBuffer(slices.data(), slices.size()), reinterpret_cast<void*>(kWritten));
}

/// Runs in the thread, until no operation of the connection is pending.
void ModuleClient::run() {
  void* tag = nullptr;
  for (bool ok = false; queue_->Next(&tag, &ok);) {
    switch (static_cast<Step>(reinterpret_cast<intptr_t>(tag))) {
      case kRead:
        received_one(ok);
        break;
      case kWritten: {
        const std::lock_guard lock(mutex_);
        writing_ = false;
        if (ok && broken_.empty() && !outgoing_.empty()) {
          send_part();
        }
        break; // if it is not ok, reading ends too
      }
      case kFinished: {
        const std::lock_guard lock(mutex_);
        if (broken_.empty()) {
          broken_ =
              "the connection to the parameter server at " + settings_.target + " has ended: " +
              (status_.error_message().empty() ? std::string("the server has closed it") : status_.error_message());
        }
        news_.notify_all();
        queue_->Shutdown(); // reading is over, and a pending write ends with the stream
        break;
      }
      default:
        break;
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  news_.notify_all();
}

void ModuleClient::received_one(bool ok) {
  if (ok) {
    try {
      std::vector<::grpc::Slice> slices;
      if (!incoming_.Dump(&slices).ok()) {
        throw BadFrame("a frame cannot be read");
      }
      std::vector<FrameReader::Piece> pieces;
      for (const auto& slice : slices) {
        pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
      }
      take(FrameReader(std::move(pieces)));
      const std::lock_guard lock(mutex_);
      if (broken_.empty()) {
        stream_->Read(&incoming_, reinterpret_cast<void*>(kRead));
        return;
      }
    } catch (const std::exception& error) {
      break_off("the parameter server at " + settings_.target + " breaks the protocol: " + error.what());
    }
  }
  const std::lock_guard lock(mutex_);
  if (!finishing_) {
    finishing_ = true;
    stream_->Finish(&status_, reinterpret_cast<void*>(kFinished));
  }
}

void ModuleClient::take(const FrameReader& reader) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) {
    return;
  }
  const Frame& frame = reader.frame();
  if (!arriving_) {
    const auto found = waiting_.find(frame.id);
    if (found == waiting_.end()) {
      throw BadFrame("a response to an unknown request");
    }
    arriving_ = found->second;
    arriving_->reply = frame.header;
    arriving_->reply_bytes = frame.body_bytes;
    if (frame.body_bytes > arriving_->room.size()) {
      throw BadFrame("the body of a response has " + std::to_string(frame.body_bytes) + " bytes, its room only " +
                     std::to_string(arriving_->room.size()));
    }
  } else if (frame.id != arriving_->id || frame.part_bytes == 0) {
    throw BadFrame("a response within another");
  }
  Call& call = *arriving_;
  if (frame.part_bytes > call.reply_bytes - call.received) {
    throw BadFrame("a response is longer than it announced");
  }
  reader.copy_part(call.room.data() + call.received);
  call.received += frame.part_bytes;
  received_ += static_cast<int64_t>(frame.part_bytes);
  if (call.received == call.reply_bytes) {
    call.done = true;
    waiting_.erase(call.id);
    arriving_ = nullptr;
    news_.notify_all();
  }
}

void ModuleClient::break_off(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) {
    broken_ = why;
    context_->TryCancel();
  }
  news_.notify_all();
}

const std::string& ModuleClient::wait(Call& call, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto settled = [&] { return call.done || !broken_.empty(); };
  if (!news_.wait_until(lock, deadline, settled) && call.failed.empty()) {
    call.failed = "the parameter server at " + settings_.target + " did not answer request " + std::to_string(call.id) +
                  " before the deadline";
    broken_ = call.failed;
    context_->TryCancel();
    news_.notify_all();
  }
  if (!call.done) {
    throw Failure(false, call.failed.empty() ? broken_ : call.failed,
                  "See the output of the server's process; connect again when it is back.");
  }
  return call.reply;
}

bool ModuleClient::wait_until(const Call& call, Clock::time_point time) {
  std::unique_lock lock(mutex_);
  return news_.wait_until(lock, time, [&] { return call.done || !broken_.empty(); });
}

bool ModuleClient::done(const Call& call) {
  const std::lock_guard lock(mutex_);
  return call.done || !broken_.empty();
}

void ModuleClient::close() {
  constexpr std::chrono::seconds kPatience{1};
  break_off("this client was closed");
  std::unique_lock lock(mutex_);
  const bool ended = news_.wait_for(lock, kPatience, [&] { return ended_; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach(); // the thread co-owns this object
}

} // namespace trireme::rpc::grpc
