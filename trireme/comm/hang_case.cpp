#include <trireme/comm/hang_case.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/hang_report.h>

#include <nlohmann/json.hpp>

namespace trireme::comm {
namespace {

constexpr const char* kReport = "hang/report";
/// Wait for the report of the first rank that noticed the hang.
constexpr std::chrono::milliseconds kFirstReport{1000};

std::string folder_for_dumps() {
  try {
    return hang_folder().string();
  } catch (const std::exception& error) {
    log::warning("no hang dumps: ", error.what());
    return "";
  }
}

void print(const std::string& text, const std::string& folder) {
  log::error(text, folder.empty() ? "" : concat("\n  more: trireme inspect ", folder));
}

} // namespace

void HangCase::open(Store& store, const Hang& hang) {
  if (store.add("hang/reports", 1) != 1) {
    return;
  }
  const std::string folder = folder_for_dumps();
  remove_hang_dumps(folder);
  const nlohmann::json report = {{"folder", folder}, {"text", hang.text}, {"printer", hang.printer}, {"from", rank_}};
  store.set(kReport, report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void HangCase::attend(Store& store, const View& view) {
  if (attended_) {
    return;
  }
  if (store.wait({kReport}, kFirstReport)) {
    const auto report = nlohmann::json::parse(store.find(kReport).value_or("{}"));
    const std::string folder = report.at("folder");
    const Busy busy(busy_);
    dump(folder, report.at("from"), report.at("text"), view);
    if (report.at("printer") == rank_) {
      print(report.at("text"), folder);
    }
  }
  attended_ = true;
}

void HangCase::attend_alone(const Hang& hang, const View& view) {
  if (attended_.exchange(true)) {
    return;
  }
  const std::string folder = folder_for_dumps();
  const Busy busy(busy_);
  dump(folder, rank_, hang.text, view);
  print(hang.text, folder);
}

void HangCase::dump(const std::string& folder, int from, const std::string& report, const View& view) const {
  if (folder.empty()) {
    return;
  }
  try {
    write_hang_dump(folder, rank_, size_, from, report, view());
  } catch (const std::exception& error) {
    log::warning("no hang dump of this rank: ", error.what());
  }
}

} // namespace trireme::comm
