#pragma once

// The public surface of Trireme on one page, but for the models: include <trireme/models/gpt.h> and so on.
//
//   trireme::World world = trireme::World::connect();          // the ranks of this job
//   trireme::DataParallel parallel(*model, world.group());     // an existing loop becomes data parallel
//   auto [engine, optimizer, loader, schedule] = trireme::initialize(world, {...}); // or everything from one JSON
//   engine->train_batch();
//   trireme::pipeline::PipelineModule(layers, loss, options)   // a list of layers becomes a pipeline:
//   InitializeOptions::pipeline

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/options.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/group.h>
#include <trireme/comm/world.h>
#include <trireme/config/auto_values.h>
#include <trireme/config/engine_config.h>
#include <trireme/data/collate.h>
#include <trireme/data/dataset.h>
#include <trireme/data/from_torch.h>
#include <trireme/data/loader.h>
#include <trireme/data/options.h>
#include <trireme/data/sampler.h>
#include <trireme/data/torch_sampler.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/parameter_groups.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/resolve_precision.h>
#include <trireme/engine/step_outcome.h>
#include <trireme/engine/zero_memory.h>
#include <trireme/memory/activations/activations.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/mesh/mesh.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/optim/options.h>
#include <trireme/optim/schedule.h>
#include <trireme/parallel/pipeline/module.h>
#include <trireme/parallel/pipeline/options.h>
#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>
#include <trireme/precision/grad_scaler.h>
#include <trireme/precision/options.h>
#include <trireme/precision/overflow_report.h>
#include <trireme/shards/data_parallel/convert_sync_batch_norm.h>
#include <trireme/shards/data_parallel/data_parallel.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/manual_seed.h>
#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/data_parallel/sync_batch_norm.h>
#include <trireme/shards/zero/init.h>
#include <trireme/shards/zero/options.h>
#include <trireme/shards/zero/sharded.h>
#include <trireme/shards/zero/tiled_linear.h>

namespace trireme {

using comm::Group;
using comm::World;
using config::EngineConfig;
using data::TorchSampler;
using engine::Engine;
using engine::estimate_zero2_memory;
using engine::estimate_zero3_memory;
using engine::initialize;
using engine::InitializeOptions;
using engine::ParameterGroup;
using engine::Preemption;
using engine::read_config;
using engine::ZeroMemory;
using engine::ZeroMemoryOptions;
using mesh::Mesh;
using parallel::DataParallel;
using parallel::DataParallelOptions;
using parallel::manual_seed;
using parallel::SyncBatchNorm;
using parallel::SyncedBatchNorms;

} // namespace trireme
