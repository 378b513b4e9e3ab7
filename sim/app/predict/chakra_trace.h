#pragma once

#include "sim/base/result.h"
#include "sim/documents/timeline_text.h"

#include <cstddef>
#include <string>

namespace cpscope {

/// The predicted schedule as Chakra execution traces, `prefix`.0.et and so on; gives their bytes. A
/// file holds one rank's part: a GlobalMetadata and then a Node for each item that takes time, each
/// behind its length as a varint (schema: MLCommons Chakra, et_def.proto, package ChakraProtoMsg).
/// Computes, merges, reorders, finishes and copies inside the rank are COMP_NODEs with `num_ops`
/// and `tensor_size`; a transfer is a COMM_SEND_NODE of its sender and a COMM_RECV_NODE of its
/// receiver with the same `comm_tag`, `comm_src`, `comm_dst` and `comm_size`. data_deps: who wrote
/// what the item reads. ctrl_deps: who must have read or written before it overwrites, and the item
/// before it on the compute stream. Times in whole us, as the schema has them, never 0; the
/// attribute `duration_ns` is exact. Every file is whole; when one cannot be written, the ones
/// before it are taken away again.
Result<size_t> write_chakra(const TimelineExport& times, const std::string& prefix);

}  // namespace cpscope
