#include <trireme/base/error.h>
#include <trireme/config/image_checks.h>
#include <trireme/config/key_check.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void read_alexnet(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::alexnet;
  run.model.traits = {.layers = true, .only_layers = true};
  const Values values(&section, "model", "alexnet");
  models::AlexNetOptions& alexnet = run.model.alexnet;
  alexnet.channels = values.get("channels", alexnet.channels);
  alexnet.classes = values.get("classes", alexnet.classes);
  alexnet.resize = values.get("resize", alexnet.resize);
  alexnet.hidden = values.get("hidden", alexnet.hidden);
  alexnet.dropout = values.get("dropout", alexnet.dropout);
  alexnet.init_from = paths.one(section, "init_from");
}

ordered_json write_alexnet(const RunConfig& run) {
  const models::AlexNetOptions& alexnet = run.model.alexnet;
  return {{"type", "alexnet"},
          {"channels", alexnet.channels},
          {"classes", alexnet.classes},
          {"resize", alexnet.resize},
          {"hidden", alexnet.hidden},
          {"dropout", alexnet.dropout},
          {"init_from", path_or_null(alexnet.init_from)}};
}

void check_alexnet(const JsonNode& root, RunConfig& run) {
  check_images(root, run);
  constexpr int64_t kSmallestSide = models::AlexNetOptions::kSmallestSide;
  if (const int64_t side = run.model.alexnet.resize; side != 0 && side < kSmallestSide) {
    place(root, "model", "resize")
        .fail(concat("images must be enlarged to at least ", kSmallestSide, " pixels, found ", side),
              "Use 64 for speed, 224 (the network's original size), or 0 for images that are large enough.");
  }
}

} // namespace

RunType alexnet_type() {
  return {"alexnet", read_alexnet, write_alexnet, check_alexnet};
}

} // namespace trireme::config
