// The kernel store: every call opens the directory anew, checks it, and works relative to its descriptor.
//
// An entry is the file <SHA-256 of format, kind and key>.<kind> that holds
//
//   flexsn store 1\n  <SHA-256 of what follows>\n  <kind>\n  <bytes of the key>\n  <key>\n  <content>
//
// (without the blanks). All but the content is known to who loads it, so nothing is ever parsed: a file that
// differs in its format, kind, key or checksum is no entry. It is written as flexsn-<process>-<time>.tmp
// first.
#include "store.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "error.h"

namespace flexsn {
namespace {

constexpr std::string_view format_line = "flexsn store 1\n";
constexpr std::size_t digest_digits = 64;
constexpr std::size_t header_bytes = format_line.size() + digest_digits + 1;

// ---- the system ----------------------------------------------------------------------------------

std::string error_text(int error) { return std::generic_category().message(error); }

/// An open file; closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  /// False with errno when what was written did not arrive (network file systems say so only here).
  bool close() { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0 || errno == EINTR; }

 private:
  int number_;
};

/// Keeps a write beyond the process's file size limit from ending the process: it fails with EFBIG alone.
class FileSizeSignalHeld {
 public:
  FileSizeSignalHeld() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    was_pending_ = pending();
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalHeld() {
    int taken = 0;
    if (!was_pending_ && pending()) sigwait(&signal_, &taken);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalHeld(const FileSizeSignalHeld&) = delete;
  FileSizeSignalHeld& operator=(const FileSizeSignalHeld&) = delete;

 private:
  static bool pending() {
    sigset_t now;
    sigemptyset(&now);
    sigpending(&now);
    return sigismember(&now, SIGXFSZ) == 1;
  }

  sigset_t signal_, before_;
  bool was_pending_ = false;
};

/// 0, or the error that kept the file from taking all bytes.
int write_all(const Descriptor& file, std::string_view bytes) {
  const FileSizeSignalHeld held;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.number(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written == 0) return ENOSPC;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// The content of a plain file that only its owner, the effective user, can have written; "" for any other.
std::string read_own_file(const Descriptor& directory, const std::string& name) {
  // Opening a pipe must not wait for its other end.
  const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const Descriptor file(openat(directory.number(), name.c_str(), flags));
  struct stat status;
  if (!file || fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "";
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > Store::max_bytes + header_bytes) return "";
  std::string bytes(size, '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.number(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return "";
    filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

// ---- names -----------------------------------------------------------------------------------------

// Numbers in names and files are written by std::to_string: streams follow the program's locale.

bool is_kind(std::string_view name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
}

/// The kind of the entry with this file name; "" when no entry is called so.
std::string kind_of(const std::string& name) {
  if (name.find_first_not_of("0123456789abcdef") != digest_digits || name[digest_digits] != '.') return "";
  const std::string kind = name.substr(digest_digits + 1);
  return is_kind(kind) ? kind : "";
}

std::string temporary_name() {
  const auto time = std::chrono::system_clock::now().time_since_epoch().count();
  return "flexsn-" + std::to_string(getpid()) + "-" + std::to_string(time) + ".tmp";
}

bool is_temporary(std::string_view name) {
  const auto skip = [&](std::string_view word) {
    if (!name.starts_with(word)) return false;
    name.remove_prefix(word.size());
    return true;
  };
  const auto skip_digits = [&] {
    const std::size_t count = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(count);
    return count > 0;
  };
  return skip("flexsn-") && skip_digits() && skip("-") && skip_digits() && name == ".tmp";
}

/// What an entry's file holds between its checksum and its content.
std::string description(std::string_view kind, std::string_view key) {
  internal_check(is_kind(kind), "the kind of a stored entry is a suffix of lower-case letters, digits and _");
  return std::string(kind) + "\n" + std::to_string(key.size()) + "\n" + std::string(key) + "\n";
}

/// What stands before `body` in an entry's file.
std::string header_of(std::string_view body) { return std::string(format_line) + sha256(body) + "\n"; }

std::string file_name(std::string_view kind, const std::string& described) {
  return sha256(std::string(format_line) + described) + "." + std::string(kind);
}

// ---- the directory -----------------------------------------------------------------------------------

std::vector<std::string> names_in(const Descriptor& directory) {
  std::vector<std::string> names;
  const int copy = openat(directory.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = copy < 0 ? nullptr : fdopendir(copy);
  if (stream == nullptr) {
    if (copy >= 0) ::close(copy);
    return names;
  }
  while (const dirent* file = readdir(stream)) names.emplace_back(file->d_name);
  closedir(stream);
  return names;
}

/// Whether the directory is surely the store's own: a home or a shared one must not lose its access rights.
bool holds_only_entries(const Descriptor& directory) {
  const std::vector<std::string> names = names_in(directory);
  const auto own = [](const std::string& name) {
    // The Python package keeps the code of Triton kernels in a directory beside them.
    return name == "." || name == ".." || name == "triton" || is_temporary(name) || !kind_of(name).empty();
  };
  return !names.empty() && std::all_of(names.begin(), names.end(), own);
}

/// The directory if it is there and safe to use; else nothing, and `problem` unless it is merely absent.
/// With a problem that is known already it is not even tried.
Descriptor open_directory(const std::string& path, std::string& problem) {
  if (!problem.empty()) return Descriptor();
  Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!directory || fstat(directory.number(), &status) != 0) {
    if (errno == ENOTDIR || errno == ELOOP)
      problem = join(path, " is not a directory (a symbolic link is not followed)");
    else if (errno != ENOENT)
      problem = join(path, " cannot be opened: ", error_text(errno));
    return Descriptor();
  }
  if (status.st_uid != geteuid()) {
    problem = join(path, " belongs to user ", status.st_uid, " and not to user ", geteuid());
    return Descriptor();
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return directory;
  if ((status.st_mode & S_ISVTX) != 0 || !holds_only_entries(directory))
    problem = join(path, " is open to other users and not a directory of kernels alone");
  else if (fchmod(directory.number(), S_IRWXU) != 0)
    problem = join(path, " is open to other users and that cannot be changed: ", error_text(errno));
  // A file system without access rights accepts the change and does not make it.
  else if (fstat(directory.number(), &status) != 0 || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    problem = join(path, " stays open to other users: its file system keeps no access rights");
  return problem.empty() ? std::move(directory) : Descriptor();
}

/// Puts a file in place as a whole, or leaves everything as it was; 0 or the error.
int put_file(const Descriptor& directory, const std::string& name, const std::string& header,
             const std::string& body) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  std::string temporary;
  Descriptor file;
  int error = EEXIST;
  for (int attempt = 0; error == EEXIST && attempt < 100; ++attempt) {
    temporary = temporary_name();
    file = Descriptor(openat(directory.number(), temporary.c_str(), flags, 0600));
    error = file ? 0 : errno;
  }
  if (!file) return error;
  fchmod(file.number(), 0600);  // the umask may have taken bits of the owner
  error = write_all(file, header);
  if (error == 0) error = write_all(file, body);
  if (!file.close() && error == 0) error = errno;
  if (error == 0 && renameat(directory.number(), temporary.c_str(), directory.number(), name.c_str()) != 0)
    error = errno;
  if (error != 0) unlinkat(directory.number(), temporary.c_str(), 0);
  return error;
}

std::string parent_of(const std::string& path) {
  return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
}

/// Makes a directory and what is missing above it; 0 or the error.
int make_directory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT || parent_of(path) == path) return errno;
  if (const int error = make_directory(parent_of(path), 0755); error != 0) return error;
  return mkdir(path.c_str(), mode) == 0 || errno == EEXIST ? 0 : errno;
}

/// Why a directory that is absent could not be made; "" when nothing speaks against it.
std::string why_not_makeable(std::string path) {
  do path = parent_of(path);
  while (faccessat(AT_FDCWD, path.c_str(), F_OK, AT_EACCESS) != 0 && errno == ENOENT && path != "/");
  if (faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return join("nothing can be made in ", path, ": ", error_text(errno));
}

/// The value of a variable; "" when it is unset.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

// ---- the store ---------------------------------------------------------------------------------------

Store::Store(std::string directory) : directory_(std::move(directory)) {
  if (directory_.empty()) {
    why_off_ = "it is switched off";
    notice_ = Notice::silent;
  } else if (directory_.front() != '/') {
    why_off_ = join("'", directory_, "' is not an absolute path");
  }
  // "link/" and "link/." would be the directory behind the link.
  while (directory_.size() > 1 && (directory_.ends_with('/') || directory_.ends_with("/.")))
    directory_.pop_back();
}

Store::Store(std::string directory, std::string why_off, Notice notice)
    : directory_(std::move(directory)), why_off_(std::move(why_off)), notice_(notice) {}

Store Store::from_environment() {
  const std::string wanted = variable("FLEXSN_CACHE");
  if (wanted == "0") return Store("", "FLEXSN_CACHE is 0", Notice::silent);
  if (!wanted.empty() && wanted != "1")
    return Store("", join("FLEXSN_CACHE must be 0 or 1, found '", wanted, "'"), Notice::warn);
  if (const std::string chosen = variable("FLEXSN_CACHE_DIR"); !chosen.empty()) return Store(chosen);
  if (const std::string caches = variable("XDG_CACHE_HOME"); caches.starts_with('/'))
    return Store(caches + "/flexsn");
  if (const std::string home = variable("HOME"); home.starts_with('/')) return Store(home + "/.cache/flexsn");
  return Store("", "none of FLEXSN_CACHE_DIR, XDG_CACHE_HOME and HOME is an absolute path", Notice::warn);
}

const Store& Store::standard() {
  // A static object would be made under a lock, which a process forked at that moment never sees released.
  static std::atomic<const Store*> shared = nullptr;
  const Store* present = shared.load();
  if (present != nullptr) return *present;
  const Store* fresh = new Store(from_environment());
  if (shared.compare_exchange_strong(present, fresh)) return *fresh;
  delete fresh;
  return *present;
}

void Store::report(const std::string& problem) const {
  static std::atomic<bool> reported = false;
  if (notice_ == Notice::silent || problem.empty() || reported.exchange(true)) return;
  const std::string line = join("flexsn: warning: compiled kernels are not kept on disk: ", problem,
                                "; set FLEXSN_CACHE_DIR to a directory of your own, or FLEXSN_CACHE to 0\n");
  std::fputs(line.c_str(), stderr);
}

std::optional<std::string> Store::load(std::string_view kind, std::string_view key) const {
  const std::string described = description(kind, key);
  std::string problem = why_off_;
  const Descriptor directory = open_directory(directory_, problem);
  if (!directory) {
    report(problem);
    return {};
  }
  std::string bytes = read_own_file(directory, file_name(kind, described));
  if (bytes.size() < header_bytes) return {};
  const std::string_view body = std::string_view(bytes).substr(header_bytes);
  if (!body.starts_with(described) || !bytes.starts_with(header_of(body))) return {};
  return bytes.erase(0, header_bytes + described.size());
}

bool Store::save(std::string_view kind, std::string_view key, std::string_view content) const {
  const std::string described = description(kind, key);
  if (described.size() + content.size() > max_bytes) return false;
  const std::string body = described + std::string(content);

  std::string problem = why_off_;
  Descriptor directory = open_directory(directory_, problem);
  if (!directory && problem.empty()) {
    if (const int error = make_directory(directory_, S_IRWXU); error != 0)
      problem = join(directory_, " cannot be made: ", error_text(error));
    else
      directory = open_directory(directory_, problem);
  }
  if (!directory) {
    report(problem);
    return false;
  }

  const int error = put_file(directory, file_name(kind, described), header_of(body), body);
  // The directory or the temporary file is gone when somebody clears the store at this moment.
  if (error != 0 && error != ENOENT) report(join(directory_, " cannot be written: ", error_text(error)));
  return error == 0;
}

StoreInfo Store::info() const {
  StoreInfo info;
  info.directory = directory_;
  info.problem = why_off_;
  const Descriptor directory = open_directory(directory_, info.problem);
  if (!directory) {
    if (info.problem.empty()) info.problem = why_not_makeable(directory_);
    info.usable = info.problem.empty();
    return info;
  }
  info.usable = true;
  if (faccessat(directory.number(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    info.problem = join(directory_, " cannot be written: ", error_text(errno));
  for (const std::string& name : names_in(directory)) {
    const std::string kind = kind_of(name);
    struct stat status;
    if (kind.empty() || fstatat(directory.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (!S_ISREG(status.st_mode)) continue;
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    info.entries += 1, info.bytes += bytes;
    info.kinds[kind].entries += 1, info.kinds[kind].bytes += bytes;
  }
  return info;
}

std::uint64_t Store::clear() const {
  std::string problem = why_off_;
  const Descriptor directory = open_directory(directory_, problem);
  std::uint64_t removed = 0;
  if (!directory) return removed;
  for (const std::string& name : names_in(directory))
    if (is_temporary(name) || !kind_of(name).empty())
      removed += unlinkat(directory.number(), name.c_str(), 0) == 0;
  return removed;
}

// ---- SHA-256 -----------------------------------------------------------------------------------------

namespace {

constexpr std::array<std::uint32_t, 64> round_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Digest = std::array<std::uint32_t, 8>;

/// Takes one block of 64 bytes into the digest.
void take_block(Digest& digest, const char* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = 0;
    for (std::size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | static_cast<unsigned char>(block[4 * i + k]);
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = digest;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const Digest added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < digest.size(); ++i) digest[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  Digest digest = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (; bytes.size() >= 64; bytes.remove_prefix(64)) take_block(digest, bytes.data());
  // The end: a one bit, zeros, and the number of bits as the last eight bytes of a block.
  std::string end(bytes);
  end += '\x80';
  end.resize(end.size() <= 56 ? 56 : 120, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) end += static_cast<char>(bits >> shift & 0xff);
  for (std::size_t i = 0; i < end.size(); i += 64) take_block(digest, end.data() + i);
  std::string text;
  for (const std::uint32_t word : digest)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

}  // namespace flexsn
