#include <trireme/data/collate.h>

#include <utility>

namespace trireme::data {
namespace {

class Collated : public Dataset {
 public:
  Collated(std::shared_ptr<const Dataset> dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}
  int64_t size() const override { return dataset_->size(); }
  Batch get(std::span<const int64_t> indices) const override {
    std::vector<Batch> samples;
    for (const int64_t& index : indices) {
      samples.push_back(dataset_->get({&index, 1}));
    }
    return collate_(std::move(samples));
  }
  uint64_t fingerprint() const override { return dataset_->fingerprint(); }
  uint64_t checksum() const override { return dataset_->checksum(); }
  std::string describe() const override { return dataset_->describe() + ", collated"; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Collate collate_;
};

} // namespace

std::shared_ptr<const Dataset> collated(std::shared_ptr<const Dataset> dataset, Collate collate) {
  return std::make_shared<Collated>(std::move(dataset), std::move(collate));
}

} // namespace trireme::data
