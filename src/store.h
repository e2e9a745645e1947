// Compiled kernels on disk: byte strings by kind and key, shared by all processes of one user.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace flexsn {

/// What a store holds and whether it is in use.
struct StoreInfo {
  struct Kind {
    std::uint64_t entries = 0, bytes = 0;
  };
  std::string directory;  ///< "" when there is none
  bool usable = false;    ///< entries are loaded, or would be if there were any
  std::string problem;    ///< why nothing is loaded, or nothing saved; "" when all is well
  std::uint64_t entries = 0, bytes = 0;
  std::map<std::string, Kind> kinds;
};

/// One directory with one file for each entry. What goes wrong with it costs the caching, never the run:
/// only memory errors are thrown, and the first problem of a process is one warning on standard error.
/// An object holds no lock and no descriptor, so any thread or forked process may use it at any time.
class Store {
 public:
  /// The largest entry, key included.
  static constexpr std::uint64_t max_bytes = std::uint64_t{16} << 20;

  /// An absolute path; "" is a store that is switched off.
  /// The directory is made by the first save. It is used only if it is a real directory (no symbolic link) of
  /// the effective user without access for others; such access is withdrawn where nothing but entries is in
  /// it.
  explicit Store(std::string directory);

  /// $FLEXSN_CACHE_DIR, else $XDG_CACHE_HOME/flexsn, else $HOME/.cache/flexsn; off when $FLEXSN_CACHE is 0.
  /// An empty variable counts as unset, as does a relative XDG_CACHE_HOME or HOME (the XDG rule); a relative
  /// FLEXSN_CACHE_DIR is a problem that is reported, since it would mean another place in each directory.
  static Store from_environment();
  /// That of the environment at the first call, for the whole process.
  static const Store& standard();

  /// What was saved under `kind` ("cpu", "cubin": a suffix of lower-case letters, digits and _) and `key`.
  /// Nothing when there is no such entry, or one that is not intact. Waits for nobody.
  std::optional<std::string> load(std::string_view kind, std::string_view key) const;
  /// Puts an entry in place as a whole, over an old one; false when that was not possible.
  bool save(std::string_view kind, std::string_view key, std::string_view content) const;
  StoreInfo info() const;
  /// Removes all entries and temporary files, nothing else, and returns how many files that were.
  /// A save in another process at that moment may come to nothing.
  std::uint64_t clear() const;

 private:
  enum class Notice : std::uint8_t { warn, silent };
  Store(std::string directory, std::string why_off, Notice notice);
  void report(const std::string& problem) const;

  std::string directory_;
  std::string why_off_;  ///< "" when the directory is to be used
  Notice notice_ = Notice::warn;
};

/// SHA-256 of `bytes` (FIPS 180-4) as 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace flexsn
