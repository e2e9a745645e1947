// The text form of a graph, `.fsn`: printer and parser. docs/fsn.md describes the language.
#pragma once

#include "ir.h"

namespace flexsn {

struct PrintStyle {
  bool names = true;       ///< false: the canonical form, which is a neuron's identity
  bool locations = false;  ///< every op's line in the user's code
  bool lines = true;       ///< false: all on one line, as torch's compilers copy it into a comment of theirs
};

std::string print(const ir::Graph& graph, PrintStyle style = {});

/// No names, no locations, live nodes only, in an order of structure alone: equal texts mean that the same is
/// computed.
std::string canonical(const ir::Graph& graph);

/// The graph of a text; `file` names it in errors. What is not a legal graph is for verify to say.
ir::Graph parse(std::string_view text, std::string_view file);

}  // namespace flexsn
