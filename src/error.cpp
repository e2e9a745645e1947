#include "error.h"

#include <algorithm>

namespace flexsn {

void internal_error(const std::string& text, std::source_location where) {
  throw InternalError(join("flexsn internal error: ", text, " (", where.file_name(), ":", where.line(),
                           "); please report it with the neuron that caused it"));
}

namespace {

/// Letters to insert, delete, replace or swap with their neighbour to make one word of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names) {
  // A long word is a mistake of another kind, and the distance costs its length squared.
  if (wrong.size() > 40) return "";
  std::string best;
  std::size_t best_distance = wrong.size() <= 3 ? 2 : 3;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wrong, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& names) {
  const std::string best = nearest_name(wrong, names);
  return best.empty() ? "" : join(" (did you mean '", best, "'?)");
}

}  // namespace flexsn
