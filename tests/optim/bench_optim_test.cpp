#include <tools/trireme/bench_optim.h>

#include <trireme/base/error.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace trireme::tools {
namespace {

TEST(BenchOptimTest, WritesOneJsonObjectALine) {
  BenchOptimArgs args;
  args.params = {1000, 70000};
  args.threads = {1, 2};
  args.impls = {"adam"};
  args.repeats = 3;
  args.json = true;
  const int threads_before = at::get_num_threads();
  std::stringstream out;
  EXPECT_EQ(bench_optim(args, out), 0);
  EXPECT_EQ(at::get_num_threads(), threads_before);
  std::vector<std::string> rows;
  for (std::string line; std::getline(out, line);) {
    const auto row = nlohmann::json::parse(line);
    rows.push_back(concat(row.at("impl").get<std::string>(), ' ', row.at("params"), ' ', row.at("threads")));
    const double ms = row.at("ms");
    EXPECT_GT(ms, 0);
    EXPECT_LE(row.at("ms_min").get<double>(), ms);
    EXPECT_NEAR(row.at("gb_per_s").get<double>(),
                row.at("bytes").get<double>() * row.at("params").get<double>() / ms / 1e6, 1e-6);
  }
  EXPECT_THAT(rows, ::testing::ElementsAre("adam 1000 1", "limit 1000 1", "adam 1000 2", "limit 1000 2", "adam 70000 1",
                                           "limit 70000 1", "adam 70000 2", "limit 70000 2"));
}

TEST(BenchOptimTest, WritesATable) {
  BenchOptimArgs args;
  args.params = {1000};
  args.threads = {1};
  args.repeats = 2;
  std::stringstream out;
  bench_optim(args, out);
  EXPECT_THAT(
      out.str(),
      ::testing::MatchesRegex(
          "impl .*ms_min.*\nadam  *1000  *1  *28.0 .*\nadam_bf16  *1000  *1  *30.0 .*\nadam_bf16_states16 .*\n"
          "adam_bf16_states8 .*\nlamb .*\nlion .*\nadagrad .*\nrmsprop .*\nsgd .*\nlimit  *1000  *1 .* 100.0\n"));
}

TEST(BenchOptimTest, NamesTheRowsThereAre) {
  BenchOptimArgs args;
  args.params = {1000};
  args.impls = {"adam", "adam_fp4"};
  std::stringstream out;
  try {
    bench_optim(args, out);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--impl adam_fp4 is not a row"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("adam_bf16_states8"));
  }
}

TEST(BenchOptimTest, RefusesNumbersBelowOne) {
  std::stringstream out;
  for (const auto& [change, flag] : std::vector<std::pair<void (*)(BenchOptimArgs&), std::string>>{
           {[](BenchOptimArgs& a) { a.params = {0}; }, "--params"},
           {[](BenchOptimArgs& a) { a.threads = {-1}; }, "--threads"},
           {[](BenchOptimArgs& a) { a.repeats = 0; }, "--repeats"}}) {
    BenchOptimArgs args;
    change(args);
    try {
      bench_optim(args, out);
      FAIL() << flag;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(flag + " must be at least 1"));
    }
  }
  EXPECT_EQ(out.str(), "");
}

} // namespace
} // namespace trireme::tools
