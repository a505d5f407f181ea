// metrics.jsonl, and the report that is made of it.
#include "fuzz.h"

#include <trireme/monitor/metrics.h>
#include <trireme/monitor/report.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(text_of(data, size));
  const auto steps = monitor::read_metrics(file.path());
  int64_t before = -1;
  for (const monitor::StepMetrics& step : steps) {
    require(step.step > before, "steps grow");
    before = step.step;
    const std::string line = monitor::metrics_line(step);
    const auto again = monitor::parse_metrics_line(line);
    require(again && monitor::metrics_line(*again) == line, "a line that is written can be read");
  }
  if (!steps.empty()) {
    require(!monitor::render_report({}, steps).empty(), "any metrics make a report");
  }
  return 0;
}
