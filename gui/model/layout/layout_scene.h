#pragma once

#include "gui/model/place_map.h"
#include "gui/model/view.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cpscope::gui {

/// Above this number of ranks or ribbons, only the focus rank's ribbons are drawn.
inline constexpr int32_t kMostRibbonRanks = 32;
inline constexpr size_t kMostRibbons = 400;
/// Chunks narrower than this are merged into bands, teeth into a comb symbol.
inline constexpr double kLeastPixels = 3;

/// One side of the layout picture while it is drawn: its inputs and its geometry.
struct LayoutScene {
  const ViewInput& input;
  const PlaceMap& map;
  View& view;
  Axis packed;       // packed padded ids to pixels
  float left = 0;    // x where row titles begin
  float right = 0;   // x where figures after rows end; packed.end() if there are none
  float text = 12;   // size of titles
  float small = 11;  // size of figures

  const Theme& theme() const { return *input.theme; }
  Drawing& drawing() const { return view.drawing; }
  std::string_view side_name() const { return map.side == Side::q ? "q" : "kv"; }
  Color rank_color(int32_t rank) const { return theme().of_rank(rank, map.num_ranks); }
  float width_of(const std::string& text_, float size, Face face = Face::body) const {
    return input.text_width(text_, size, face);
  }
};

/// "[64, 128)", in Ki and Mi where the axis uses them.
std::string print_tokens(const PlaceMap& map, int64_t begin, int64_t end);
/// Describes a chunk: ids, sequence and positions, rank and local rows, padding.
std::string describe_chunk(const PlaceMap& map, int32_t rank, int64_t begin, int64_t end,
                           int64_t row);
/// Like describe_chunk, for rows of one local part.
std::string describe_local(const PlaceMap& map, const LocalPart& part);

/// How strongly tokens token, token + stride, ... (`rows` of them) are lit.
Light light_of(const LayoutScene& scene, int64_t token, int64_t rows, int64_t stride);
/// Outlines the box according to its light; does nothing for Light::none.
void add_light(Drawing& drawing, const Theme& theme, const Box& box, Light light);

/// Adds a chunk's box in its rank's colour, with a gap to the next one.
void add_chunk(LayoutScene& scene, const Box& box, int32_t rank);
/// Adds dots over a part of a chunk; the owner's colour stays visible around them.
void add_padding(LayoutScene& scene, const Box& box);
/// Adds the text on a plate in the middle of the box, if it fits.
void add_plate(LayoutScene& scene, const Box& box, const std::string& text);
/// Adds the first of `texts` that fits, in the middle of the box.
void add_fitting(LayoutScene& scene, const Box& box, Color ink, float size, Face face,
                 std::span<const std::string> texts);
/// Adds a row's title, right-aligned before the picture; the short one if there is little room.
void add_title(LayoutScene& scene, float y, const std::string& text, Color ink,
               const std::string& short_text = {});

/// The box between two units of an axis, clipped to the shown range; at least a pixel wide. Empty
/// (x0 >= x1) when nothing of it is shown.
Box cut_box(const Axis& axis, double begin, double end, float y0, float y1);

/// Adds ruler, sequences with their padding, and owners of the packed order, downwards from y.
/// Returns the lower end.
float add_packed_order(LayoutScene& scene, float y, float sequence_height, float owner_height);

/// Adds each rank's local buffer inside the box, and ribbons to it from the packed order that ends
/// at `ribbon_top`.
void add_local_order(LayoutScene& scene, const Box& box, float ribbon_top);

/// Adds the reorders of the current step on the focus rank: for one reorder, the rows in rank order
/// above and in token order below, or the other way round, moved according to the moment and
/// input.progress; the reorders of a step move one after another. Hits: "reordered/forward/N", a
/// chip for each of them; a selected one is always shown.
void add_reorder(LayoutScene& scene, const Box& box);
/// True if the pass of the moment reorders rows of this side on the focus rank.
bool has_reorder(const ViewInput& input, Side side);

}  // namespace cpscope::gui
