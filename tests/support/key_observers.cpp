#include <tests/support/key_observers.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::test {
namespace {

using nlohmann::json;

std::string name_of(std::string_view section, std::string_view when, std::string_view key) {
  return concat(section.empty() ? "the run file" : section, when.empty() ? "" : concat(" (", when, ')'), ": ", key);
}

// `run` with the key set; sections on the way are made.
json with_key(json run, const KeyObserver& observer, const json& value) {
  json* object = &run;
  if (!observer.section.empty()) {
    for (const std::string& part : split(observer.section, '.')) {
      object = &(*object)[part];
    }
  }
  if (value.is_null()) {
    if (object->is_object()) {
      object->erase(std::string(observer.key));
    }
  } else {
    (*object)[std::string(observer.key)] = value;
  }
  return run;
}

// The type that makes the section look like this: "Adam" of "Adam AdamW".
json base_of(const KeyObserver& observer, const json& common) {
  json run = common;
  if (observer.base.is_object()) {
    run.merge_patch(observer.base);
  }
  constexpr std::string_view kParams = ".params";
  if (!observer.when.empty()) {
    const std::string type = split(observer.when, ' ').front();
    std::string_view path = observer.section;
    if (path.ends_with(kParams)) {
      path.remove_suffix(kParams.size());
    }
    json* object = &run;
    for (const std::string& part : split(path, '.')) {
      object = &(*object)[part];
    }
    (*object)["type"] = type;
  }
  return run;
}

bool same_on_all_ranks(comm::World& world, bool same) {
  at::Tensor differing = at::zeros({1});
  differing[0] = same ? 0 : 1;
  world.group().all_reduce(differing, comm::ReduceOp::sum, "observation").wait();
  return differing[0].item<float>() == 0;
}

} // namespace

std::vector<std::string> without_observer(const std::vector<KeyObserver>& observers,
                                          const std::function<bool(std::string_view section)>& covers) {
  std::vector<std::string> problems;
  size_t used = 0;
  for (const config::Section& section : config::all_sections()) {
    for (const config::Key& key : section.keys) {
      const std::string below = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
      const bool is_choice = key.type.empty();
      const bool selects = key.name == "type" && !section.when.empty();
      const bool holds_section =
          !is_choice && key.type.starts_with("object") && config::find_section(below, "") != nullptr;
      if (key.verdict != config::Verdict::honoured || is_choice || selects || holds_section || !covers(section.path)) {
        continue;
      }
      const auto count = std::count_if(observers.begin(), observers.end(), [&](const KeyObserver& observer) {
        return observer.section == section.path && observer.when == section.when && observer.key == key.name;
      });
      used += static_cast<size_t>(count);
      if (count == 0) {
        problems.push_back(
            concat(name_of(section.path, section.when, key.name), " is honoured, but nobody observes what it does"));
      }
    }
  }
  if (used != observers.size()) {
    problems.push_back(concat(observers.size() - used, " observers are of keys that are not honoured"));
  }
  return problems;
}

std::vector<std::string> without_effect(const std::vector<KeyObserver>& observers, int ranks, const json& common) {
  RunOptions options;
  options.deadline = std::chrono::minutes(5);
  return run_ranks(
      ranks,
      [&](comm::World& world) {
        for (const KeyObserver& observer : observers) {
          if (observer.ranks != ranks) {
            continue;
          }
          const std::string name = name_of(observer.section, observer.when, observer.key);
          SCOPED_TRACE(name);
          const json base = base_of(observer, common);
          try {
            const json one = observer.observe(world, with_key(base, observer, observer.one));
            const json again = observer.observe(world, with_key(base, observer, observer.one));
            const json other = observer.observe(world, with_key(base, observer, observer.other));
            const bool repeats = same_on_all_ranks(world, one == again);
            const bool differs = !same_on_all_ranks(world, one == other);
            if (world.rank() == 0) {
              EXPECT_TRUE(repeats) << name << " = " << observer.one << " gives " << one.dump() << " and then "
                                   << again.dump();
              EXPECT_TRUE(differs) << name << " has no effect: " << observer.one << " and " << observer.other
                                   << " both give " << one.dump();
            }
          } catch (const PeerError&) {
            throw;
          } catch (const std::exception& error) {
            ADD_FAILURE() << name << ": " << error.what();
          }
        }
      },
      options);
}

} // namespace trireme::test
