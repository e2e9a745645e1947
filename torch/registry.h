// Handles: a number for each neuron that somebody holds, with counts of its owners and of calls that use it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace flexsn {

/// Who holds a reference to an entry of the registry.
enum class Holder { owner, active };

/// Neurons by number. Numbers start at 1 and are never used again; any thread may call anything.
class Registry {
 public:
  struct Info {
    std::int64_t entries = 0, owners = 0, active = 0;
  };

  /// The number of a new entry with one owner. An empty text: the kernels are not ours, and somebody else
  /// keeps them. `close` is called once, when the last reference is gone.
  std::int64_t add(std::string text, std::function<void()> close = {});
  /// Throws a UserError where there is no such entry, as retaining one does.
  std::string text(std::int64_t number) const;
  void retain(std::int64_t number, Holder holder);
  /// Whether the entry went with this reference. A count stays at 0; a number that is not known is left
  /// alone.
  bool release(std::int64_t number, Holder holder);
  Info info() const;

 private:
  struct Entry {
    std::string text;
    std::function<void()> close;
    std::int64_t owners = 1, active = 0;

    std::int64_t& count(Holder holder) { return holder == Holder::owner ? owners : active; }
  };
  [[noreturn]] static void unknown(std::int64_t number);

  mutable std::mutex mutex_;
  std::map<std::int64_t, Entry> entries_;
  std::int64_t last_ = 0;
};

/// The registry of this process.
Registry& registry();

/// A reference that is given back when it goes. A copy is a reference of its own.
class Handle {
 public:
  /// A new entry, of which this is the owner.
  explicit Handle(std::string text, std::function<void()> close = {});
  /// One more reference to an entry that is there.
  Handle(std::int64_t number, Holder holder);
  Handle(const Handle& other);
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle other) noexcept;
  ~Handle();

  std::int64_t number() const { return number_; }
  std::string text() const { return registry().text(number_); }

 private:
  std::int64_t number_ = 0;  ///< 0: moved from
  Holder holder_ = Holder::owner;
};

}  // namespace flexsn
