#pragma once

#include "sim/scenario/scenario.h"

#include <array>
#include <span>
#include <string_view>

namespace cpscope {

inline constexpr int kNumPeers = 5;

/// The systems that the published table stands beside, as read in 2026-08 to 2026-11.
inline constexpr std::array<std::string_view, kNumPeers> kPeerNames = {
    "TransformerEngine 2.20.2", "PyTorch CP", "MagiAttention 1.1.1", "ring-flash-attention", "USP"};

/// What each system offers for a communication type and a group of masks. Empty: it does not have
/// the communication type. "?": no statement was found.
struct PeerRow {
  CommType comm;
  std::string_view mask_group;
  std::array<std::string_view, kNumPeers> offers;
};
std::span<const PeerRow> peer_rows();

/// What each system offers besides, by topic.
struct PeerTopic {
  std::string_view topic;
  std::string_view feature;  // the matrix' own row; without one, `ours` is said of cpscope
  std::string_view comm;     // the matrix' own column, empty for all of them
  std::string_view ours;
  std::array<std::string_view, kNumPeers> offers;
};
std::span<const PeerTopic> peer_topics();

}  // namespace cpscope
