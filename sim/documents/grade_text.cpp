#include "sim/documents/grade_text.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A NaN of either sign is one.
double without_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string verdict_of(const TensorGrade& tensor) {
  if (tensor.has_failed()) return "   <-- " + describe_failure(tensor);
  return tensor.is_widened ? "   (budget widened by --budget)" : "";
}

}  // namespace

void write_grade_table(const Grade& grade, std::ostream& out) {
  out << fmt::format("{:<10} {:>11} {:>11} {:>11} {:>11} {:>5}  worst place\n", "tensor", "rel_l2",
                     "budget", "worst row", "max_abs", "nan");
  for (const TensorGrade& tensor : grade.tensors) {
    if (!tensor.judged) {
      out << fmt::format("{:<10} not judged: {}{}\n", tensor.name, tensor.why_not,
                         verdict_of(tensor));
      continue;
    }
    out << fmt::format(
        "{:<10} {:>11.3e} {:>11.3e} {:>11.3e} {:>11.3e} {:>5}  rank {} token {} head {}: expected "
        "{:.9g}, seen {:.9g}{}\n",
        tensor.name, without_sign(tensor.rel_l2), tensor.budget,
        without_sign(tensor.worst_row_rel_l2), without_sign(tensor.max_abs), tensor.nan,
        tensor.worst.rank, tensor.worst.token, tensor.worst.head,
        without_sign(tensor.worst.expected), without_sign(tensor.worst.seen), verdict_of(tensor));
  }
  for (const TensorGrade& tensor : grade.tensors) {
    if (!tensor.parted) continue;
    const TensorGrade::Parted& parted = *tensor.parted;
    out << fmt::format("{:<10} {:>11.3e} by quantised inputs alone", tensor.name, parted.format);
    if (parted.knows_scales)
      out << fmt::format(", {:.3e} apart from exact attention of these{}",
                         without_sign(parted.implementation),
                         parted.is_judged ? ", which is what is judged" : "");
    out << '\n';
  }
  for (const TensorGrade& tensor : grade.tensors)
    if (tensor.passed && tensor.allows_zeros)
      out << fmt::format("note: {}: zeros would be within the budget too\n", tensor.name);
  for (const Cause& cause : grade.causes) out << "cause: " << describe(cause) << '\n';
  for (const std::string& common : grade.common) out << "note: " << common << '\n';
}

}  // namespace cpscope
