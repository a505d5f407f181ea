#include <trireme/comm/work.h>

#include <utility>

namespace trireme::comm {
namespace {

class Then : public Pending {
 public:
  Then(Work work, std::function<void()> f) : f_(std::move(f)), work_(std::move(work)) {}
  void wait() override {
    work_.wait();
    if (const auto f = std::exchange(f_, nullptr)) {
      f();
    }
  }
  bool done() override { return work_.done() && !f_; }

 private:
  std::function<void()> f_; // its captures are in use until the work is done
  Work work_;
};

} // namespace

Work then(Work work, std::function<void()> f) {
  return Work(std::make_shared<Then>(std::move(work), std::move(f)));
}

} // namespace trireme::comm
