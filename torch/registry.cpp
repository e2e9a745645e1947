#include "registry.h"

#include <utility>

#include "error.h"

namespace flexsn {

void Registry::unknown(std::int64_t number) {
  user_error("flexsn: there is no kernel handle ", number,
             "; it was never registered, or its last reference was released");
}

std::int64_t Registry::add(std::string text, std::function<void()> close) {
  const std::lock_guard lock(mutex_);
  entries_.emplace(++last_, Entry{.text = std::move(text), .close = std::move(close)});
  return last_;
}

std::string Registry::text(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) unknown(number);
  return found->second.text;
}

void Registry::retain(std::int64_t number, Holder holder) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) unknown(number);
  ++found->second.count(holder);
}

bool Registry::release(std::int64_t number, Holder holder) {
  std::function<void()> close;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return false;
    std::int64_t& count = found->second.count(holder);
    if (count > 0) --count;
    if (found->second.owners > 0 || found->second.active > 0) return false;
    close = std::move(found->second.close);
    entries_.erase(found);
  }
  // It may come back here, so the lock is not held.
  if (close) close();
  return true;
}

Registry::Info Registry::info() const {
  const std::lock_guard lock(mutex_);
  Info info;
  for (const auto& [number, entry] : entries_) {
    ++info.entries;
    info.owners += entry.owners;
    info.active += entry.active;
  }
  return info;
}

Registry& registry() {
  // Finalizers of a program that ends may still come to it.
  static auto* const all = new Registry;
  return *all;
}

Handle::Handle(std::string text, std::function<void()> close)
    : number_(registry().add(std::move(text), std::move(close))) {}

Handle::Handle(std::int64_t number, Holder holder) : number_(number), holder_(holder) {
  registry().retain(number, holder);
}

Handle::Handle(const Handle& other) : Handle(other.number_, other.holder_) {}

Handle::Handle(Handle&& other) noexcept : number_(std::exchange(other.number_, 0)), holder_(other.holder_) {}

Handle& Handle::operator=(Handle other) noexcept {
  std::swap(number_, other.number_);
  std::swap(holder_, other.holder_);
  return *this;
}

Handle::~Handle() {
  if (number_ != 0) registry().release(number_, holder_);
}

}  // namespace flexsn
