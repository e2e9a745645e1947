// How errors are raised: what the user can mend is a UserError, a broken promise of ours an InternalError.
#pragma once

#include <locale>
#include <sstream>

#include "flexsn/flexsn.h"

namespace flexsn {

/// A number with as many digits as tell it from every other.
std::string digits_of(double number);

/// The arguments printed one after another.
template <class... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);   // a stream that gets no memory would cut the text off without a word
  out.imbue(std::locale::classic());  // texts are the same whatever locale the program is in
  const auto print = [&](const auto& part) {
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(part)>>)
      out << digits_of(part);
    else
      out << part;
  };
  (print(parts), ...);
  return out.str();
}

/// `text` without its middle where it is too long to read: a name in it may be of any size.
std::string shortened(std::string text);

template <class... Parts>
[[noreturn]] void user_error(const Parts&... parts) {
  throw UserError(shortened(join(parts...)));
}

[[noreturn]] void internal_error(const std::string& text, std::source_location where);

/// `condition` is a promise of flexsn itself.
inline void internal_check(bool condition, const char* text,
                           std::source_location where = std::source_location::current()) {
  if (!condition) internal_error(text, where);
}

/// The name among `names` that `wrong` was most likely meant to be; "" when none is near.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names);

/// " (did you mean 'x'?)" or nothing.
std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& names);

/// The same; where none is near and there are few, all of them: " (there are 'a', 'b')".
std::string which_there_are(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace flexsn
