#include "kept_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "error.h"

namespace flexsn {

namespace {

/// Rounded up to whole pages.
std::size_t rounded(std::size_t bytes) {
  return (bytes + KeptMemory::page - 1) / KeptMemory::page * KeptMemory::page;
}

std::optional<Block> mapped(std::size_t bytes) {
  // One page more, of which what lies outside the aligned block is given back at once.
  const std::size_t room = bytes + KeptMemory::page;
  if (room < bytes) return {};
  void* found = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return {};
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(found) % KeptMemory::page;
  const std::size_t before = offset == 0 ? 0 : KeptMemory::page - offset;
  std::byte* start = static_cast<std::byte*>(found) + before;
  if (before > 0) ::munmap(found, before);
  ::munmap(start + bytes, KeptMemory::page - before);
  ::madvise(start, bytes, MADV_HUGEPAGE);  // a hint: where the system has no large pages, nothing changes
  return Block{start, bytes};
}

}  // namespace

std::optional<Block> KeptMemory::take(std::size_t bytes) {
  if (bytes > std::size_t{1} << 62) return {};
  bytes = rounded(bytes);
  if (std::optional<Block> block = take_kept(bytes)) return block;
  if (std::optional<Block> block = mapped(bytes)) return block;
  drop_all();
  return mapped(bytes);
}

std::optional<Block> KeptMemory::take_kept(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  // The smallest that does, and that is not much too large; of equals the last that was used.
  auto best = blocks_.end();
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block)
    if (block->second.bytes >= bytes && block->second.bytes - bytes <= bytes / 8 &&
        (best == blocks_.end() || block->second.bytes <= best->second.bytes))
      best = block;
  if (best == blocks_.end()) return {};
  const Block block = best->second;
  blocks_.erase(best);
  kept_ -= block.bytes;
  return block;
}

void KeptMemory::give_back(const Block& block) {
  if (block.bytes > most_) {
    ::munmap(block.start, block.bytes);
    return;
  }
  ::madvise(block.start, block.bytes, MADV_FREE);  // the system may take the pages, and then clears them
  const std::lock_guard lock(mutex_);
  blocks_.emplace(turn_++, block);
  kept_ += block.bytes;
  while (kept_ > most_) {
    const Block first = blocks_.begin()->second;
    blocks_.erase(blocks_.begin());
    kept_ -= first.bytes;
    ::munmap(first.start, first.bytes);
  }
}

std::size_t KeptMemory::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

void KeptMemory::drop_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [turn, block] : blocks_) ::munmap(block.start, block.bytes);
  blocks_.clear();
  kept_ = 0;
}

std::size_t kept_memory_limit(const char* asked, std::size_t machine) {
  constexpr std::size_t mebi = std::size_t{1} << 20;
  if (asked == nullptr || *asked == 0) return std::min(machine / 16, 1024 * mebi);
  const std::string_view text(asked);
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > std::size_t{1} << 40)
    user_error("FLEXSN_KEPT_MEMORY must be a whole number of MiB, found '", text, "'");
  return number * mebi;
}

}  // namespace flexsn
