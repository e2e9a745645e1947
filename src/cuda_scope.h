// What the text of a plan is made of before it is written: its bodies, the buffers it touches, all names.
#pragma once

#include "cuda_body.h"
#include "emit_cuda.h"

namespace flexsn {

/// The place of an index in a vector.
inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

class CudaScope {
 public:
  CudaScope(const Plan& plan, const std::vector<bool>& present, const CudaOptions& options);

  const Plan& plan;
  const std::vector<bool>& present;
  const CudaOptions options;
  const int piece;           ///< its steps that are loaded at once
  const int segment;         ///< its steps: one piece, or several where they are rebuilt
  const std::string neuron;  ///< its name, as an identifier
  CudaBody step;
  std::optional<CudaBody> rebuild;

  // Names; those of buffers are empty where the text does not touch them.
  std::vector<std::string> fields;     ///< of buffers, in the record
  std::vector<std::string> carries;    ///< what goes from step to step
  std::vector<std::string> rebuilt;    ///< states of a segment's steps
  std::vector<std::string> kept;       ///< what the steps keep of them
  std::vector<std::string> kept_rows;  ///< of buffers: a row that is kept too, in pieces
  std::vector<std::string> pointers;   ///< of buffers with a row for each step: where the row of one is
  std::vector<std::string> rows;       ///< of buffers that a step writes: the row
  std::vector<std::string> unrounded;  ///< and a result that memory does not hold as it is
  std::vector<std::string> sums;       ///< of sums over time; empty where nobody wants one
  std::vector<std::string> parts;      ///< what a step adds to a sum

  bool has(int buffer) const { return buffer != no_buffer && present[at(buffer)]; }
  /// Of an element and a step, rebuilding included.
  int ops() const { return step.ops + (rebuild ? rebuild->ops : 0); }
  int work() const { return step.work + (rebuild ? rebuild->work : 0); }
  bool has_carries() const { return !carries.empty(); }
  bool has_sums() const;
  const Buffer& buffer(int index) const { return plan.buffers[at(index)]; }
  const std::string& name(int index) const { return fields[at(index)]; }

  /// Buffers that the text touches.
  std::vector<int> touched() const;
  /// Those of them with a row for each step that is read.
  std::vector<int> rows_read() const;
  /// And those with one that is written.
  std::vector<int> rows_written() const;
  /// Those that are read and that a body reads.
  std::vector<int> rows_read_by(const CudaBody& cuda, const Body& body) const;
  bool in_pieces() const { return piece < segment; }
  /// The bodies, that of a step first.
  std::vector<std::pair<const CudaBody*, const Body*>> bodies() const;

  /// The type of a thread's entries of a row, and the only row of a buffer as such.
  std::string row_type(Mem mem) const;
  std::string only_row(int index) const;

  /// What stands before loops over the steps of a segment. Constant indices keep what is indexed in
  /// registers; where that would be too much code, it is a loop.
  std::string_view unrolling() const;

 private:
  CudaBody body_of(const Body& body, std::string_view suffix, std::string_view comment) const;
  std::vector<bool> find_touched() const;
  void name_values();
};

}  // namespace flexsn
