#include <trireme/comm/launch_order.h>

#include <trireme/base/text.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace trireme::comm {
namespace {

constexpr int64_t kText = 256;

} // namespace

std::string LaunchOrder::difference(const std::string& call) {
  const std::lock_guard comparing(comparing_);
  if (!channel_) {
    std::shared_ptr<Backend> opened = open_();
    const std::lock_guard lock(mutex_);
    channel_ = std::move(opened);
    if (interrupted_) {
      channel_->interrupt();
    }
  }
  ++launches_;
  const at::Tensor own = at::zeros({kText}, at::kByte);
  std::memcpy(own.data_ptr(), call.data(), std::min<size_t>(call.size(), kText - 1));
  const at::Tensor all = at::empty({std::ssize(members_), kText}, at::kByte);
  if (const auto pending = channel_->all_gather(all.view({-1}), own)) {
    pending->wait();
  }
  const auto call_of = [&](size_t member) {
    return std::string(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + member * kText);
  };
  for (size_t member = 1; member < members_.size(); ++member) {
    if (call_of(member) != call_of(0)) {
      return concat("launch #", launches_, " on the devices of these ranks is ", call_of(member), " on rank ",
                    members_[member], " and ", call_of(0), " on rank ", members_[0]);
    }
  }
  return "";
}

void LaunchOrder::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (channel_) {
    channel_->interrupt();
  }
}

void LaunchOrder::close() {
  interrupt();
  const std::lock_guard lock(mutex_);
  if (channel_) {
    channel_->close();
  }
}

} // namespace trireme::comm
