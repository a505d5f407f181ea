#pragma once

// Horovod's interface on one page: trireme::horovod, for those who know it as hvd.
#include <trireme/extensions/horovod/distributed_optimizer.h>
#include <trireme/extensions/horovod/elastic/averaging_state.h>
#include <trireme/extensions/horovod/elastic/run.h>
#include <trireme/extensions/horovod/elastic/sampler.h>
#include <trireme/extensions/horovod/elastic/state.h>
#include <trireme/extensions/horovod/horovod.h>
