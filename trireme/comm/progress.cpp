#include <trireme/comm/progress.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::comm {

std::string name_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    names.push_back(std::to_string(rank));
  }
  if (names.size() == 1) {
    return "rank " + names[0];
  }
  const std::string last = names.empty() ? "" : names.back();
  if (!names.empty()) {
    names.pop_back();
  }
  return "ranks " + join(names, ", ") + " and " + last;
}

std::string describe(const OpSummary& op) {
  std::string text = concat(op.op, " #", op.number);
  if (op.is_message()) {
    text += concat(op.op == "send" ? " to rank " : " from rank ", op.peer);
  }
  text += " (";
  if (!op.what.empty()) {
    text += "\"" + op.what + "\", ";
  }
  return text + format_bytes(op.bytes) + ")";
}

void GroupProgress::note(OpSummary op) {
  (op.is_message() ? messages : collectives) = op.number;
  while (recent.size() >= kRecent) {
    const auto done = std::find_if(recent.begin(), recent.end(), [](const OpSummary& entry) { return entry.done; });
    if (done == recent.end()) { // all are in progress: a thread that waits for the oldest must find it
      if (recent.size() >= kMostUnderWay) {
        recent.pop_front();
      }
      break;
    }
    recent.erase(done);
  }
  recent.push_back(std::move(op));
}

void GroupProgress::mark_done(const OpSummary& op) {
  for (auto entry = recent.rbegin(); entry != recent.rend(); ++entry) { // it is one of the newest
    if (entry->number == op.number && entry->is_message() == op.is_message()) {
      entry->done = true;
      return;
    }
  }
}

const OpSummary* GroupProgress::collective(int64_t number) const {
  for (const auto& entry : recent) {
    if (!entry.is_message() && entry.number == number) {
      return &entry;
    }
  }
  return nullptr;
}

const OpSummary* GroupProgress::awaited() const {
  for (const auto& entry : recent) {
    if (waiting && entry.number == waiting->number && entry.is_message() == waiting->message) {
      return &entry;
    }
  }
  return nullptr;
}

nlohmann::json to_json(const GroupProgress& progress) {
  auto recent = nlohmann::json::array();
  for (const auto& op : progress.recent) {
    recent.push_back({op.number, op.op, op.bytes, op.dtype, op.what, op.peer, op.done, op.detail});
  }
  nlohmann::json json = {
      {"collectives", progress.collectives}, {"messages", progress.messages}, {"recent", std::move(recent)}};
  if (progress.waiting) {
    json["waiting"] = {progress.waiting->number, progress.waiting->message, progress.waiting->seconds,
                       progress.waiting->on_device};
  }
  return json;
}

int64_t whole_number(const nlohmann::json& json) {
  return json.get_ref<const nlohmann::json::number_integer_t&>();
}

GroupProgress progress_from_json(const nlohmann::json& json) {
  GroupProgress progress;
  progress.collectives = whole_number(json.at("collectives"));
  progress.messages = whole_number(json.at("messages"));
  const auto kept = [](const nlohmann::json& text) { return keep_name(text.get_ref<const std::string&>()); };
  for (const auto& op : json.at("recent")) {
    progress.recent.push_back({whole_number(op.at(0)), kept(op.at(1)), whole_number(op.at(2)), kept(op.at(3)), op.at(4),
                               static_cast<int>(whole_number(op.at(5))), op.at(6), kept(op.at(7))});
  }
  if (json.contains("waiting")) {
    const auto& waiting = json.at("waiting");
    progress.waiting = {whole_number(waiting.at(0)), waiting.at(1), waiting.at(2),
                        waiting.size() > 3 && waiting.at(3).get<bool>()};
  }
  return progress;
}

nlohmann::json to_json(const PeerView& view) {
  nlohmann::json json = {{"left", view.left},
                         {"error", view.error},
                         {"process", view.process},
                         {"place", view.place},
                         {"stack", view.stack}};
  auto& groups = json["groups"] = nlohmann::json::object();
  for (const auto& [key, group] : view.groups) {
    groups[key] = to_json(group.progress);
    groups[key]["name"] = group.name;
    groups[key]["members"] = group.members;
  }
  auto& threads = json["notes"] = nlohmann::json::array();
  for (const auto& thread : view.notes) {
    auto notes = nlohmann::json::array();
    for (const auto& note : thread.notes) {
      notes.push_back(
          {{"what", note.what}, {"number", note.number}, {"detail", note.detail}, {"seconds", note.seconds}});
    }
    threads.push_back({{"thread", thread.thread}, {"main", thread.main}, {"notes", std::move(notes)}});
  }
  return json;
}

PeerView view_from_json(const nlohmann::json& json) {
  PeerView view;
  view.left = json.at("left");
  view.error = json.at("error");
  view.process = whole_number(json.at("process"));
  view.place = json.at("place");
  view.stack = json.at("stack").get<std::vector<std::string>>();
  for (const auto& [key, group] : json.at("groups").items()) {
    std::vector<int> members;
    for (const auto& member : group.at("members")) {
      members.push_back(static_cast<int>(whole_number(member)));
    }
    view.groups[key] = {group.at("name"), std::move(members), progress_from_json(group)};
  }
  for (const auto& thread : json.at("notes")) {
    ThreadNotes notes{whole_number(thread.at("thread")), thread.at("main"), {}};
    for (const auto& note : thread.at("notes")) {
      notes.notes.push_back({note.at("what"), whole_number(note.at("number")), note.at("detail"), note.at("seconds")});
    }
    view.notes.push_back(std::move(notes));
  }
  return view;
}

std::string describe_activity(const PeerView& view) {
  if (view.notes.empty() || view.notes.front().notes.empty()) {
    return "";
  }
  const auto& notes = view.notes.front().notes;
  std::vector<std::string> parts;
  for (auto note = notes.rbegin(); note != notes.rend(); ++note) {
    parts.push_back("in " + describe(*note));
  }
  return concat(join(parts, ", "), ", for ", format_seconds(notes.back().seconds));
}

} // namespace trireme::comm
