#pragma once

#include "sim/plan/batch_slots.h"
#include "sim/run/record/foreign_record.h"

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Properties of a tensor of the contract.
struct TensorKind {
  std::string_view name;
  bool is_by_head;  // [heads], the same on every rank
  Side side;
  bool has_v_lanes;
  bool is_lse;
  bool is_whole = false;  // the same on every rank, in a shape without rows: bias, dbias, w_k, w_v
};

// The contract's names in its order (section 4).
inline constexpr std::array kTensorKinds = {TensorKind{"q", false, Side::q, false, false},
                                            TensorKind{"k", false, Side::kv, false, false},
                                            TensorKind{"v", false, Side::kv, true, false},
                                            TensorKind{"d_out", false, Side::q, true, false},
                                            TensorKind{"out", false, Side::q, true, false},
                                            TensorKind{"lse", false, Side::q, false, true},
                                            TensorKind{"dq", false, Side::q, false, false},
                                            TensorKind{"dk", false, Side::kv, false, false},
                                            TensorKind{"dv", false, Side::kv, true, false},
                                            TensorKind{"max_logit", true, Side::q, false, false},
                                            TensorKind{"sink", true, Side::q, false, false},
                                            TensorKind{"d_sink", true, Side::q, false, false},
                                            TensorKind{"bias", false, Side::q, false, false, true},
                                            TensorKind{"dbias", false, Side::q, false, false, true},
                                            TensorKind{"w_k", false, Side::kv, false, false, true},
                                            TensorKind{"w_v", false, Side::kv, false, false, true}};

/// The whole tensor or the parts of one name over all files.
struct Found {
  const Tensor* whole = nullptr;
  std::string whole_path;
  std::vector<const Tensor*> parts;  // [rank]
};

/// [kind of tensor] its tensors in the files.
using FoundTensors = std::array<Found, kTensorKinds.size()>;

/// Finds the contract's names, or the aliases for them, in the files, whole or in parts by rank;
/// other names go to `ignored`. A name with an alias is read under that alone.
/// Errors (bad_input): a part twice, of a rank that does not exist, or missing; a tensor whole and
/// in parts; whole numbers or 8-bit floats under a name that is graded; an alias of a name that the
/// contract or the files do not have, or two of one name.
std::optional<Error> collect_tensors(const std::vector<NamedRecord>& records, int32_t cp_size,
                                     const std::vector<TensorAlias>& aliases, FoundTensors& found,
                                     std::set<std::string>& ignored);

/// A tensor's name without the rank of a part: "out" of "out.rank3".
std::string base_name(const std::string& name);

}  // namespace cpscope
