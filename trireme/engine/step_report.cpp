#include <trireme/engine/step_report.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/engine/peak_memory.h>
#include <trireme/monitor/resources.h>

#include <fcntl.h>

#include <algorithm>
#include <fstream>

namespace trireme::engine {
namespace {

// Returns nothing if the monitor is off.
std::optional<std::filesystem::path> folder_of(const config::MonitorSection& section, const char* name) {
  if (!section.enabled) {
    return std::nullopt;
  }
  std::filesystem::path folder = section.output_path;
  if (folder.empty()) {
    const auto run = env::text("TRIREME_RUN_DIR");
    if (!run) {
      throw InputError("engine",
                       concat('"', name, "\" is enabled, but its \"output_path\" is empty and there is no run folder"),
                       "Set \"output_path\", or TRIREME_RUN_DIR.");
    }
    folder = std::filesystem::path(*run) / name;
  }
  return folder / section.job_name;
}

monitor::StepMetrics metrics_of(const Engine& engine) {
  monitor::StepMetrics m;
  m.step = engine.global_steps();
  m.step_ms = engine.times().total * 1e3;
  m.comm_wait_ms = engine.times().exposed_communication * 1e3;
  m.samples_per_s = static_cast<double>(engine.train_batch_size()) / engine.times().total;
  return m;
}

} // namespace

StepReport::StepReport(const config::EngineConfig& config)
    : every_(config.steps_per_print), times_(config.wall_clock_breakdown), memory_(config.memory_breakdown) {
  if (!every_ && (times_ || memory_)) {
    every_ = 10; // DeepSpeed's former default
  }
  csv_ = folder_of(config.csv_monitor, "csv_monitor");
  if (csv_) {
    make_private_folders(*csv_);
  }
  if (const auto folder = folder_of(config.tensorboard, "tensorboard")) {
    tensorboard_ = std::make_unique<monitor::TensorBoardWriter>(*folder);
  }
}

void StepReport::check(const config::EngineConfig& config) {
  folder_of(config.csv_monitor, "csv_monitor");
  folder_of(config.tensorboard, "tensorboard");
}

void StepReport::step(const Engine& engine) {
  if (every_ && engine.global_steps() % *every_ == 0) {
    print(engine);
  }
  try {
    if (csv_ || tensorboard_) {
      lines_.add(engine, metrics_of(engine));
    }
  } catch (const Error& error) {
    if (!complained_) {
      log::error("cannot write metrics, training continues: ", error.what());
    }
    complained_ = true;
  }
}

void StepReport::print(const Engine& engine) const {
  log::info("step=", engine.global_steps(), " skipped=", engine.skipped_steps(), " loss=", engine.loss(),
            " lr=", engine.get_lr(),
            engine.get_global_grad_norm() ? concat(" grad_norm=", *engine.get_global_grad_norm()) : "", ' ',
            format_count(static_cast<double>(engine.train_batch_size()) / engine.times().total), " samples/s");
  if (times_) {
    const StepTimes& t = engine.times();
    log::info("  forward ", format_seconds(t.forward), ", backward ", format_seconds(t.backward),
              ", exposed communication ", format_seconds(t.exposed_communication), ", optimizer ",
              format_seconds(t.optimizer), ", step ", format_seconds(t.total),
              engine.device().is_cpu() ? "" : concat(", waits of the host ", engine.host_syncs()));
  }
  if (memory_) {
    const std::optional<device::MemoryUse> on_device = engine.device_memory();
    const auto resident = static_cast<double>(monitor::current_rss_bytes());
    log::info("  resident ", format_bytes(resident), ", peak ",
              format_bytes(std::max(resident, static_cast<double>(peak_memory_bytes()))),
              on_device ? concat("; on ", engine.device().str(), ' ', format_bytes(on_device->bytes), ", peak ",
                                 format_bytes(on_device->peak))
                        : "");
  }
}

void StepReport::write(const monitor::StepMetrics& m) {
  if (tensorboard_) {
    tensorboard_->step(m);
  }
  if (!csv_) {
    return;
  }
  const std::pair<const char*, std::optional<double>> columns[] = {{"train_loss", m.loss},
                                                                   {"lr", m.lr},
                                                                   {"grad_norm", m.grad_norm},
                                                                   {"step_ms", m.step_ms},
                                                                   {"samples_per_s", m.samples_per_s}};
  for (const auto& [name, value] : columns) {
    if (!value) {
      continue;
    }
    const std::filesystem::path file = *csv_ / concat(name, ".csv");
    const Descriptor made(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC,
                                 0600)); // a stream would make it readable for all
    std::ofstream out(file, std::ios::app);
    out << m.step << ',' << *value << '\n';
    if (!out.flush()) {
      throw Error("engine", concat("cannot write ", (*csv_ / name).string(), ".csv"));
    }
  }
}

} // namespace trireme::engine
