#pragma once

// Horovod's interface on one page: trireme::horovod, for those who know it as hvd.
#include <trireme/horovod/distributed_optimizer.h>
#include <trireme/horovod/elastic/averaging_state.h>
#include <trireme/horovod/elastic/run.h>
#include <trireme/horovod/elastic/sampler.h>
#include <trireme/horovod/elastic/state.h>
#include <trireme/horovod/horovod.h>
