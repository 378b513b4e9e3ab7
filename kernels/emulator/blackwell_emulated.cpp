#include "kernels/device/blackwell.h"
#include "kernels/device/device.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <limits>
#include <unordered_map>
#include <variant>
#include <vector>

// The emulation follows PTX ISA 9.0, tcgen05: the descriptors of matrices and of instructions, the
// layout of operands and sums of cta_group::1 with 128 rows in tensor memory, the lanes that a warp
// may access. It does not model tcgen05.fence, or the memory order of a real device.

namespace cpscope::kernels::emulator {
namespace {

using device::kTensorColumns, device::kTensorLanes;
constexpr int32_t kProductDepth = 16;  // elements summed over by one product
constexpr int32_t kMostColumns = 256;
constexpr int32_t kTensorRowBytes = 128;

struct PendingLoad {
  float* values;
  uint32_t address;
};
struct PendingStore {
  uint32_t address;
  std::array<uint32_t, 32> words;
};
struct Commit {
  uint32_t barrier;
};
/// A product or a commit, and where it was started.
struct TensorStep {
  std::variant<TensorProduct, Commit> what;
  Place place;
};

/// State that sm_100 adds to a CTA.
struct TensorState {
  std::vector<uint32_t> words =
      std::vector<uint32_t>(kTensorLanes * kTensorColumns, 0xffffffff);  // NaN
  bool is_allocated = false;
  std::deque<TensorStep> steps;                                   // not yet executed
  int32_t starter = -1;                                           // the thread that starts them
  std::unordered_map<int32_t, std::vector<PendingLoad>> loads;    // by thread
  std::unordered_map<int32_t, std::vector<PendingStore>> stores;  // by thread
};

TensorState& tensor_state() { return current_cta().extension<TensorState>(); }

int32_t lane_of(uint32_t address) { return static_cast<int32_t>(address >> 16); }
int32_t column_of(uint32_t address) { return static_cast<int32_t>(address & 0xffff); }

uint32_t& word_at(int32_t lane, int32_t column, const Place& place) {
  TensorState& state = tensor_state();
  if (!state.is_allocated) current_cta().fail("tensor memory is not allocated", place);
  if (lane < 0 || lane >= kTensorLanes || column < 0 || column >= kTensorColumns)
    current_cta().fail("outside tensor memory", place);
  return state.words[static_cast<size_t>(lane * kTensorColumns + column)];
}

uint32_t tensor_field(uint64_t descriptor, int shift) {
  return static_cast<uint32_t>((descriptor >> shift) & 0x3fff) << 4;
}

/// One product with its operands.
class TensorRun {
 public:
  TensorRun(const TensorProduct& product, const Place& place)
      : product_(product),
        place_(place),
        is_bf16_((product.kind >> 7 & 7) == 1),
        columns_(static_cast<int32_t>(product.kind >> 17 & 0x3f) * 8) {
    const bool is_known = (product.kind >> 4 & 3) == 1 && (product.kind >> 24 & 0x1f) == 8 &&
                          (product.kind >> 7 & 7) == (product.kind >> 10 & 7) &&
                          (product.kind >> 7 & 7) <= 1 && (product.kind >> 15 & 1) == 0 &&
                          columns_ % 16 == 0 && columns_ > 0 && columns_ <= kMostColumns;
    if (!is_known) current_cta().fail("no such product of tensor memory", place);
  }

  int32_t columns() const { return columns_; }

  void execute() const {
    std::vector<float> a = read_a(), b = read_b();
    for (int32_t row = 0; row < kTensorLanes; ++row) {
      for (int32_t n = 0; n < columns_; ++n) {
        uint32_t& sum = word_at(lane_of(product_.d) + row, column_of(product_.d) + n, place_);
        float value = product_.accumulates ? std::bit_cast<float>(sum) : 0.0f;
        for (int32_t k = 0; k < kProductDepth; ++k)
          value += a[static_cast<size_t>(row * kProductDepth + k)] *
                   b[static_cast<size_t>(k * columns_ + n)];
        sum = std::bit_cast<uint32_t>(value);
      }
    }
    ++counts().products;
  }

 private:
  float number_of(uint16_t bits) const {
    return is_bf16_ ? from_bf16_bits(bits) : from_fp16_bits(bits);
  }
  float shared_value(uint32_t address) const {
    uint16_t bits = 0;
    std::memcpy(&bits, current_cta().at(address ^ ((address >> 7 & 7) << 4), 2, 2, place_),
                sizeof(bits));
    return number_of(bits);
  }
  void check_descriptor(uint64_t descriptor) const {
    if ((descriptor >> 46 & 7) != 1 || descriptor >> 61 != 2)
      current_cta().fail("only descriptors with the 128-byte swizzle are known", place_);
  }

  std::vector<float> read_a() const {
    std::vector<float> a(kTensorLanes * kProductDepth);
    const uint32_t start = tensor_field(product_.a, 0), group_bytes = tensor_field(product_.a, 32);
    if (!product_.a_is_in_tensor_memory) check_descriptor(product_.a);
    for (int32_t row = 0; row < kTensorLanes; ++row) {
      for (int32_t k = 0; k < kProductDepth; ++k) {
        float& value = a[static_cast<size_t>(row * kProductDepth + k)];
        if (product_.a_is_in_tensor_memory) {
          const auto address = static_cast<uint32_t>(product_.a);
          const uint32_t pair = word_at(lane_of(address) + row, column_of(address) + k / 2, place_);
          value = number_of(static_cast<uint16_t>(pair >> (k % 2 * 16)));
        } else {
          value = shared_value(start + row / 8 * group_bytes + row % 8 * kTensorRowBytes + k * 2);
        }
      }
    }
    return a;
  }

  std::vector<float> read_b() const {
    check_descriptor(product_.b);
    const bool is_transposed = (product_.kind >> 16 & 1) != 0;
    const uint32_t start = tensor_field(product_.b, 0), panel_bytes = tensor_field(product_.b, 16),
                   group_bytes = tensor_field(product_.b, 32);
    std::vector<float> b(static_cast<size_t>(kProductDepth * columns_));
    for (int32_t k = 0; k < kProductDepth; ++k) {
      for (int32_t n = 0; n < columns_; ++n) {
        const uint32_t offset = is_transposed
                                    ? n / kBoxLanes * panel_bytes + k / 8 * group_bytes +
                                          k % 8 * kTensorRowBytes + n % kBoxLanes * 2
                                    : n / 8 * group_bytes + n % 8 * kTensorRowBytes + k * 2;
        b[static_cast<size_t>(k * columns_ + n)] = shared_value(start + offset);
      }
    }
    return b;
  }

  const TensorProduct& product_;
  Place place_;
  bool is_bf16_;
  int32_t columns_;
};

void run_oldest_step() {
  TensorState& state = tensor_state();
  const TensorStep step = state.steps.front();
  state.steps.pop_front();
  if (const auto* const product = std::get_if<TensorProduct>(&step.what)) {
    TensorRun(*product, step.place).execute();
  } else {
    arrive_at(std::get<Commit>(step.what).barrier, 0, step.place);
  }
}

void add_step(const TensorStep& step) {
  TensorState& state = tensor_state();
  const int32_t thread = current_cta().thread();
  if (state.starter < 0) state.starter = thread;
  if (state.starter != thread)
    current_cta().fail("the emulator takes products of one thread", step.place);
  state.steps.push_back(step);
  current_cta().post(run_oldest_step);
}

/// Whether the running thread may access the lane at which a warp's access begins.
void check_lane(uint32_t address, const Place& place) {
  if (lane_of(address) != current_cta().warp() % 4 * 32)
    current_cta().fail("a warp accesses lanes of tensor memory that are not its own", place);
  // All lanes of the warp execute it together.
  int nothing = 0;
  meet_in_warp(nothing, place, [](int* const*) {});
}

}  // namespace

void allocate_tensor_memory(uint32_t to, const Place& place) {
  int nothing = 0;
  meet_in_warp(nothing, place, [&](int* const*) {
    TensorState& state = tensor_state();
    if (state.is_allocated) current_cta().fail("tensor memory is allocated twice", place);
    state.is_allocated = true;
    const uint32_t address = 0;
    std::memcpy(current_cta().at(to, 4, 4, place), &address, sizeof(address));
  });
}

void free_tensor_memory(uint32_t memory, const Place& place) {
  int nothing = 0;
  meet_in_warp(nothing, place, [&](int* const*) {
    TensorState& state = tensor_state();
    if (!state.is_allocated || memory != 0 || !state.steps.empty())
      current_cta().fail("this tensor memory cannot be freed now", place);
    state.is_allocated = false;
  });
}

void start_tensor_product(const TensorProduct& product, const Place& place) {
  const TensorRun run(product, place);  // checks it
  add_step({product, place});
  // Before the product is done, new sums hold no usable data. What steps before still read stays.
  if (product.accumulates || tensor_state().steps.size() > 1) return;
  for (int32_t lane = 0; lane < kTensorLanes; ++lane) {
    for (int32_t n = 0; n < run.columns(); ++n)
      word_at(lane_of(product.d) + lane, column_of(product.d) + n, place) = 0xffffffff;
  }
}

void commit_tensor_products(uint32_t barrier, const Place& place) {
  add_step({Commit{barrier}, place});
}

void start_tensor_load(float* values, uint32_t address, const Place& place) {
  check_lane(address, place);
  std::fill_n(values, 32, std::numeric_limits<float>::quiet_NaN());
  tensor_state().loads[current_cta().thread()].push_back({values, address});
}

void wait_for_tensor_loads(const Place& place) {
  std::vector<PendingLoad>& pending = tensor_state().loads[current_cta().thread()];
  const int32_t lane = current_cta().lane();
  if (!current_cta().has_fault(Fault::skip_tensor_wait, place)) {
    for (const PendingLoad& load : pending) {
      for (int32_t i = 0; i < 32; ++i)
        load.values[i] = std::bit_cast<float>(
            word_at(lane_of(load.address) + lane, column_of(load.address) + i, place));
    }
  }
  pending.clear();
}

void start_tensor_store(uint32_t address, const uint32_t* words, const Place& place) {
  check_lane(address, place);
  PendingStore& store = tensor_state().stores[current_cta().thread()].emplace_back();
  store.address = address;
  std::copy_n(words, 32, store.words.begin());
}

void wait_for_tensor_stores(const Place& place) {
  std::vector<PendingStore>& pending = tensor_state().stores[current_cta().thread()];
  const int32_t lane = current_cta().lane();
  if (!current_cta().has_fault(Fault::skip_tensor_wait, place)) {
    for (const PendingStore& store : pending) {
      for (int32_t i = 0; i < 32; ++i)
        word_at(lane_of(store.address) + lane, column_of(store.address) + i, place) =
            store.words[static_cast<size_t>(i)];
    }
  }
  pending.clear();
}

}  // namespace cpscope::kernels::emulator
