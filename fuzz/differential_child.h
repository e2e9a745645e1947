// Work in a process of its own, so that a crash of it is a result like any other.
#pragma once

#include <functional>
#include <string>

namespace flexsn::fuzz {

/// What `work` returned; nothing where it ended the process, whose signal is then `signal`.
struct ChildAnswer {
  std::string text;
  int signal = 0;
};
ChildAnswer in_child(const std::function<std::string()>& work);

}  // namespace flexsn::fuzz
