#pragma once

// Probes code k and v of one KV head. Where latent rows are expanded (latent_nope_dim), the coded
// rows are packed into latent ones, and weights select their elements: those of head h begin h
// elements later, so that the weights of another head are seen.

#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

namespace cpscope {

/// The attention whose k and v a probe codes: one KV head with v of its own, where rows are
/// expanded.
Attention probed_attention(const Attention& attention);

/// The scenario with latent rows that have room for an element of k and of v each; only then can
/// weights select them.
Scenario with_room_for_codes(Scenario scenario);

/// Inputs of probed_attention as those of `attention`.
RunInputs pack_codes(const Attention& attention, RunInputs inputs);

/// The answer to packed inputs as that to the ones before.
void unpack_codes(const Attention& attention, Answer& answer);

}  // namespace cpscope
