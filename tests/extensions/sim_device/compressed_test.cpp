// Compression by ATen's operators, on the simulated device: what the CPU's own loops do, and no race.
#include <tests/sim_device/child.h>

#include <trireme/extensions/compress/compressors/compressed_all_reduce.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::IsEmpty;

const std::vector<Stretch>& stretches_here() {
  static const std::vector<Stretch> stretches = {
      {0, 1}, {1, 8}, {17, 17 + 257}, {274, 274 + 2048}, {2322, 2322 + 2048}, {4370, 4370 + 100}};
  return stretches;
}
constexpr int64_t kCount = 4470;

struct Parts {
  at::Tensor message, rest, arrived;
};

Parts compressed(const Compressor& compressor, const at::Tensor& x) {
  Parts parts{torch::zeros({compressor.message_bytes(stretches_here())}, x.options().dtype(torch::kByte)), x.clone(),
              torch::zeros_like(x)};
  compressor.compress(parts.rest, stretches_here(), parts.message);
  compressor.add(parts.message, stretches_here(), parts.arrived);
  return {parts.message.cpu(), parts.rest.cpu(), parts.arrived.cpu()};
}

TEST(SimDeviceCompressedTest, CompressorsEqualTheCpus) {
  sim::in_a_child([] {
    torch::manual_seed(3);
    const at::Tensor x = torch::randn({kCount}) * torch::logspace(-3, 2, kCount);
    x[300] = 0;
    x[301] = -0.0;
    const at::Tensor there = x.to(sim::device());
    const auto sign = sign_compressor(), eight = eight_bit_compressor(), top = top_k_compressor(0.1);
    const Parts sign_here = compressed(*sign, x), sign_there = compressed(*sign, there);
    const int64_t bits = static_cast<int64_t>(stretches_here().size() * sizeof(float)); // behind the scales
    EXPECT_TRUE(sign_here.message.slice(0, bits).equal(sign_there.message.slice(0, bits)));
    EXPECT_TRUE(torch::allclose(sign_here.arrived, sign_there.arrived, 1e-6, 0));
    EXPECT_TRUE(torch::allclose(sign_here.rest, sign_there.rest, 1e-5, 1e-5));
    const Parts eight_here = compressed(*eight, x), eight_there = compressed(*eight, there);
    EXPECT_GT(eight_here.message.eq(eight_there.message).to(torch::kFloat).mean().item<double>(),
              0.999); // but for halves between two levels
    EXPECT_TRUE(torch::allclose(eight_there.arrived + eight_there.rest, x, 1e-6, 2e-5));
    const Parts top_here = compressed(*top, x), top_there = compressed(*top, there);
    EXPECT_TRUE(top_here.arrived.equal(top_there.arrived));
    EXPECT_TRUE(top_here.rest.equal(top_there.rest));
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

TEST(SimDeviceCompressedTest, TheAllReduceEqualsTheCpus) {
  test::on_ranks(2, [](World& world) {
    sim::start();
    world.group().open(sim::device());
    for (const auto& compressor : {sign_compressor(), eight_bit_compressor(), top_k_compressor(0.1)}) {
      CompressedAllReduce here(world.group(), compressor, 5003), there(world.group(), compressor, 5003);
      const ErrorFeedback errors_here = here.no_errors(torch::kCPU), errors_there = there.no_errors(sim::device());
      for (int round = 0; round < 3; ++round) {
        torch::manual_seed(static_cast<uint64_t>(10 * round + world.rank()));
        const at::Tensor x = torch::randn({5003});
        const at::Tensor copy = x.to(sim::device());
        here.run(x, errors_here);
        there.run(copy, errors_there);
        // A last bit of a scale may turn the sign of what is nearly 0, and a level what lies between
        // two.
        EXPECT_GT(x.isclose(copy.cpu(), 1e-4, 1e-4).to(torch::kFloat).mean().item<double>(), 0.995)
            << compressor->name() << ", round " << round;
      }
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

} // namespace
} // namespace trireme::comm
