// Memory of large tensors that are gone, kept for the next ones.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace flexsn {

/// Neighbouring large pages.
struct Block {
  void* start;
  std::size_t bytes;
};

/// The system clears every page that is new to a process, which takes as long as a kernel does; pages that
/// were used before need none of it. It may still take kept ones back whenever memory is short. Thread-safe.
class KeptMemory {
 public:
  static constexpr std::size_t page = std::size_t{1} << 21;

  /// Keeps `most` bytes at most; the blocks that were given back first go first.
  explicit KeptMemory(std::size_t most) : most_(most) {}
  KeptMemory(const KeptMemory&) = delete;
  ~KeptMemory() { drop_all(); }

  /// A block of at least so many bytes, with whatever is in it; none where the system has no more.
  std::optional<Block> take(std::size_t bytes);
  void give_back(const Block& block);
  std::size_t kept() const;

 private:
  std::optional<Block> take_kept(std::size_t bytes);
  void drop_all();

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::size_t kept_ = 0;
  unsigned long turn_ = 0;
  std::map<unsigned long, Block> blocks_;  ///< by the turn in which they were given back
};

/// As FLEXSN_KEPT_MEMORY says, in MiB; else a sixteenth of the machine's memory, 1024 MiB at most.
std::size_t kept_memory_limit(const char* asked, std::size_t machine);

}  // namespace flexsn
