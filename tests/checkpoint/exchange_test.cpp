// Errors as ranks send them to each other.
#include <trireme/base/error.h>
#include <trireme/checkpoint/exchange.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string raised(const Problem& problem) {
  try {
    problem_from(nlohmann::json::parse(to_json(problem).dump())).raise();
  } catch (const InputError& error) {
    return concat("input: ", error.what());
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ProblemTest, ArrivesAsItWasThrown) {
  EXPECT_EQ(raised(Problem::of(Error("offload", "the disk is gone", "Look for it."))),
            "[offload] the disk is gone. Look for it.");
  EXPECT_EQ(raised(Problem::of(InputError("aio", "no"))), "input: [aio] no.");
  EXPECT_EQ(raised(Problem::of(std::runtime_error("some other library's"))), "[checkpoint] some other library's.");
}

TEST(ProblemTest, OfTheFileSystemNamesOperationFileAndFreeSpace) {
  const auto path = std::filesystem::temp_directory_path() / "some";
  const std::filesystem::filesystem_error full("cannot make the folder", path,
                                               std::make_error_code(std::errc::no_space_on_device));
  EXPECT_THAT(raised(Problem::of(full)),
              AllOf(StartsWith(concat("[file] cannot make the folder ", path.string(), ": No space left on device (")),
                    HasSubstr(" free). Check the path")));
}

TEST(ProblemTest, OfSeveralRanksIsLabelledByTheFirst) {
  const Problem none;
  const Problem disk = Problem::of(Error("offload", "gone"));
  const Problem file = Problem::of(Error("safetensors", "full"));
  EXPECT_EQ(raised(joined({none, disk})), "[offload] rank 1: gone.");
  EXPECT_EQ(raised(joined({disk, none, disk})), "[offload] ranks 0 and 2: gone.");
  EXPECT_EQ(raised(joined({disk, file, disk, disk, file})),
            "[offload] ranks 0, 2 and 3: gone; ranks 1 and 4: [safetensors] full.");
  EXPECT_EQ(raised(joined({none, disk, file})), "[offload] rank 1: gone; rank 2: [safetensors] full.");
  EXPECT_FALSE(joined({none, none}));
}

} // namespace
} // namespace trireme::checkpoint
