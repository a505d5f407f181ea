// What the launcher's tests run on "other hosts" in place of `trireme agent`.
#include <trireme/launch/agent.h>

int main() {
  return trireme::launch::run_agent();
}
