#include <trireme/comm/environment.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <map>

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

struct Case {
  const char* name;
  Variables variables;
  int rank;
  int size;
  int local_rank;
  int local_size;
  std::string host;
  int port;
};

class EnvironmentTest : public testing::TestWithParam<Case> {};

TEST_P(EnvironmentTest, Reads) {
  const Case& wanted = GetParam();
  const Environment found = read(wanted.variables);
  EXPECT_EQ(found.rank, wanted.rank);
  EXPECT_EQ(found.size, wanted.size);
  EXPECT_EQ(found.local_rank, wanted.local_rank);
  EXPECT_EQ(found.local_size, wanted.local_size);
  EXPECT_EQ(found.host, wanted.host);
  if (!wanted.host.empty()) {
    EXPECT_EQ(found.port, wanted.port);
  }
}

const Case kCases[] = {
    {"Nothing", {}, 0, 1, 0, 1, "", 0},
    {"EmptyValuesAreUnset", {{"RANK", ""}, {"WORLD_SIZE", ""}}, 0, 1, 0, 1, "", 0},
    {"Torchrun",
     {{"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "node0"},
      {"MASTER_PORT", "1234"}},
     5,
     8,
     1,
     4,
     "node0",
     1234},
    {"KubeflowPyTorchJob",
     {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}},
     1,
     2,
     -1,
     -1,
     "job-master-0",
     23456},
    {"PortHasADefault", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, 1, 2, -1, -1, "a", 29500},
    {"RankBeatsOpenMpi",
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "a"},
      {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"}},
     0,
     2,
     -1,
     -1,
     "a",
     29500},
    {"OpenMpiOnOneHost",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_SERVER_TMPDIR", "/tmp/session"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"}},
     1,
     2,
     1,
     2,
     "",
     0},
    {"OpenMpiOnTwoHosts",
     {{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"MASTER_ADDR", "head"},
      {"MASTER_PORT", "7000"}},
     3,
     4,
     1,
     2,
     "head",
     7000},
    {"Mvapich",
     {{"MV2_COMM_WORLD_RANK", "1"},
      {"MV2_COMM_WORLD_SIZE", "2"},
      {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
      {"MV2_COMM_WORLD_LOCAL_SIZE", "1"},
      {"MASTER_ADDR", "head"}},
     1,
     2,
     0,
     1,
     "head",
     29500},
    {"Hydra",
     {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}},
     2,
     3,
     2,
     3,
     "",
     0},
    {"SrunWithPmiIsSlurm",
     {{"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_JOB_ID", "123456"},
      {"SLURM_JOB_NODELIST", "gpu[07-08]"}},
     1,
     2,
     0,
     -1,
     "gpu07",
     18456},
    {"SlurmOnOneHost",
     {{"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_STEP_ID", "1"},
      {"SLURM_LOCALID", "3"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_JOB_NODELIST", "login"}},
     3,
     4,
     3,
     4,
     "127.0.0.1",
     15077},
    {"SlurmStepListWins",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_JOB_ID", "1"},
      {"SLURM_JOB_NODELIST", "a[1-4]"},
      {"SLURM_STEP_NODELIST", "a[3-4]"}},
     0,
     2,
     -1,
     -1,
     "a3",
     15001},
    {"SlurmBatchScriptIsNone",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "5"}, {"SLURM_JOB_NODELIST", "a[1-4]"}},
     0,
     1,
     0,
     1,
     "",
     0},
    {"SlurmShellIsNone",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_JOB_NAME", "bash"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_PTY_PORT", "35479"}},
     0,
     1,
     0,
     1,
     "",
     0},
    {"SlurmStepOfAShell",
     {{"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_JOB_NAME", "bash"},
      {"SLURM_STEP_ID", "2"},
      {"SLURM_PTY_PORT", "35479"},
      {"SLURM_JOB_ID", "4"},
      {"SLURM_STEP_NODELIST", "a1"}},
     1,
     2,
     -1,
     2,
     "127.0.0.1",
     15004},
    {"SlurmJobThatIsCalledInteractive",
     {{"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_JOB_NAME", "interactive"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_JOB_ID", "4"},
      {"SLURM_STEP_NODELIST", "a[1-2]"}},
     1,
     2,
     -1,
     -1,
     "a1",
     15004},
    {"Pet",
     {{"PET_NNODES", "3"},
      {"PET_NODE_RANK", "2"},
      {"PET_NPROC_PER_NODE", "1"},
      {"PET_MASTER_ADDR", "trainer-0"},
      {"PET_MASTER_PORT", "29400"}},
     2,
     3,
     0,
     1,
     "trainer-0",
     29400},
    {"PetRangeOfOneNumber",
     {{"PET_NNODES", "2:2"}, {"PET_NODE_RANK", "0"}, {"PET_MASTER_ADDR", "t"}},
     0,
     2,
     0,
     1,
     "t",
     29500},
    {"TfConfigChief",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["w0:1", "w1:2"], "chief": ["c:2222"]}, "task": {"type": "worker", "index": 1}})"}},
     2,
     3,
     -1,
     -1,
     "c",
     2222},
    {"TfConfigWorkers",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["w0:1000", "w1:2000"], "ps": ["p:1"]}, "task": {"type": "worker", "index": "0"}})"}},
     0,
     2,
     -1,
     -1,
     "w0",
     1000},
    {"TfConfigWithoutCluster", {{"TF_CONFIG", "{}"}}, 0, 1, 0, 1, "", 0},
};

INSTANTIATE_TEST_SUITE_P(Table, EnvironmentTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Of a step with a terminal task 0 may be a shell, whatever its name, or the program itself.
TEST(EnvironmentTest, WhatIsTypedInAShellOfSlurmIsAlone) {
  const Variables step = {
      {"SLURM_PROCID", "0"},       {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NAME", "train"},   {"SLURM_STEP_ID", "3"},
      {"SLURM_PTY_PORT", "35479"}, {"SLURM_JOB_ID", "4"}, {"SLURM_STEP_NODELIST", "a1"}, {"SLURM_TASK_PID", "4711"},
      {"PMI_RANK", "0"},           {"PMI_SIZE", "8"}};
  const auto size = [](const Variables& variables, bool as_task) {
    return read_environment(
        [&](const std::string& name) {
          return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
        },
        [&](int task) { return task == 4711 && as_task; });
  };
  EXPECT_EQ(size(step, false).size, 1);
  EXPECT_THAT(size(step, false).note, AllOf(HasSubstr("task 0 of 8 (SLURM_NTASKS)"), HasSubstr("srun")));
  EXPECT_EQ(size(step, true).size, 8);
  EXPECT_EQ(size(step, true).note, "");
  Variables other = step;
  other.erase("SLURM_PTY_PORT");
  EXPECT_EQ(size(other, false).size, 8) << "a step without a terminal is no shell";
  other["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(size(other, true).size, 1) << "the shell of salloc";
}

TEST(EnvironmentErrorTest, ContradictionsNameTheVariable) {
  EXPECT_THAT(refusal({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set, but RANK is"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set, but WORLD_SIZE is"));
  EXPECT_THAT(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
              HasSubstr("rank 2 is outside a world of 2"));
  EXPECT_THAT(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("rank -1"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("at least 1"));
  EXPECT_THAT(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK must be a whole number, it is \"one\""));
  EXPECT_THAT(refusal({{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}), HasSubstr("whole number"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT must be a port"));
  EXPECT_THAT(
      refusal(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      HasSubstr("local rank 2 of 2"));
  EXPECT_THAT(
      refusal(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "3"}}),
      HasSubstr("does not fit a world of 2"));
}

TEST(EnvironmentErrorTest, LaunchersAreToldWhatToType) {
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
              HasSubstr("mpirun -x MASTER_ADDR=HOST_OF_RANK_0"));
  EXPECT_THAT(refusal({{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "0"}}), HasSubstr("torchrun --no-python"));
  EXPECT_THAT(refusal({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "4"}}),
              HasSubstr("torchrun --no-python"));
  EXPECT_THAT(refusal({{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}}), HasSubstr("PET_NODE_RANK is not set"));
  EXPECT_THAT(refusal({{"PET_NNODES", "two"}, {"PET_NODE_RANK", "0"}}), HasSubstr("PET_NNODES must be a whole number"));
  EXPECT_THAT(refusal({{"TF_CONFIG", "{"}}), HasSubstr("TF_CONFIG cannot be parsed"));
  EXPECT_THAT(refusal({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})"}}),
              HasSubstr("task 0 of \"ps\""));
  EXPECT_THAT(refusal({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}})"}}),
              HasSubstr("task 1"));
  EXPECT_THAT(
      refusal({{"TF_CONFIG", R"({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}})"}}),
      HasSubstr("gives no port"));
  EXPECT_THAT(
      refusal({{"TF_CONFIG", R"({"cluster": {"worker": ["a:x", "b:1"]}, "task": {"type": "worker", "index": 0}})"}}),
      HasSubstr("port \"x\""));
  EXPECT_THAT(
      refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "a[1-"}}),
      HasSubstr("host list \"a[1-\""));
}

TEST(EnvironmentTest, NamesTheJobWhereItsLauncherDoes) {
  const Variables plain = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(read(plain).job, "");
  Variables variables = plain;
  variables["TORCHELASTIC_RUN_ID"] = "elastic";
  EXPECT_EQ(read(variables).job, "elastic");
  variables["TRIREME_RUN_ID"] = "ours";
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_EQ(read(variables).job, "ours") << "restarts are the same job";
  EXPECT_EQ(read({{"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "2"},
                  {"SLURM_JOB_ID", "7"},
                  {"SLURM_STEP_ID", "3"},
                  {"SLURM_JOB_NODELIST", "a[1-2]"}})
                .job,
            "Slurm 7.3");
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "a"},
                  {"PMIX_NAMESPACE", "prterun-9@1"}})
                .job,
            "prterun-9@1");
}

TEST(EnvironmentTest, AgentsStoreIsSharedByRestarts) {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "a"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RUN_ID", "job7"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}};
  EXPECT_TRUE(read(variables).store_of_agent);
  const std::string second = read(variables).key_prefix;
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_NE(read(variables).key_prefix, second);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(read(variables).store_of_agent);
}

TEST(EnvironmentTest, TriremeLaunchNamesItsStoreBesideThePortOfTheProgram) {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "20001"},
                         {"TRIREME_LISTEN_FD", "9"},
                         {"TRIREME_STORE_ADDR", "node1"},
                         {"TRIREME_STORE_PORT", "40001"},
                         {"TRIREME_RUN_ID", "a"},
                         {"TORCHELASTIC_RUN_ID", "a"}};
  EXPECT_EQ(read(variables).host, "node1");
  EXPECT_EQ(read(variables).port, 40001);
  EXPECT_EQ(read(variables).listen_fd, 9);
  variables["TRIREME_STORE_PORT"] = "0";
  EXPECT_THAT(refusal(variables), HasSubstr("TRIREME_STORE_PORT must be a port"));
  // torchrun, started by trireme launch, starts ranks of its own.
  variables["TORCHELASTIC_RUN_ID"] = "b";
  EXPECT_EQ(read(variables).host, "node0");
  EXPECT_EQ(read(variables).port, 20001);
  EXPECT_EQ(read(variables).listen_fd, std::nullopt);
  variables["TORCHELASTIC_RUN_ID"] = "a";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(variables).port, 20001);
}

TEST(EnvironmentTest, OnlyRankZeroTakesTheLaunchersSocket) {
  Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"TRIREME_LISTEN_FD", "9"}};
  EXPECT_EQ(read(variables).listen_fd, 9);
  variables["RANK"] = "1";
  EXPECT_EQ(read(variables).listen_fd, std::nullopt);
}

TEST(HostListTest, ExpandsBrackets) {
  EXPECT_THAT(expand_host_list("one"), ElementsAre("one"));
  EXPECT_THAT(expand_host_list("gpu[01-03,7],login"), ElementsAre("gpu01", "gpu02", "gpu03", "gpu7", "login"));
  EXPECT_THAT(expand_host_list("a[9-11]"), ElementsAre("a9", "a10", "a11"));
  EXPECT_THAT(expand_host_list("r[1-2]n[0,5].x"), ElementsAre("r1n0.x", "r1n5.x", "r2n0.x", "r2n5.x"));
}

TEST(HostListTest, RefusesWhatIsBroken) {
  for (const char* list :
       {"", "a[1-", "a]1[", "a[[1]]", "a[3-1]", "a[x]", "a[1-2-3]", "a,,b", "a[]", "a[0-99999999]"}) {
    EXPECT_THROW(expand_host_list(list), InputError) << list;
  }
}

// A list of a few characters must not ask for gigabytes.
TEST(HostListTest, RefusesMoreHostsThanThereAre) {
  EXPECT_EQ(expand_host_list("a[0-99999]").size(), 100'000u);
  for (const std::string& list : {std::string("a[0-99999],b"), std::string("a[0-99999,1]"),
                                  std::string("a[0-9][0-99999]"), "a[" + std::string(19, '0') + "]"}) {
    EXPECT_THROW(expand_host_list(list), InputError) << list;
  }
}

TEST(HostListTest, RefusesNamesLongerThanANameMayBe) {
  std::string list = "a[0-9]";
  for (int i = 0; i < 260; ++i) {
    list += "[0]";
  }
  EXPECT_EQ(expand_host_list(list.substr(0, 6 + 3 * 240)).size(), 10u);
  EXPECT_THROW(expand_host_list(list), InputError);
}

} // namespace
} // namespace trireme::comm
