#include <trireme/comm/routes.h>

#include <vector>

namespace trireme::comm {

Routes::Routes(std::shared_ptr<Backend> host, std::map<at::DeviceType, Open> devices)
    : host_(std::move(host)), devices_(std::move(devices)) {}

// Opening waits for the other members, so the lock is not held meanwhile; one thread at a time begins operations of a
// group.
Backend& Routes::of_device(at::Device device) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(device.type()); found != open_.end()) {
      return *found->second;
    }
  }
  if (interrupted_) {
    throw Trouble(Trouble::Kind::interrupted, "interrupted");
  }
  std::shared_ptr<Backend> opened = devices_.at(device.type())(device);
  {
    const std::lock_guard lock(mutex_);
    open_.emplace(device.type(), opened);
  }
  if (interrupted_) { // during the opening
    opened->interrupt();
  }
  return *opened;
}

const Backend* Routes::find(at::Device device) const {
  if (device.is_cpu() || host_->moves(device.type())) {
    return host_.get();
  }
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(device.type());
  return found == open_.end() ? nullptr : found->second.get();
}

void Routes::for_each_open(const std::function<void(Backend&)>& f) const {
  std::vector<std::shared_ptr<Backend>> backends = {host_};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [type, backend] : open_) {
      backends.push_back(backend);
    }
  }
  for (const auto& backend : backends) {
    f(*backend);
  }
}

int64_t Routes::bytes_sent() const {
  int64_t sum = 0;
  for_each_open([&](const Backend& backend) { sum += backend.bytes_sent(); });
  return sum;
}

void Routes::interrupt() {
  interrupted_ = true;
  for_each_open([](Backend& backend) { backend.interrupt(); });
}

void Routes::close() {
  interrupted_ = true;
  for_each_open([](Backend& backend) { backend.close(); });
}

} // namespace trireme::comm
