// The C++ of docs/tensor_parallel.md, line by line, in a program that runs.
#include "small_run.h"

#include <trireme/models/gpt.h>
#include <trireme/trireme.h>

#include <tests/support/page_code.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

TEST(TensorPageTest, MeshModelAndEngine) {
  test::on_ranks(8, [](comm::World& world) {
    models::GptOptions gpt_options = small_gpt();
    const std::vector<double> losses = plain_losses(8, 4, 1.0, nullptr, gpt_options);
    trireme::InitializeOptions options;
    options.config = small_config(8, 1);
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    auto mesh = trireme::mesh::training_mesh(world.group(), {.context = 2, .tensor = 2}); // data: the rest
    trireme::models::ModelRanks ranks;
    ranks.tensor = {mesh.group("tensor"), /*sequence_parallel=*/true};
    ranks.context = mesh.group("context");
    trireme::models::Gpt model(gpt_options, ranks);
    options.model = model.ptr();
    options.loss = [model](const trireme::data::Batch& batch) mutable {
      return model->loss(batch.input(), batch.target());
    };
    options.mesh = mesh;
    options.sequence_parallel = true;
    auto [engine, optimizer, loader, schedule] = trireme::initialize(world, options);
    EXPECT_EQ(engine->group().size(), 2);
    for (const double loss : losses) {
      EXPECT_NEAR(engine->train_batch().item<double>(), loss, 1e-5 * loss);
    }
  });
}

TEST(TensorPageTest, ThePageShowsThisCode) {
  EXPECT_GE(test::code_lines_of("docs/tensor_parallel.md",
                                {"tests/engine/tensor_page_test.cpp", "tests/engine/split_llama_test.cpp"}),
            30);
}

} // namespace
} // namespace trireme::engine
