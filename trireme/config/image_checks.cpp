#include <trireme/config/image_checks.h>

#include <trireme/base/error.h>
#include <trireme/config/places.h>

namespace trireme::config {

void check_images(const JsonNode& root, const RunConfig& run) {
  const auto count = [&](const char* images, size_t n_images, const char* labels, size_t n_labels) {
    if (n_images != n_labels) {
      place(root, "data", labels)
          .fail(concat(n_labels, " files of labels for ", n_images, " of images, ", named(place(root, "data", images))),
                "Write one for each, in the same order.");
    }
  };
  count("train", run.data.train.size(), "train_labels", run.data.train_labels.size());
  count("validation", run.data.validation.size(), "validation_labels", run.data.validation_labels.size());
}

} // namespace trireme::config
