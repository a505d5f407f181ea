#include <trireme/plan/search.h>
