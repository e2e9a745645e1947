// A CUDA driver and NVRTC without a GPU: they check how they are used and note what they are asked for, fail
// on demand, and can run kernels on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace flexsn::fake {

/// One launch.
struct Launch {
  std::string function;
  int device = 0;
  unsigned blocks = 0, threads = 0;
  void* stream = nullptr;
  std::vector<std::uint64_t> record;  ///< of an entry of a plan
};

struct Device {
  int major = 9, minor = 0, multiprocessors = 4, cache_bytes = 1 << 20;
  int clock = 1000000, memory_clock = 1000000, memory_bits = 512;  ///< kilohertz
};

/// What a test sets and what it finds.
struct Notes {
  std::string failing;                      ///< the function that fails,
  int fails_at = 1;                         ///< once, at this call from now on,
  int error = 2;                            ///< with this error,
  std::optional<std::thread::id> fails_in;  ///< in this thread alone, where there is one

  int driver_version = 13000, nvrtc_major = 13, nvrtc_minor = 0;
  std::vector<Device> devices = {{}, {}};
  std::vector<int> architectures = {75, 80, 86, 89, 90, 100};
  bool capturing = false;         ///< only what is legal in a capture is allowed
  bool outer_blocks = false;      ///< of a launch only the first and the last block run
  std::size_t record_fields = 0;  ///< how much of an entry's record a launch notes
  /// Of a kernel that says how many of its blocks a multiprocessor holds at least, by that number, of one
  /// that loads rows early, and of any other.
  std::map<int, int> held_local_bytes;
  int early_local_bytes = 0, local_bytes = 8;

  std::map<std::string, int> calls;
  std::vector<Launch> launches;
  std::vector<std::string> compiled;  ///< the options of each compilation, with blanks between
  std::string misuse;                 ///< the first thing that was done wrong
};

/// It is locked while a function of the library runs.
struct Fake : Notes {
  std::recursive_mutex mutex;
  int modules = 0, programs = 0;  ///< that are there
  struct Room {
    std::size_t bytes = 0;
    int device = 0;
    bool managed = false;
  };
  std::map<std::uint64_t, Room> memory;  ///< by address

  int entered(const char* function);
  void wrong(const std::string& what) {
    if (misuse.empty()) misuse = what;
  }
};

/// That of the library; a test finds it by this name.
extern "C" Fake* flexsn_fake();

}  // namespace flexsn::fake
