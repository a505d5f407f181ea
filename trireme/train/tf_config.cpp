#include <trireme/train/tf_config.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace trireme::train {
namespace {

[[noreturn]] void refuse(const std::string& happened) {
  throw InputError(
      "trireme", "TF_CONFIG " + happened,
      R"(It should look like {"cluster": {"chief": ["h1:2222"], "worker": ["h2:2222"], "ps": ["h3:2222"]}, "task": {"type": "worker", "index": 0}}.)");
}

int index_of(const nlohmann::json& task) {
  const nlohmann::json& index = task.at("index");
  return index.is_string() ? std::stoi(index.get<std::string>()) : index.get<int>();
}

} // namespace

std::optional<TfConfig> tf_config() {
  const auto text = env::text("TF_CONFIG");
  if (!text) {
    return std::nullopt;
  }
  TfConfig out;
  try {
    const auto config = nlohmann::json::parse(*text);
    if (!config.contains("cluster")) {
      return std::nullopt;
    }
    const nlohmann::json& cluster = config.at("cluster");
    const std::string type = config.at("task").at("type");
    const int index = index_of(config.at("task"));
    const auto members = [&](const char* of) {
      return cluster.contains(of) ? cluster.at(of).get<std::vector<std::string>>() : std::vector<std::string>();
    };
    bool found = type == "evaluator";
    const auto is_this = [&](const char* of, const std::vector<std::string>& all) {
      return type == of && index >= 0 && index < static_cast<int>(all.size());
    };
    for (const char* of : {"chief", "master", "worker"}) {
      const std::vector<std::string> all = members(of);
      if (is_this(of, all)) {
        out.index = static_cast<int>(out.workers.size()) + index;
        found = true;
      }
      out.workers.insert(out.workers.end(), all.begin(), all.end());
    }
    out.servers = members("ps");
    if (is_this("ps", out.servers)) {
      out.task = TfConfig::Task::server;
      out.index = index;
      found = true;
    } else if (type == "evaluator") {
      out.task = TfConfig::Task::evaluator;
    }
    if (!found) {
      refuse(concat("says that this is ", type, ' ', index, ", but the cluster has no such task"));
    }
  } catch (const nlohmann::json::exception&) {
    refuse(concat("is not valid: ", *text));
  } catch (const std::logic_error&) { // stoi's
    refuse("has a task index that is not a number");
  }
  if (out.workers.empty()) {
    refuse("names neither a chief nor a worker");
  }
  return out;
}

void become_task(const TfConfig& config, const std::string& transport) {
  std::string addresses;
  for (const std::string& server : config.servers) {
    addresses += concat(addresses.empty() ? "" : ",", transport, "://", server);
  }
  const bool serves = config.task == TfConfig::Task::server;
  ::setenv("TRIREME_SERVERS", addresses.c_str(), 1);
  ::setenv(serves ? "TRIREME_SERVER" : "TRIREME_WORKER",
           concat(config.index, '/', serves ? config.servers.size() : config.workers.size()).c_str(), 1);
  ::unsetenv("TF_CONFIG"); // a worker is a separate world
}

void become_evaluator(int64_t data_ranks) {
  ::setenv("TRIREME_EVALUATOR", std::to_string(data_ranks).c_str(), 1);
  ::unsetenv("TF_CONFIG");
}

} // namespace trireme::train
