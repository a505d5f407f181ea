#include <trireme/base/error.h>
#include <trireme/config/image_checks.h>
#include <trireme/config/key_check.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void read_cnn(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::cnn;
  const Values values(&section, "model", "cnn");
  models::CnnOptions& cnn = run.model.cnn;
  cnn.channels = values.get("channels", cnn.channels);
  cnn.side = values.get("side", cnn.side);
  cnn.classes = values.get("classes", cnn.classes);
  cnn.width = values.get("width", cnn.width);
  cnn.dropout = values.get("dropout", cnn.dropout);
  cnn.init_from = paths.one(section, "init_from");
}

ordered_json write_cnn(const RunConfig& run) {
  const models::CnnOptions& cnn = run.model.cnn;
  return {{"type", "cnn"},
          {"channels", cnn.channels},
          {"side", cnn.side},
          {"classes", cnn.classes},
          {"width", cnn.width},
          {"dropout", cnn.dropout},
          {"init_from", path_or_null(cnn.init_from)}};
}

void check_cnn(const JsonNode& root, RunConfig& run) {
  check_images(root, run);
  if (run.model.cnn.side % 4 != 0) {
    place(root, "model", "side")
        .fail(concat("must be a multiple of 4, because images are halved twice; found ", run.model.cnn.side));
  }
}

} // namespace

RunType cnn_type() {
  return {"cnn", read_cnn, write_cnn, check_cnn};
}

} // namespace trireme::config
