#pragma once

#include <trireme/tokenizer/text_tokenizer.h>

#include <memory>
#include <mutex>
#include <utility>

namespace trireme::tokenizer {

// A cache of words for one call.
class TextTokenizer::Lease {
 public:
  explicit Lease(const TextTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner.mutex_);
      if (!owner.idle_caches_.empty()) {
        cache_ = std::move(owner.idle_caches_.back());
        owner.idle_caches_.pop_back();
      }
    }
    if (!cache_) {
      cache_ = std::make_unique<WordCache>();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_caches_.push_back(std::move(cache_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  WordCache& operator*() const { return *cache_; }

 private:
  const TextTokenizer& owner_;
  std::unique_ptr<WordCache> cache_;
};

} // namespace trireme::tokenizer
