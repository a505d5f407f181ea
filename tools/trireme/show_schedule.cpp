#include "show_schedule.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/parallel/pipeline/schedule_check.h>
#include <trireme/parallel/pipeline/timeline.h>
#include <trireme/parallel/pipeline/timeline_draw.h>

#include <nlohmann/json.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <optional>

namespace trireme::tools {
namespace {

using nlohmann::ordered_json;
using namespace pipeline;

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 140;
}

int whole(const char* name, int64_t value) {
  if (value < 1 || value > std::numeric_limits<int>::max()) {
    throw InputError("schedule", concat("--", name, " is ", value), "It must be at least 1 and fit into 31 bits.");
  }
  return static_cast<int>(value);
}

struct ShownSchedule {
  std::string title;
  std::optional<ScheduleKind> kind;
  std::vector<Program> programs; ///< empty for a trace without a kind
  Timeline timeline;
};

std::vector<Program> programs_of(ScheduleKind kind, const ScheduleShape& shape) {
  std::vector<Program> programs = make_programs(kind, shape);
  check_schedule(programs, shape, kind != ScheduleKind::forward_only);
  return programs;
}

std::string size_text(const ScheduleShape& shape) {
  return concat(shape.stages, " stages, ", shape.micro_batches, " micro-batches",
                shape.chunks > 1 ? concat(", ", shape.chunks, " chunks") : "");
}

ShownSchedule measured(const ScheduleCommand& command) {
  if (command.stages > 0 || command.micro_batches > 0 || command.chunks > 0) {
    throw InputError("schedule", "--trace already contains stages, micro-batches and chunks",
                     "Remove --stages, --micro-batches and --chunks.");
  }
  ShownSchedule shown;
  shown.timeline = from_trace(command.trace);
  if (!command.kind.empty()) {
    shown.kind = parse_schedule(command.kind);
    shown.programs = programs_of(*shown.kind, shown.timeline.shape);
  }
  shown.title = concat("Measured in ", command.trace.filename().string(), ": ", size_text(shown.timeline.shape));
  return shown;
}

ShownSchedule planned(const ScheduleCommand& command) {
  if (command.kind.empty() || command.stages == 0 || command.micro_batches == 0) {
    throw InputError("schedule", "--kind, --stages and --micro-batches are needed, or --trace",
                     "Example: trireme schedule --kind 1f1b --stages 4 --micro-batches 8");
  }
  ShownSchedule shown;
  shown.kind = parse_schedule(command.kind);
  ScheduleShape shape{whole("stages", command.stages), whole("micro-batches", command.micro_batches), 1};
  if (command.chunks != 0) {
    shape.chunks = whole("chunks", command.chunks);
  } else if (shown.kind == ScheduleKind::interleaved) {
    shape.chunks = 2;
  }
  shown.programs = programs_of(*shown.kind, shape);
  shown.timeline = simulate(shown.programs, shape);
  shown.title = concat(command.kind, ": ", size_text(shape));
  return shown;
}

ordered_json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? ordered_json(static_cast<int64_t>(value))
                                                              : ordered_json(value);
}

ordered_json schedule_json(const ShownSchedule& shown, bool is_measured) {
  const Timeline& timeline = shown.timeline;
  ordered_json object = {{"kind", shown.kind ? ordered_json(schedule_name(*shown.kind)) : ordered_json()},
                         {"stages", timeline.shape.stages},
                         {"micro_batches", timeline.shape.micro_batches},
                         {"chunks", timeline.shape.chunks},
                         {"measured", is_measured},
                         {"bubble", timeline.bubble}};
  if (is_measured && shown.kind) {
    object["planned_bubble"] = simulate(shown.programs, timeline.shape).bubble;
  }
  object["peak_in_flight"] = ordered_json::array();
  for (const double peak : timeline.peak_in_flight) {
    object["peak_in_flight"].push_back(number(peak));
  }
  object["total"] = number(timeline.total);
  object["unit"] = timeline.unit;
  return object;
}

ordered_json programs_json(const std::vector<Program>& programs) {
  ordered_json stages = ordered_json::array();
  for (const Program& program : programs) {
    ordered_json list = ordered_json::array();
    for (const Instruction& instruction : program) {
      ordered_json entry = {{"op", op_name(instruction.op)}};
      if (has_micro_batch(instruction.op)) {
        entry.update(
            {{"micro_batch", instruction.micro_batch}, {"chunk", instruction.chunk}, {"buffer", instruction.buffer}});
      }
      list.push_back(std::move(entry));
    }
    stages.push_back(std::move(list));
  }
  return stages;
}

void print_programs(const std::vector<Program>& programs, const ScheduleShape& shape) {
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    std::cout << "\nstage " << stage << ", buffers";
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      std::cout << ' ' << num_buffers(programs[stage], chunk);
    }
    std::cout << '\n';
    for (size_t i = 0; i < programs[stage].size(); ++i) {
      const Instruction& instruction = programs[stage][i];
      std::cout << "  " << i << ' ' << describe(instruction);
      if (has_micro_batch(instruction.op)) {
        std::cout << ", buffer " << instruction.buffer;
      }
      std::cout << '\n';
    }
  }
}

} // namespace

int show_schedule(const ScheduleCommand& command) {
  const bool is_measured = !command.trace.empty();
  const ShownSchedule shown = is_measured ? measured(command) : planned(command);
  if (command.program && !shown.kind) {
    throw InputError("schedule", "--program prints the instructions of a --kind, and a trace has none");
  }
  if (!command.svg.empty()) {
    write_file_atomically(command.svg, draw_svg(shown.timeline, shown.title), 0644);
  }
  if (command.json) {
    ordered_json object = schedule_json(shown, is_measured);
    if (command.program) {
      object["programs"] = programs_json(shown.programs);
    }
    std::cout << object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
    return 0;
  }
  std::cout << shown.title << "\n\n" << draw_text(shown.timeline, terminal_columns());
  if (is_measured && shown.kind) {
    const double planned_bubble = simulate(shown.programs, shown.timeline.shape).bubble;
    std::cout << concat(command.kind, " on paper: bubble ", std::round(planned_bubble * 1000) / 10, " %\n");
  }
  if (command.program) {
    print_programs(shown.programs, shown.timeline.shape);
  }
  return 0;
}

} // namespace trireme::tools
