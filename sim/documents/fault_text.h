#pragma once

#include "sim/documents/json_text.h"
#include "sim/faults/gallery.h"

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The faults of these names, in this order; without names all of the catalogue. Errors: bad_input
/// for an unknown name.
Result<std::vector<Fault>> choose_faults(const std::vector<std::string>& names);

/// The documents of `faults --list --json` and `faults --json`, and the text of `faults`.
Json catalogue_json();
Json gallery_json(const GalleryReport& report);
void write_gallery_text(const GalleryReport& report, std::ostream& out);

/// "blind" if the scenario that cannot reveal the fault stayed silent and nothing was changed, else
/// "missed" or "seen".
std::string_view verdict_on_blind(const BlindOutcome& blind);

}  // namespace cpscope
