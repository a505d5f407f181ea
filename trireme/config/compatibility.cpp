#include <trireme/config/compatibility.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/config/run_file.h>

#include <algorithm>

namespace trireme::config {
namespace {

constexpr std::string_view kHead = R"(# Conflicting settings

Each row names features that cannot be used together, why not, and what to do instead. A run file is refused at the line and
column of the first, and `trireme estimate`, `trireme plan` and `initialize()` refuse the same. Settings in no row can be
combined.

This page is written from the table that they all use (`trireme/config/compatibility_table.cpp`); a test compares them. After a
change: `TRIREME_WRITE_DOCS=1 build/release/tests/config/config_test`. The table does not list
numbers that must divide each other: errors of [configuration](configuration.md) name them.

| this | not with | why not | instead |
|---|---|---|---|
)";

// The node of a path such as "engine.zero_optimization.stage"; null where the file does not have it. The engine's
// section may be a file of its own.
const JsonNode* node_at(const JsonNode& root, const JsonNode& engine, std::string_view path) {
  const JsonNode* node = &root;
  for (const std::string& key : split(path, '.')) {
    if (!node->is_object()) {
      return nullptr;
    }
    node = node == &root && key == "engine" ? &engine : node->find(key);
    if (node == nullptr || node->is_null()) {
      return nullptr;
    }
  }
  return node;
}

const JsonNode* node_of(const JsonNode& root, const JsonNode& engine, const Feature& feature) {
  for (const std::string& path : split(feature.keys, ' ')) {
    if (const JsonNode* found = node_at(root, engine, path)) {
      return found;
    }
  }
  return nullptr;
}

std::string names(const std::vector<Feature>& features) {
  std::vector<std::string> all;
  std::transform(features.begin(), features.end(), std::back_inserter(all),
                 [](const Feature& feature) { return std::string(feature.name); });
  return join(all, "; ");
}

} // namespace

std::string Feature::text(const Setting& setting) const {
  return said == nullptr ? std::string(name) : said(setting);
}

Setting setting_of(const RunConfig& run) {
  Setting out{.engine = run.engine, .run = &run};
  out.device = run.training.device.starts_with("cuda") ? run.training.device : "";
  out.pipe = run.parallel.pipe;
  out.context = run.parallel.context;
  out.tensor = run.parallel.tensor;
  out.sequence_parallel = run.parallel.sequence_parallel;
  out.replica_ranks = run.parallel.ranks_of_replica();
  return out;
}

std::optional<Conflict> find_conflict(const Setting& setting) {
  for (const Incompatible& row : incompatible_features()) {
    for (const Feature& feature : row.these) {
      if (!feature.is_on(setting)) {
        continue;
      }
      for (const Feature& with : row.those) {
        if (with.is_on(setting)) {
          return Conflict{feature, with, concat(feature.text(setting), " with ", with.text(setting), ": ", row.why),
                          std::string(row.instead)};
        }
      }
    }
  }
  return std::nullopt;
}

void check_compatibility(const JsonNode& root, const JsonNode& engine, const Setting& setting) {
  const std::optional<Conflict> conflict = find_conflict(setting);
  if (!conflict) {
    return;
  }
  const JsonNode* const here = node_of(root, engine, conflict->feature);
  const JsonNode* const there = node_of(root, engine, conflict->with);
  const JsonNode& place = here != nullptr ? *here : there != nullptr ? *there : root;
  const bool names_other = there != nullptr && there != &place;
  place.fail(names_other ? concat(conflict->what, " (", there->path(), " at ", there->where(), ')') : conflict->what,
             conflict->next);
}

std::string compatibility_page() {
  std::string out(kHead);
  for (const Incompatible& row : incompatible_features()) {
    out += concat("| ", names(row.these), " | ", names(row.those), " | ", row.why, " | ", row.instead, " |\n");
  }
  return out;
}

} // namespace trireme::config
