// A replacement for libnccl.so.2 with just enough functions to be loaded. FAKE_NCCL_VERSION: the
// version it reports. FAKE_NCCL_HAS_NO_ABORT: one function is missing.

extern "C" {

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return 0;
}

const char* ncclGetErrorString(int) { return "a fake error"; }
const char* ncclGetLastError(void*) { return "a fake last error"; }

struct FakeUniqueId {
  char bytes[128];
};

int ncclGetUniqueId(FakeUniqueId* id) {
  id->bytes[0] = 42;
  return 0;
}

// The layout that NCCL expects, written independently of cpscope's own.
struct FakeConfig {
  unsigned long size;
  unsigned int magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share;
};

int ncclCommInitRankConfig(void** comm, int num_ranks, FakeUniqueId id, int rank,
                           FakeConfig* config) {
  const bool is_right = num_ranks == 3 && rank == 2 && id.bytes[0] == 42 &&
                        config->magic == 0xcafebeef && config->blocking == 0 &&
                        config->size >= sizeof(FakeConfig) && config->net_name == nullptr;
  *comm = is_right ? config : nullptr;
  return is_right ? 7 : 4;
}

int ncclCommFinalize(void*) { return 0; }
int ncclCommDestroy(void*) { return 0; }
#ifndef FAKE_NCCL_HAS_NO_ABORT
int ncclCommAbort(void*) { return 0; }
#endif
int ncclCommGetAsyncError(void*, int* status) {
  *status = 6;
  return 0;
}
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
int ncclSend(const void*, unsigned long, int, int, void*, void*) { return 0; }
int ncclRecv(void*, unsigned long, int, int, void*, void*) { return 0; }
}
