// Tables, and files that are read and written whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "cli.h"

namespace cli {

namespace {

constexpr std::size_t line_width = 100;
constexpr std::size_t narrowest_column = 30;
constexpr std::size_t longest_text = std::size_t{64} << 20;

/// Columns on the screen: bytes of UTF-8 less those that continue a character.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::vector<std::string> wrapped(const std::string& text, std::size_t limit) {
  std::vector<std::string> lines = {""};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && width(lines.back()) + 1 + width(word) > limit) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void cannot_write(const std::string& path, const std::string& reason) {
  throw Failure("the file '" + path + "' cannot be written: " + reason + "; give another path");
}

/// Writes to an open file and closes it; false with errno set when that fails.
bool write_and_close(std::FILE* file, const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int reason = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written) errno = reason;
  return written && closed;
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::size_t left = indent.size();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) left += widths[i] + 2;
  const std::size_t limit = std::max(narrowest_column, line_width - std::min(left, line_width));
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent);
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      line += row[i] + std::string(widths[i] + 2 - width(row[i]), ' ');
    for (const std::string& part : wrapped(row.back(), limit)) {
      line += part;
      text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
      line.assign(left, ' ');
    }
  }
  return text;
}

std::string list_of(const std::vector<std::string>& names, std::string_view conjunction) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " " + std::string(conjunction) + " ";
    text += names[i];
  }
  return text;
}

std::string read_text(const std::string& path) {
  const bool standard = path == "-";
  const std::string called = standard ? "standard input" : "the file '" + path + "'";
  const File opened(standard ? nullptr : std::fopen(path.c_str(), "rb"));
  if (!standard && !opened)
    throw Failure(called + " cannot be read: " + std::strerror(errno) +
                  "; give the path of an .fsn file, or a built-in neuron (`flexsn list neurons`)");
  std::FILE* file = standard ? stdin : opened.get();
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file)) {
    text.append(buffer.data(), count);
    if (text.size() > longest_text)
      throw Failure(called + " holds more than 64 MiB, which no text of a neuron does; give an .fsn file");
  }
  if (std::ferror(file))
    throw Failure(called + " cannot be read: " + std::strerror(errno) + "; give the path of an .fsn file");
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);  // through a link, which stays one
  if (error) target = path;
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) cannot_write(path, "it is a directory");
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // a device or a pipe cannot be replaced
    std::FILE* file = std::fopen(target.c_str(), "wb");
    if (!file || !write_and_close(file, text)) cannot_write(path, std::strerror(errno));
    return;
  }
  // A file that may not be written may still be replaced; that would not be what its owner meant.
  if (fs::exists(status) && access(target.c_str(), W_OK) != 0) cannot_write(path, std::strerror(errno));
  std::string temporary = target.string() + ".XXXXXX";
  const int handle = mkstemp(temporary.data());
  if (handle < 0) cannot_write(path, std::strerror(errno));
  const mode_t mask = umask(0);
  umask(mask);
  const auto mode = fs::exists(status) ? static_cast<mode_t>(status.permissions()) & 0777 : 0666 & ~mask;
  std::FILE* file = fchmod(handle, mode) == 0 ? fdopen(handle, "wb") : nullptr;
  if (!file || !write_and_close(file, text) || std::rename(temporary.c_str(), target.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    if (!file) close(handle);
    unlink(temporary.c_str());
    cannot_write(path, reason);
  }
}

}  // namespace cli
