#include <trireme/base/error.h>
#include <trireme/config/fields.h>
#include <trireme/config/image_checks.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void fields(const auto& each, models::AlexNetOptions& alexnet) {
  each("channels", alexnet.channels);
  each("classes", alexnet.classes);
  each("resize", alexnet.resize);
  each("hidden", alexnet.hidden);
  each("dropout", alexnet.dropout);
}

void read_alexnet(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::alexnet;
  run.model.traits = {.layers = true, .only_layers = true};
  const Values values(&section, "model", "alexnet");
  models::AlexNetOptions& alexnet = run.model.alexnet;
  fields(ReadFields(values), alexnet);
  alexnet.init_from = paths.one(section, "init_from");
}

ordered_json write_alexnet(const RunConfig& run) {
  models::AlexNetOptions alexnet = run.model.alexnet;
  ordered_json out = {{"type", "alexnet"}};
  fields(WriteFields(out), alexnet);
  out["init_from"] = path_or_null(alexnet.init_from);
  return out;
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
