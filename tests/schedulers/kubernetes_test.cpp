// examples/kubernetes: manifests that fit their APIs, and pods that train as `trireme train` does. There is no
// Kubernetes here.
#include "tests/support/free_port.h"
#include "tests/tools/shell.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kPython = test::python();
const std::string kManifests = test::source_dir() + "/examples/kubernetes/";

std::string why_no_packages() {
  const Finished found =
      sh(concat('"', kPython, "\" -c \"import yaml, kubernetes, kubeflow_trainer_api, kubeflow.training.models\""));
  return found.status == 0 ? "" : "the Python packages of requirements-test.txt are not there: " + found.output;
}

class KubernetesTest : public RunFolder {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_packages(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    ::setenv("OMP_NUM_THREADS", "1", 1); // sums in the same order everywhere
    write_file_atomically(folder / "secret", std::string(64, 'a'));
    fs::permissions(folder / "secret", fs::perms::owner_read);
  }
  Finished check(const std::string& file) const {
    return sh(concat('"', kPython, "\" \"" + test::source_dir() + "/tests/schedulers/check_manifests.py\" ", file));
  }
  Finished run_pods(const std::string& manifest, const std::string& kill = "") const {
    return sh(concat('"', kPython, "\" \"" + test::source_dir() + "/tests/schedulers/run_pods.py\" \"", kManifests,
                     manifest, "\" ", folder.string(), ' ', kTrireme, ' ', test::free_port(), ' ', kill),
              200);
  }
  // Long enough to be met in the middle.
  void make_longer() const {
    const Finished edited = sh(concat(
        "sed -i \"s/: 30, \\\"checkpoint_every\\\": 5/: 300, \\\"checkpoint_every\\\": 40/\" ", path("run.json")));
    ASSERT_THAT(read_file(folder / "run.json"), HasSubstr("\"steps\": 300")) << edited.output;
  }
  std::string uninterrupted(int ranks, int step) const {
    const Finished run = sh(concat(kTrireme, " train ", path("run.json"), " -n ", ranks, " --out ", path("clean")));
    EXPECT_EQ(run.status, 0) << run.output;
    return tensor_bytes(folder / "clean/checkpoints" / concat("global_step", step));
  }
  std::string state_of(const std::string& run, int step) const {
    return tensor_bytes(folder / "runs" / run / "checkpoints" / concat("global_step", step));
  }
  std::string log() const { return read_file(folder / "pods.log"); }
};

TEST_F(KubernetesTest, ManifestsFitTheirApis) {
  const std::vector<std::pair<std::string, std::string>> objects = {
      {"job.yaml", "Job trireme-one"},
      {"storage.yaml", "PersistentVolumeClaim trireme-data"},
      {"pytorchjob.yaml", "PyTorchJob trireme"},
      {"jobset.yaml", "JobSet trireme"}};
  std::string files;
  for (const auto& [file, object] : objects) {
    files += concat(" \"", kManifests, file, '"');
  }
  const Finished run = check(files);
  EXPECT_EQ(run.status, 0) << run.output;
  for (const auto& [file, object] : objects) {
    EXPECT_THAT(run.output, HasSubstr(concat(file, " fits: ", object)));
  }
}

TEST_F(KubernetesTest, TheCheckSeesWhatDoesNotFit) {
  struct Mistake {
    const char* file;
    const char* before;
    const char* after;
    const char* complaint;
  };
  const std::vector<Mistake> mistakes = {
      Mistake{"pytorchjob.yaml", "cleanPodPolicy", "cleanPodsPolicy", "has no field 'cleanPodsPolicy'"},
      Mistake{"pytorchjob.yaml", "replicas: 3", "replicas: three", "Worker.replicas must be int"},
      Mistake{"pytorchjob.yaml", "claimName: trireme-data", "claim: trireme-data", "has no field 'claim'"},
      Mistake{"jobset.yaml", "enableDNSHostnames: true", "enableDNSHostnames: 1", "enableDNSHostnames must be bool"},
      Mistake{"jobset.yaml", "onJobFailureReasons", "onFailureReasons", "has no field 'onFailureReasons'"},
      Mistake{"jobset.yaml", "    - name: rank", "    - groupName: rank", "lacks 'name'"},
      Mistake{"jobset.yaml", "operator: In, ", "", "lacks 'operator'"},
      Mistake{"jobset.yaml", "memory: 8Gi", "memory: 8GB", "must be a quantity"},
      Mistake{"job.yaml", "backoffLimit: 10", "backoffLimit: ten", "Job.spec.backoffLimit must be int"},
      Mistake{"job.yaml", "restartPolicy", "restart", "has no field 'restart'"},
      Mistake{"storage.yaml", "v1", "v2", "there is no type for"}};
  std::string files;
  for (const Mistake& mistake : mistakes) {
    std::string text = read_file(kManifests + mistake.file);
    const size_t at = text.find(mistake.before);
    ASSERT_NE(at, std::string::npos) << mistake.before;
    const std::string name = concat("wrong", &mistake - mistakes.data(), ".yaml");
    write_file_atomically(folder / name, text.replace(at, std::string(mistake.before).size(), mistake.after));
    files += concat(' ', path(name));
  }
  const Finished run = check(files);
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.output.find(" fits: "), std::string::npos) << run.output;
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(run.output, HasSubstr(mistake.complaint)) << mistake.after;
  }
}

TEST_F(KubernetesTest, APyTorchJobTrainsAlsoWhenAPodIsKilled) {
  make_longer();
  const Finished run = run_pods("pytorchjob.yaml", "2,60,KILL");
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("pod 2 ended with 137"), HasSubstr("ended with 200"), HasSubstr("the job is complete")))
      << log();
  EXPECT_THAT(log(), AllOf(HasSubstr("4 ranks, 4 data-parallel"), HasSubstr("runs/trireme/checkpoints/global_step"),
                           Not(HasSubstr("without a secret"))));
  EXPECT_TRUE(state_of("trireme", 300) == uninterrupted(4, 300)) << log();
}

TEST_F(KubernetesTest, APyTorchJobTrainsAlsoWhenAPodIsAskedToLeave) {
  make_longer();
  const Finished run = run_pods("pytorchjob.yaml", "1,60,TERM");
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("ended with 143"), HasSubstr("pod 1 started again"), HasSubstr("the job is complete")))
      << log();
  EXPECT_TRUE(state_of("trireme", 300) == uninterrupted(4, 300)) << log();
}

// A pod that has saved must not end with 0: its job would be complete.
TEST_F(KubernetesTest, AJobSetTrainsAlsoWhenAPodIsAskedToLeave) {
  make_longer();
  const Finished run = run_pods("jobset.yaml", "1,60,TERM");
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("ended with 75"), HasSubstr("all pods started again"), HasSubstr("the job is complete")))
      << log();
  EXPECT_THAT(log(), AllOf(HasSubstr("; continue with --resume"), HasSubstr("continuing from")));
  EXPECT_TRUE(state_of("trireme", 300) == uninterrupted(4, 300)) << log();
}

TEST_F(KubernetesTest, AJobOfOnePodStartsItsRanksItself) {
  make_longer();
  const Finished run = run_pods("job.yaml", "0,60,TERM");
  EXPECT_THAT(run.output, AllOf(HasSubstr("pod 0 ended with 75"), HasSubstr("pod 0 started again"),
                                HasSubstr("the job is complete")))
      << log();
  EXPECT_TRUE(state_of("one", 300) == uninterrupted(2, 300)) << log();
}

TEST_F(KubernetesTest, WrongInputIsNotTriedAgain) {
  write_file_atomically(folder / "run.json", "{}");
  for (const auto& [manifest, rule] :
       {std::pair("job.yaml", "podFailurePolicy"), std::pair("jobset.yaml", "podFailurePolicy"),
        std::pair("pytorchjob.yaml", "exit code")}) {
    const Finished run = run_pods(manifest);
    EXPECT_THAT(run.output, AllOf(HasSubstr("ended with 2"), HasSubstr(concat("the job failed: ", rule)),
                                  Not(HasSubstr("started again"))))
        << manifest << '\n'
        << log();
  }
}

} // namespace
} // namespace trireme::tools
