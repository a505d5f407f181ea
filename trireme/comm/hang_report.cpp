#include <trireme/comm/hang_report.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/stacks.h>
#include <trireme/base/text.h>
#include <trireme/comm/explain.h>
#include <trireme/comm/recorder.h>
#include <trireme/comm/wait_graph.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace trireme::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "trireme hang dump";
constexpr int kMostRanks = 100'000;
constexpr size_t kFramesShown = 8;
constexpr size_t kWaitsShown = 16;

/// The newest operation in any group, for ranks without notes.
std::string last_operation(const PeerView& view) {
  const GroupView* newest = nullptr;
  for (const auto& [key, group] : view.groups) {
    const OpSummary* last = group.progress.last();
    if (last != nullptr && (newest == nullptr || !last->done)) {
      newest = &group;
    }
  }
  if (newest == nullptr) {
    return view.answered ? "has done nothing yet" : "has not reported an operation";
  }
  const OpSummary& last = *newest->progress.last();
  return concat(last.done ? "last did " : "has begun ", describe(last), " of group \"", newest->name, '"');
}

int64_t status_kib(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) == 0) {
      return std::strtoll(line.c_str() + key.size(), nullptr, 10);
    }
  }
  return 0;
}

std::string machine_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::vector<fs::path> dumps_in(const fs::path& path) {
  std::vector<fs::path> found;
  std::error_code error;
  const auto is_dump = [](const fs::path& file) {
    const std::string name = file.filename().string();
    return name.compare(0, 9, "hang-rank") == 0 && file.extension() == ".json";
  };
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder && !is_dump(path)) {
    return found;
  }
  if (!is_folder && !fs::exists(path, error)) {
    return {path};
  }
  for (const auto& entry : fs::directory_iterator(is_folder ? path : fs::absolute(path).parent_path(), error)) {
    if (is_dump(entry.path())) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

nlohmann::json read_dump(const fs::path& file) {
  const auto dump = nlohmann::json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!dump.is_object() || !dump.contains("format") || dump["format"] != kFormat) {
    throw InputError("inspect", file.string() + " is not a hang dump of Trireme.",
                     "Name the folder with the hang-rank*.json files of one hang.");
  }
  return dump;
}

} // namespace

std::string describe_rank(int rank, const PeerView& view) {
  std::string text = concat("rank ", rank);
  if (!view.error.empty()) {
    return concat(text, view.left ? " has ended with an error: " : " reports: ", view.error.substr(0, 200));
  }
  if (view.left) {
    return text + " has ended without an error; it " + last_operation(view);
  }
  const std::string activity = describe_activity(view);
  if (!view.answered) {
    text += view.vanished()      ? concat(" has ended without closing its world (process ", view.process, ')')
            : view.state.empty() ? " does not answer (killed, stopped or unreachable)"
                                 : concat(" does not answer: its process ",
                                          view.process > 0 ? concat(view.process, ' ') : "", view.state);
    return text + "; it was " +
           (activity.empty() ? "silent before: it " + last_operation(view) : activity + " at its last report");
  }
  return text + (activity.empty() ? " " : " is " + activity + "; it ") + last_operation(view);
}

std::string hang_text(const std::map<int, PeerView>& ranks, int from, const std::string& headline) {
  const WaitGraph graph = follow_waits(ranks, from);
  std::string text = "hang report: " + headline;
  for (const int root : graph.roots) {
    const auto view = ranks.find(root);
    const PeerView culprit = view == ranks.end() ? PeerView() : view->second;
    text += "\n  held up by: " + describe_rank(root, culprit);
    for (size_t frame = 0; frame < std::min(culprit.stack.size(), kFramesShown); ++frame) {
      text += "\n      " + culprit.stack[frame];
    }
  }
  if (!graph.circle.empty()) {
    text += "\n  " + name_ranks(graph.circle) + " wait for each other:";
  }
  size_t shown = 0;
  for (const auto& [rank, wait] : graph.waits) {
    if (++shown > kWaitsShown) {
      text += concat("\n  ... and ", graph.waits.size() - kWaitsShown, " more");
      break;
    }
    text += concat("\n  rank ", rank, ' ', describe(wait));
    const std::string activity = describe_activity(ranks.at(rank));
    text += activity.empty() ? "" : ", " + activity;
  }
  if (graph.roots.empty() && graph.circle.empty()) {
    text += "\n  all ranks have come: a connection is broken or too slow";
  }
  return text;
}

void look_at_silent(RollCall& roll_call, const std::string& own_place) {
  for (auto& [rank, peer] : roll_call.peers) {
    if (!peer.answered && !peer.left && !peer.place.empty() && peer.place == own_place) {
      peer.state = process_state(peer.process);
    }
  }
}

fs::path hang_folder() {
  if (const auto folder = env::text("TRIREME_RUN_DIR")) {
    std::error_code error;
    make_private_folders(*folder, error);
    if (::access(folder->c_str(), W_OK) == 0) {
      return fs::absolute(*folder);
    }
  }
  return make_scratch_folder("trireme-hang", {}, "Set TRIREME_RUN_DIR.");
}

void write_hang_dump(const fs::path& folder, int rank, int size, int from, const std::string& report,
                     const PeerView& own) {
  auto threads = nlohmann::json::array();
  for (const ThreadStack& stack : capture_stacks()) {
    threads.push_back({{"thread", stack.thread},
                       {"main", stack.main},
                       {"name", stack.name},
                       {"state", stack.state},
                       {"stack", stack.frames}});
  }
  const nlohmann::json dump = {
      {"format", kFormat},
      {"version", 1},
      {"rank", rank},
      {"world_size", size},
      {"noticed_by", from},
      {"report", report},
      {"host", machine_name()},
      {"process", getpid()},
      {"unix_seconds", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"state", to_json(own)},
      {"operations", Recorder::process().json().at("operations")},
      {"threads", std::move(threads)},
      {"memory",
       {{"resident_bytes", status_kib("/proc/self/status", "VmRSS:") * 1024},
        {"peak_resident_bytes", status_kib("/proc/self/status", "VmHWM:") * 1024},
        {"machine_available_bytes", status_kib("/proc/meminfo", "MemAvailable:") * 1024}}},
  };
  std::error_code error;
  make_private_folders(folder, error); // the first reporter's folder, if that is on another host
  const std::string text = dump.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  write_file_atomically(folder / concat("hang-rank", rank, ".json"), text + "\n");
}

void remove_hang_dumps(const fs::path& folder) {
  std::error_code error;
  for (const fs::path& file : dumps_in(folder)) {
    fs::remove(file, error);
  }
}

std::optional<fs::path> newest_hang_dump(const fs::path& path) {
  const std::vector<fs::path> files = dumps_in(path);
  const auto written = [](const fs::path& file) {
    std::error_code gone;
    return fs::last_write_time(file, gone); // then the earliest time
  };
  const auto newest = std::ranges::max_element(files, {}, written);
  return newest == files.end() ? std::nullopt : std::optional(*newest);
}

nlohmann::json describe_hang_json(const fs::path& path) {
  const auto files = dumps_in(path);
  if (files.empty()) {
    throw InputError("inspect", concat("no hang-rank*.json in ", path.string(), '.'));
  }
  nlohmann::json all = {{"ranks", nlohmann::json::object()}};
  std::map<int, PeerView> views;
  std::string report;
  int from = 0;
  int size = 0;
  for (const fs::path& file : files) {
    const auto dump = read_dump(file);
    try {
      const auto rank = static_cast<int>(whole_number(dump.at("rank")));
      PeerView view = view_from_json(dump.at("state"));
      view.answered = true;
      for (const auto& thread : dump.at("threads")) {
        if (thread.at("main")) {
          view.stack = thread.at("stack").get<std::vector<std::string>>();
        }
      }
      views[rank] = std::move(view);
      report = dump.at("report");
      from = static_cast<int>(whole_number(dump.at("noticed_by")));
      size = static_cast<int>(std::min<int64_t>(whole_number(dump.at("world_size")), kMostRanks));
      all["ranks"][std::to_string(rank)] = dump;
    } catch (const nlohmann::json::exception& error) {
      throw InputError("inspect", concat(file.string(), " is damaged: ", error.what()));
    }
  }
  std::vector<int> silent;
  for (int rank = 0; rank < size; ++rank) {
    if (views.count(rank) == 0) {
      silent.push_back(rank);
    }
  }
  // The first report also covers silent ranks; reports of all ranks are more detailed.
  constexpr std::string_view kBegin = "hang report: ";
  const bool complete = silent.empty() && report.compare(0, kBegin.size(), kBegin) == 0;
  std::string text =
      complete ? hang_text(views, from, report.substr(kBegin.size(), report.find('\n') - kBegin.size())) : report;
  for (const auto& [rank, view] : views) {
    text += "\n  dump of " + describe_rank(rank, view);
  }
  text +=
      silent.empty() ? "\n" : concat("\n  no dump of ", name_ranks(silent), ": dead, stopped, or on another host\n");
  all["report"] = text;
  return all;
}

std::string describe_hang(const fs::path& path) {
  return describe_hang_json(path).at("report");
}

} // namespace trireme::comm
