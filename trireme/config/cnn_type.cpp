#include <trireme/base/error.h>
#include <trireme/config/fields.h>
#include <trireme/config/image_checks.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void fields(const auto& each, models::CnnOptions& cnn) {
  each("channels", cnn.channels);
  each("side", cnn.side);
  each("classes", cnn.classes);
  each("width", cnn.width);
  each("dropout", cnn.dropout);
}

void read_cnn(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::cnn;
  const Values values(&section, "model", "cnn");
  models::CnnOptions& cnn = run.model.cnn;
  fields(ReadFields(values), cnn);
  cnn.init_from = paths.one(section, "init_from");
}

ordered_json write_cnn(const RunConfig& run) {
  models::CnnOptions cnn = run.model.cnn;
  ordered_json out = {{"type", "cnn"}};
  fields(WriteFields(out), cnn);
  out["init_from"] = path_or_null(cnn.init_from);
  return out;
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
