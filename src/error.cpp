#include "error.h"

#include <algorithm>
#include <charconv>

namespace flexsn {

void internal_error(const std::string& text, std::source_location where) {
  throw InternalError(join("flexsn internal error: ", text, " (", where.file_name(), ":", where.line(),
                           "); please report it with the neuron that caused it"));
}

std::string digits_of(double number) {
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr);
}

std::string shortened(std::string text) {
  constexpr std::size_t kept = 500;
  if (text.size() <= 2 * kept) return text;
  const auto is_inside = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  std::size_t first = kept, last = text.size() - kept;
  while (first > 0 && is_inside(first)) --first;  // no character is cut in two
  while (last < text.size() && is_inside(last)) ++last;
  return text.replace(first, last - first, " ... ");
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
    if (name.size() > wrong.size() + best_distance) continue;
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

std::string which_there_are(std::string_view wrong, const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  const std::string near = did_you_mean(wrong, names);
  if (!near.empty() || names.empty() || names.size() > most) return near;
  std::string list;
  for (const std::string& name : names) list += join(list.empty() ? "'" : "', '", name);
  return join(names.size() == 1 ? " (there is " : " (there are ", list, "')");
}

}  // namespace flexsn
