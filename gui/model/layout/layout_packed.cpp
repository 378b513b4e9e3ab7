#include "gui/model/describe.h"
#include "gui/model/layout/layout_scene.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Largest width of a tooth of a comb symbol, in pixels.
constexpr float kSymbolTooth = 7;
constexpr float kMostTeeth = 160;

std::vector<Fold> fold_sequences(const LayoutScene& scene) {
  const PlaceMap& map = scene.map;
  const auto begin = [&](size_t s) { return map.slot_begin[s]; };
  const auto end = [&](size_t s) { return map.slot_begin[s + 1]; };
  return fold_narrow(map.num_sequences(), scene.packed.lo(), scene.packed.hi(),
                     kLeastPixels * scene.packed.units_per_pixel(), begin, end);
}

/// Padding of a slot, wide enough to be seen, with its number of tokens beside it: "+6".
/// Shortens the room of the slot's own text by what it needs.
void add_padding_badge(LayoutScene& scene, int64_t from, int64_t to, bool is_front, const Box& slot,
                       Box& text_room) {
  if (from >= to) return;
  const float y0 = slot.y0, y1 = slot.y1;
  constexpr float kLeast = 6, kLeastSlot = 40;
  Box box = cut_box(scene.packed, static_cast<double>(from), static_cast<double>(to), y0, y1);
  if (box.x0 >= box.x1 || slot.width() < kLeastSlot) return add_padding(scene, box);
  if (box.width() < kLeast) {
    if (is_front)
      box.x1 = box.x0 + kLeast;
    else
      box.x0 = box.x1 - kLeast;
  }
  scene.drawing().add(FilledBox{box, scene.theme().of(Role::raised)});
  add_padding(scene, box);
  const std::string text = fmt::format("+{}", print_count(to - from));
  const float wide = scene.width_of(text, scene.small, Face::mono);
  if (wide + 8 > slot.width() / 3) return;
  const float x = is_front ? box.x1 + 3 : box.x0 - 3 - wide;
  if (is_front)
    text_room.x0 = std::max(text_room.x0, x + wide);
  else
    text_room.x1 = std::min(text_room.x1, x);
  scene.drawing().add(Label{{x, (y0 + y1) / 2},
                            Anchor::left_middle,
                            scene.theme().of(Role::text),
                            scene.small,
                            Face::mono,
                            text});
}

void add_sequence(LayoutScene& scene, size_t s, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const Theme& theme = scene.theme();
  const int64_t begin = map.slot_begin[s], valid_begin = map.valid_begin(s),
                valid_end = map.valid_end(s), end = map.slot_begin[s + 1];
  const Box all =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  const Box valid = cut_box(scene.packed, static_cast<double>(valid_begin),
                            static_cast<double>(valid_end), y0, y1);
  Box text_room = valid;
  if (valid.x0 < valid.x1) scene.drawing().add(FilledBox{valid, theme.of(Role::raised)});
  for (const auto& [from, to] : {std::pair{begin, valid_begin}, std::pair{valid_end, end}})
    add_padding_badge(scene, from, to, from == begin, all, text_room);
  if (valid.x0 < valid.x1) {
    const std::string length = print_count(map.valid_of_slot[s]);
    const std::vector<std::string> texts = {
        fmt::format("sequence {}: {} valid of {} tokens", s, length, print_count(end - begin)),
        fmt::format("sequence {}: {}", s, length), fmt::format("{}: {}", s, length),
        fmt::format("{}", s)};
    // Without padding the long text has no more information.
    const size_t skip = map.valid_of_slot[s] == end - begin ? 1 : 0;
    add_fitting(scene, text_room, theme.of(Role::text), scene.small, Face::body,
                std::span(texts).subspan(skip));
  }
  scene.drawing().add(OutlinedBox{all, theme.of(Role::border)});
  // A partly lit sequence is not lit as a whole.
  const auto covers = [&](const Projection& p) {
    const std::vector<TokenRange>& ranges = p.tokens(map.side);
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const TokenRange& r) { return r.begin <= begin && r.end >= end; });
  };
  if (begin < end && (covers(*scene.input.hovered) || covers(*scene.input.selected)))
    add_light(scene.drawing(), theme, all, light_of(scene, begin, end - begin, 1));
  scene.view.hits.push_back({all, TokenRange{map.side, begin, end},
                             fmt::format("sequence/{}/{}", scene.side_name(), s),
                             fmt::format("sequence {}: tokens {}\n{} valid, {} padding", s,
                                         print_range(begin, end), print_count(map.valid_of_slot[s]),
                                         print_count(end - begin - map.valid_of_slot[s]))});
}

void add_sequence_band(LayoutScene& scene, const Fold& fold, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const int64_t begin = map.slot_begin[fold.first], end = map.slot_begin[fold.first + fold.count];
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  if (box.x0 >= box.x1) return;
  const int64_t padding = map.count_padding(begin, end);
  scene.drawing().add(FilledBox{box, scene.theme().of(Role::raised), Hatch::diagonal,
                                scene.theme().of(Role::border)});
  if (padding > 0) {
    // The share of padding in the band, as a share of its height; at least as much as is visible.
    const auto share = static_cast<float>(padding) / static_cast<float>(end - begin);
    const float height = keep_between(share * box.height(), 2.0F, box.height());
    add_padding(scene, {box.x0, box.y1 - height, box.x1, box.y1});
  }
  scene.view.hits.push_back(
      {box, TokenRange{map.side, begin, end},
       fmt::format("sequences/{}/{}", scene.side_name(), fold.first),
       fmt::format("sequences {} to {}: tokens {}\n{} padding", fold.first,
                   fold.first + fold.count - 1, print_range(begin, end), print_count(padding))});
}

/// Names a group of neighbouring bands once, if there is room.
void add_band_names(LayoutScene& scene, std::span<const Fold> folds, float y0, float y1) {
  const PlaceMap& map = scene.map;
  for (size_t i = 0; i < folds.size();) {
    size_t next = i + 1, count = folds[i].count;
    if (folds[i].count > 1)
      for (; next < folds.size() && folds[next].count > 1; ++next) count += folds[next].count;
    if (folds[i].count > 1) {
      const size_t last = folds[next - 1].first + folds[next - 1].count;
      const Box box = cut_box(scene.packed, static_cast<double>(map.slot_begin[folds[i].first]),
                              static_cast<double>(map.slot_begin[last]), y0, y1);
      add_plate(scene, box, fmt::format("{} sequences", print_count(static_cast<int64_t>(count))));
    }
    i = next;
  }
}

void add_tail(LayoutScene& scene, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const int64_t begin = map.slot_begin.back();
  if (begin >= map.tokens) return;
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(map.tokens), y0, y1);
  if (box.x0 >= box.x1) return;
  add_padding(scene, box);
  add_plate(scene, box, "tail");
  scene.view.hits.push_back({box, TokenRange{map.side, begin, map.tokens},
                             fmt::format("tail/{}", scene.side_name()),
                             fmt::format("tail: tokens {} belong to no sequence, all padding",
                                         print_range(begin, map.tokens))});
}

/// Adds the padding inside [begin, end) of the packed order, for bands and combs.
void add_padding_between(LayoutScene& scene, int64_t begin, int64_t end, float y0, float y1) {
  const PlaceMap& map = scene.map;
  if (map.count_padding(begin, end) == 0) return;
  for (const Fold& fold : fold_sequences(scene)) {
    if (fold.count > 1) continue;
    const size_t s = fold.first;
    for (const auto& [from, to] : {std::pair{map.slot_begin[s], map.valid_begin(s)},
                                   std::pair{map.valid_end(s), map.slot_begin[s + 1]}}) {
      const int64_t first = std::max(begin, from), last = std::min(end, to);
      if (first < last)
        add_padding(scene, cut_box(scene.packed, static_cast<double>(first),
                                   static_cast<double>(last), y0, y1));
    }
  }
  const int64_t tail = std::max(begin, map.slot_begin.back());
  if (tail < end)
    add_padding(scene,
                cut_box(scene.packed, static_cast<double>(tail), static_cast<double>(end), y0, y1));
}

/// Every rank has all rows: each rank's colour is as high as its share of the heads.
void add_owners_of_heads(LayoutScene& scene, int64_t begin, int64_t end, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  if (box.x0 >= box.x1) return;
  const auto heads = static_cast<float>(map.heads[RankId{map.num_ranks - 1}].end);
  const auto y_of = [&](int32_t head) { return y0 + (y1 - y0) * static_cast<float>(head) / heads; };
  for (const RankId rank : map.heads.ids()) {
    const HeadRange& own = map.heads[rank];
    add_chunk(scene, {box.x0, y_of(own.begin), box.x1, y_of(own.end)}, to_index(rank));
  }
  add_padding_between(scene, begin, end, y0, y1);
  add_light(scene.drawing(), scene.theme(), box, light_of(scene, begin, end - begin, 1));
  scene.view.hits.push_back(
      {box, TokenRange{map.side, begin, end}, fmt::format("heads/{}/{}", scene.side_name(), begin),
       fmt::format("query tokens {}\nevery rank has all of them, rank 0 their heads {}, rank {} "
                   "their heads {}",
                   print_range(begin, end),
                   print_range(map.heads[RankId{0}].begin, map.heads[RankId{0}].end),
                   map.num_ranks - 1,
                   print_range(map.heads[RankId{map.num_ranks - 1}].begin,
                               map.heads[RankId{map.num_ranks - 1}].end))});
}

void add_owner(LayoutScene& scene, const PackedPart& part, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const Box box =
      cut_box(scene.packed, static_cast<double>(part.begin), static_cast<double>(part.end), y0, y1);
  if (box.x0 >= box.x1) return;
  add_chunk(scene, box, part.rank);
  // Parts end where sequences end, so their valid tokens are consecutive.
  const auto [first, last] = map.valid_in(part.begin, part.end);
  Box valid = box;
  for (const auto& [from, to] : {std::pair{part.begin, first}, std::pair{last, part.end}}) {
    const Box dots =
        cut_box(scene.packed, static_cast<double>(from), static_cast<double>(to), y0, y1);
    if (from == to || dots.x0 >= dots.x1) continue;
    add_padding(scene, dots);
    if (from == part.begin)
      valid.x0 = dots.x1;
    else
      valid.x1 = dots.x0;
    // If there is hardly a valid token, the owner's name is on the dots.
    if (valid.width() < scene.text) add_plate(scene, dots, fmt::format("{}", part.rank));
  }
  // Chunks of one width all have a number or none, however narrow their own number is.
  const auto fits = [&](const std::string& widest) {
    return scene.width_of(widest, scene.text, Face::strong) + 4 <= valid.width();
  };
  std::string widest(fmt::format("{}", map.num_ranks - 1).size(), '8');
  std::vector<std::string> texts;
  if (fits("rank " + widest)) texts = {fmt::format("rank {}", part.rank)};
  if (texts.empty() && fits(widest)) texts = {fmt::format("{}", part.rank)};
  add_fitting(scene, valid, scene.theme().text_on(scene.rank_color(part.rank)), scene.text,
              Face::strong, texts);
  add_light(scene.drawing(), scene.theme(), box,
            light_of(scene, part.begin, part.end - part.begin, 1));
  scene.view.hits.push_back({box, TokenRange{map.side, part.begin, part.end},
                             fmt::format("chunk/{}/{}", scene.side_name(), part.begin),
                             describe_chunk(map, part.rank, part.begin, part.end, part.row)});
}

/// Counts the ranks among parts repeatedly, without clearing its array each time.
class RankCounter {
 public:
  explicit RankCounter(int32_t num_ranks) : seen_in_(static_cast<size_t>(num_ranks), 0) {}

  int64_t count(std::span<const PackedPart> parts) {
    ++now_;
    int64_t ranks = 0;
    for (const PackedPart& part : parts) {
      int32_t& seen = seen_in_[static_cast<size_t>(part.rank)];
      if (seen != now_) ++ranks;
      seen = now_;
    }
    return ranks;
  }

 private:
  std::vector<int32_t> seen_in_;  // [rank] number of the last count that included it
  int32_t now_ = 0;
};

/// A band of chunks that are too narrow: it has the colour of the chunk in its middle.
void add_owner_band(LayoutScene& scene, RankCounter& counter, const Fold& fold, float y0,
                    float y1) {
  const PlaceMap& map = scene.map;
  const std::span<const PackedPart> parts = std::span(map.packed).subspan(fold.first, fold.count);
  const int64_t begin = parts.front().begin, end = parts.back().end;
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  if (box.x0 >= box.x1) return;
  const int64_t ranks = counter.count(parts);
  scene.drawing().add(FilledBox{box, scene.rank_color(parts[parts.size() / 2].rank)});
  const int64_t padding = map.count_padding(begin, end);
  if (padding > 0) {
    const auto share = static_cast<float>(padding) / static_cast<float>(end - begin);
    const float height = keep_between(share * box.height(), 2.0F, box.height());
    add_padding(scene, {box.x0, box.y1 - height, box.x1, box.y1});
  }
  add_light(scene.drawing(), scene.theme(), box, light_of(scene, begin, end - begin, 1));
  scene.view.hits.push_back(
      {box, TokenRange{map.side, begin, end}, fmt::format("band/{}/{}", scene.side_name(), begin),
       fmt::format("{} chunks of {} rank{}: tokens {}\n{} padding", fold.count, ranks,
                   ranks == 1 ? "" : "s", print_range(begin, end), print_count(padding))});
}

/// Adds one tooth per rank in turn, not to scale: the symbol of a comb that is too fine to draw.
void add_comb_symbol(LayoutScene& scene, int64_t begin, int64_t end, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  if (box.x0 >= box.x1) return;
  const float tooth = std::max(kSymbolTooth, box.width() / kMostTeeth);
  const auto teeth = std::max<int64_t>(1, static_cast<int64_t>(box.width() / tooth));
  for (int64_t i = 0; i < teeth; ++i) {
    const float x0 = box.x0 + tooth * static_cast<float>(i);
    // With more ranks than teeth the colour ramp is repeated.
    const int64_t cycle = std::min<int64_t>(map.num_ranks, 16);
    const auto rank =
        static_cast<int32_t>(cycle > 1 ? i % cycle * (map.num_ranks - 1) / (cycle - 1) : 0);
    scene.drawing().add(
        FilledBox{{x0, y0, std::min(x0 + tooth - 1, box.x1), y1}, scene.rank_color(rank)});
  }
  add_padding_between(scene, begin, end, y0 + box.height() * 0.6F, y1);
}

void name_comb(LayoutScene& scene, int64_t begin, int64_t end, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const Box box =
      cut_box(scene.packed, static_cast<double>(begin), static_cast<double>(end), y0, y1);
  if (box.x0 >= box.x1) return;
  const int64_t stripe = std::max<int64_t>(1, map.stripe);
  const std::string every = fmt::format("stripes of {}, stride {}", count_text(stripe, "token"),
                                        print_count(stripe * map.num_ranks));
  add_plate(scene, box, every + " (not to scale)");
  add_light(scene.drawing(), scene.theme(), box, light_of(scene, begin, end - begin, 1));
  scene.view.hits.push_back(
      {box, TokenRange{map.side, begin, end}, fmt::format("comb/{}/{}", scene.side_name(), begin),
       fmt::format("tokens {}: {}\nrank = (token / {}) mod {}\nzoom in to see single stripes",
                   print_range(begin, end), every, print_count(stripe), map.num_ranks)});
}

void add_packed_owners(LayoutScene& scene, float y0, float y1) {
  const PlaceMap& map = scene.map;
  const double least = kLeastPixels * scene.packed.units_per_pixel();
  const auto begin = [&](size_t i) { return map.packed[i].begin; };
  const auto end = [&](size_t i) { return map.packed[i].end; };
  const std::vector<Fold> folds =
      fold_narrow(map.packed.size(), scene.packed.lo(), scene.packed.hi(), least, begin, end);
  RankCounter counter(map.num_ranks);
  for (size_t i = 0; i < folds.size();) {
    const PackedPart& part = map.packed[folds[i].first];
    size_t next = i + 1;
    if (map.heads.size() > 0) {
      const size_t last = folds[i].first + folds[i].count - 1;
      add_owners_of_heads(scene, part.begin, map.packed[last].end, y0, y1);
    } else if (folds[i].count > 1) {
      // Neighbouring bands share one name; those of a striped layout are a comb.
      while (next < folds.size() && folds[next].count > 1) ++next;
      const size_t last = folds[next - 1].first + folds[next - 1].count - 1;
      if (map.stripe > 0) {
        add_comb_symbol(scene, part.begin, map.packed[last].end, y0, y1);
        name_comb(scene, part.begin, map.packed[last].end, y0, y1);
      } else {
        for (size_t band = i; band < next; ++band)
          add_owner_band(scene, counter, folds[band], y0, y1);
        const auto parts = std::span(map.packed).subspan(folds[i].first, last - folds[i].first + 1);
        const Box box = cut_box(scene.packed, static_cast<double>(part.begin),
                                static_cast<double>(parts.back().end), y0, y1);
        add_plate(
            scene, box,
            fmt::format("{} chunks of {} ranks", print_count(static_cast<int64_t>(parts.size())),
                        print_count(counter.count(parts))));
      }
    } else if (!part.is_comb()) {
      add_owner(scene, part, y0, y1);
    } else if (least <= 1) {
      const auto lo = static_cast<int64_t>(std::floor(scene.packed.lo()));
      const auto hi = static_cast<int64_t>(std::ceil(scene.packed.hi()));
      for (const PackedPart& tooth : expand_comb(*scene.input.plan, map.side, part, lo, hi))
        add_owner(scene, tooth, y0, y1);
    } else {
      add_comb_symbol(scene, part.begin, part.end, y0, y1);
      name_comb(scene, part.begin, part.end, y0, y1);
    }
    i = next;
  }
}

}  // namespace

float add_packed_order(LayoutScene& scene, float y, float sequence_height, float owner_height) {
  const Theme& theme = scene.theme();
  constexpr float kRuler = 20;
  add_title(scene, y + kRuler / 2 - 1, "token", theme.of(Role::faint_text));
  add_ruler(scene.drawing(), scene.input, scene.packed,
            {scene.packed.begin(), y, scene.packed.end(), y + kRuler}, {});
  y += kRuler;
  const float sequences_end = y + sequence_height;
  add_title(scene, y + sequence_height / 2, "sequence", theme.of(Role::text), "seq");
  const std::vector<Fold> folds = fold_sequences(scene);
  for (const Fold& fold : folds) {
    if (fold.count > 1)
      add_sequence_band(scene, fold, y, sequences_end);
    else
      add_sequence(scene, fold.first, y, sequences_end);
  }
  add_band_names(scene, folds, y, sequences_end);
  add_tail(scene, y, sequences_end);
  y = sequences_end + 2;
  add_title(scene, y + owner_height / 2, "owner", theme.of(Role::text));
  add_packed_owners(scene, y, y + owner_height);
  return y + owner_height;
}

}  // namespace cpscope::gui
