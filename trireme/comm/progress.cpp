#include <trireme/comm/progress.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

namespace trireme::comm {

std::string describe(const OpSummary& op) {
  std::string text = concat(op.op, " #", op.number);
  if (op.is_message()) {
    text += concat(op.op == "send" ? " to rank " : " from rank ", op.peer);
  }
  text += " (";
  if (!op.what.empty()) {
    text += "\"" + op.what + "\", ";
  }
  return text + format_bytes(static_cast<double>(op.bytes)) + ")";
}

void GroupProgress::note(OpSummary op) {
  (op.is_message() ? messages : collectives) = op.number;
  if (recent.size() == kRecent) {
    recent.pop_front();
  }
  recent.push_back(std::move(op));
}

void GroupProgress::mark_done(const OpSummary& op) {
  for (auto& entry : recent) {
    if (entry.number == op.number && entry.is_message() == op.is_message()) {
      entry.done = true;
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

nlohmann::json to_json(const GroupProgress& progress) {
  auto recent = nlohmann::json::array();
  for (const auto& op : progress.recent) {
    recent.push_back({op.number, op.op, op.bytes, op.dtype, op.what, op.peer, op.done});
  }
  return {{"collectives", progress.collectives}, {"messages", progress.messages}, {"recent", std::move(recent)}};
}

GroupProgress progress_from_json(const nlohmann::json& json) {
  GroupProgress progress;
  progress.collectives = json.at("collectives");
  progress.messages = json.at("messages");
  for (const auto& op : json.at("recent")) {
    progress.recent.push_back({op.at(0), op.at(1), op.at(2), op.at(3), op.at(4), op.at(5), op.at(6)});
  }
  return progress;
}

} // namespace trireme::comm
