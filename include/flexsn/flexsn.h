// flexsn: write one time step of a spiking neuron as a plain function; run whole sequences of it.
//
// This header and neurons.h are the whole public C++ API. Read it top to bottom: errors and types, values and
// the functions on them, the step that a user's function fills in, neurons, and what can be done with one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flexsn {

// ---- errors ------------------------------------------------------------------------------------

/// The caller can mend it: the text says what was expected, what was found, where, and what to do.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A defect of flexsn itself; the text holds the place in our source.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// ---- types -------------------------------------------------------------------------------------

/// What a value inside a step is.
enum class Type : std::uint8_t { f32, f64, i32, b1 };

/// What an array in memory holds; f16, bf16 and u8 are widened when they enter a step.
enum class Mem : std::uint8_t { f16, bf16, f32, f64, i32, u8, b8 };

/// The type of a value loaded from memory of type `mem`.
Type value_type(Mem mem);
/// Bytes of one element in memory.
std::size_t size_of(Mem mem);
/// "f32", "bool", ...
std::string_view name_of(Type type);
std::string_view name_of(Mem mem);
/// The memory type called `name`; nothing when there is none.
std::optional<Mem> mem_named(std::string_view name);

/// A dense row-major array that owns its bytes.
struct Array {
  Mem type = Mem::f32;
  std::vector<std::int64_t> shape = {0};
  std::vector<std::byte> bytes;

  Array() = default;
  /// All elements are `value`, converted to `type`.
  Array(Mem element_type, std::vector<std::int64_t> dims, double value = 0);
  /// The elements are `values`, converted to `type`; their number must be that of `dims`.
  Array(Mem element_type, std::vector<std::int64_t> dims, const std::vector<double>& values);

  std::int64_t size() const;
  /// Element `index` in row-major order, read as a double (exact for every type).
  double operator[](std::int64_t index) const;
  /// Element `index` becomes `value`, converted to the array's type.
  void set(std::int64_t index, double value);
  /// All elements as doubles.
  std::vector<double> values() const;
};

// ---- values of a trace ---------------------------------------------------------------------------

namespace ir {
struct Graph;
/// One op is one row of ops.def; constants and arguments are the two kinds of node beside them.
enum class Op : std::uint8_t {
  constant,
  argument,
#define OP0(name, ...) name,
#define OP1(name, ...) name,
#define OP2(name, ...) name,
#define OP3(name, ...) name,
#define RAW1(name, ...) name,
#define RAW2(name, ...) name,
#include "flexsn/ops.def"
  count
};
}  // namespace ir

class Trace;

/// A value inside one time step. Ordinary operators and the functions below make new ones. A step is traced
/// once, for all data, so there is no `if` on a value: branch with select(condition, a, b).
class Value {
 public:
  // Moving copies, so that a moved value stays usable.
  Value(const Value&) = default;
  Value& operator=(const Value&) = default;

  /// The value's type inside the step.
  Type type() const;
  /// Gives the value a name for listings and errors; returns it.
  Value named(std::string_view name, std::source_location where = std::source_location::current()) const;

 private:
  friend class Trace;
  Value(std::shared_ptr<Trace> trace, int id) : trace_(std::move(trace)), id_(id) {}
  std::shared_ptr<Trace> trace_;
  int id_;
};

/// An operand of an operator or function: a Value or a number, with the line it was written on.
/// A number takes the type of the values beside it; a fraction beside an integer makes both floats.
class Operand {
 public:
  Operand(const Value& value, std::source_location where = std::source_location::current())
      : value_(&value), where_(where) {}
  /// `value` on the line of `beside`.
  Operand(const Value& value, const Operand& beside) : value_(&value), where_(beside.where_) {}
  template <class Number>
    requires std::is_arithmetic_v<Number>
  Operand(Number number, std::source_location where = std::source_location::current())
      : number_(static_cast<double>(number)),
        integral_(std::integral<Number>),
        boolean_(std::same_as<Number, bool>),
        where_(where) {}

 private:
  friend class Trace;
  const Value* value_ = nullptr;
  double number_ = 0;
  bool integral_ = false, boolean_ = false;
  std::source_location where_;
};

namespace detail {
/// Adds one op to the trace that the operands belong to.
Value apply(ir::Op op, const Operand* operands, int count);
}  // namespace detail

// Every row of the op table is a function of the same name: exp(x), fma(a, b, c), select(c, a, b),
// with_grad(value, smooth), detach(x), ... docs/ops.md lists them.
#define OP0(name, ...)
#define OP1(name, ...)                               \
  inline Value name(const Operand& a) {              \
    const Operand operands[] = {a};                  \
    return detail::apply(ir::Op::name, operands, 1); \
  }
#define OP2(name, ...)                                    \
  inline Value name(const Operand& a, const Operand& b) { \
    const Operand operands[] = {a, b};                    \
    return detail::apply(ir::Op::name, operands, 2);      \
  }
#define OP3(name, ...)                                                      \
  inline Value name(const Operand& a, const Operand& b, const Operand& c) { \
    const Operand operands[] = {a, b, c};                                   \
    return detail::apply(ir::Op::name, operands, 3);                        \
  }
#define RAW1(name, ...)
#define RAW2(name, ...)
#include "flexsn/ops.def"

inline Value operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Value operator-(const Operand& a, const Operand& b) { return sub(a, b); }
inline Value operator*(const Operand& a, const Operand& b) { return mul(a, b); }
inline Value operator/(const Operand& a, const Operand& b) { return div(a, b); }
inline Value operator-(const Operand& a) { return neg(a); }
inline Value operator==(const Operand& a, const Operand& b) { return eq(a, b); }
inline Value operator!=(const Operand& a, const Operand& b) { return ne(a, b); }
inline Value operator<(const Operand& a, const Operand& b) { return lt(a, b); }
inline Value operator<=(const Operand& a, const Operand& b) { return le(a, b); }
inline Value operator>(const Operand& a, const Operand& b) { return gt(a, b); }
inline Value operator>=(const Operand& a, const Operand& b) { return ge(a, b); }
inline Value operator&(const Operand& a, const Operand& b) { return bit_and(a, b); }
inline Value operator|(const Operand& a, const Operand& b) { return bit_or(a, b); }
inline Value operator^(const Operand& a, const Operand& b) { return bit_xor(a, b); }
inline Value operator~(const Operand& a) { return bit_not(a); }
inline Value operator!(const Operand& a) { return bit_not(a); }
inline Value operator&&(const Operand& a, const Operand& b) { return bit_and(a, b); }
inline Value operator||(const Operand& a, const Operand& b) { return bit_or(a, b); }
inline Value operator<<(const Operand& a, const Operand& b) { return shift_left(a, b); }
inline Value operator>>(const Operand& a, const Operand& b) { return shift_right(a, b); }
inline Value& operator+=(Value& a, const Operand& b) { return a = add(Operand(a, b), b); }
inline Value& operator-=(Value& a, const Operand& b) { return a = sub(Operand(a, b), b); }
inline Value& operator*=(Value& a, const Operand& b) { return a = mul(Operand(a, b), b); }
inline Value& operator/=(Value& a, const Operand& b) { return a = div(Operand(a, b), b); }

/// `number` as a value of the same type as `x`.
Value like(const Operand& x, double number);

/// `x` as `type`: float to integer truncates and saturates, NaN gives 0; to bool tests x != 0.
Value cast(const Operand& x, Type type);

// ---- surrogates ----------------------------------------------------------------------------------

/// What stands in for the derivative of a spike; u is the distance to threshold.
struct Surrogate {
  std::string name;
  std::function<Value(const Value& u)> derivative;
  /// A smooth function with that derivative; empty where none is in use.
  std::function<Value(const Value& u)> smooth;
  std::string settings = {};              ///< its numbers, as in "alpha=4:beta=1"
  std::vector<std::string> allowed = {};  ///< what each of them may be
  /// What a spike is; empty: 1 where u >= 0, else 0.
  std::function<Value(const Value& u)> value = {};
  bool spiking = true;  ///< false: a spike is the smooth function itself
};

// docs/neurons.md has their formulas.
namespace surrogate {
Surrogate sigmoid(double alpha = 4);
Surrogate atan(double alpha = 2);
Surrogate triangle(double alpha = 1);
Surrogate rectangle(double alpha = 1);
Surrogate super_spike(double alpha = 1);
Surrogate piecewise_exp(double alpha = 1);
Surrogate soft_sign(double alpha = 2);
Surrogate erf(double alpha = 2);
Surrogate nonzero_sign_log_abs(double alpha = 1);
Surrogate piecewise_leaky_relu(double w = 1, double c = 0.01);
Surrogate squarewave_fourier_series(int n = 2, double T_period = 8);
Surrogate s2nn(double alpha = 4, double beta = 1);
Surrogate q_pseudo_spike(double alpha = 2);
Surrogate leaky_k_relu(double leak = 0, double k = 1);
Surrogate fake_numerical_gradient(double alpha = 0.3);
Surrogate log_tailed_relu(double alpha = 0);
Surrogate deterministic_pass();
/// A spike is round(clamp(u, 0, max_spike_count)); its gradient is 1 from grad_min to grad_max (by default 0
/// and max_spike_count).
Surrogate multi_level_spike_count(int max_spike_count = 4, std::optional<double> grad_min = {},
                                  std::optional<double> grad_max = {});
}  // namespace surrogate

/// A surrogate by its name with options: "atan", "s2nn:alpha=4:beta=1", "sigmoid:spiking=false".
Surrogate surrogate_named(std::string_view name_and_options);
/// One line for each surrogate: its name, its options with defaults, its derivative and smooth function, and,
/// for each option, what it may be.
struct SurrogateInfo {
  std::string name, options, derivative, smooth;
  std::vector<std::string> allowed;
};
std::vector<SurrogateInfo> surrogate_list();

/// 1 where u >= 0, else 0; its gradient is that of `surrogate`.
Value spike(const Operand& u, const Surrogate& surrogate = surrogate::sigmoid());

// ---- one time step -------------------------------------------------------------------------------

/// The values a parameter may take; both ends belong to it.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

/// What the user's function fills in. Arguments without a type have the type the neuron is traced
/// for; a state without a type is widened to the type of its update.
class Step {
 public:
  using Where = std::source_location;

  /// A sequence that comes from outside, one row a step.
  Value input(std::string_view name, std::optional<Mem> type = {}, Where where = Where::current());
  /// Memory from step to step; `initial` is its value before the first.
  Value state(std::string_view name, double initial = 0, std::optional<Mem> type = {},
              Where where = Where::current());
  /// A scalar or any array that broadcasts to the step's shape: chosen at run time.
  Value param(std::string_view name, double value, Range range = {}, std::optional<Mem> type = {},
              Where where = Where::current());
  /// Like a parameter, but with one entry for each time step.
  Value step_param(std::string_view name, double value, Range range = {}, std::optional<Mem> type = {},
                   Where where = Where::current());
  /// The number of this step, from 0; goes on across chunks of a sequence.
  Value step_index(Where where = Where::current());
  /// The row-major number of this element within the step.
  Value element_index(Where where = Where::current());

  /// The value `state` has in the next step: once for each state.
  void next(const Value& state, const Operand& value);
  /// A sequence that goes out.
  void output(std::string_view name, const Operand& value);

 private:
  friend class Trace;
  explicit Step(std::shared_ptr<Trace> trace) : trace_(std::move(trace)) {}
  std::shared_ptr<Trace> trace_;
};

// ---- neurons -------------------------------------------------------------------------------------

/// A neuron: a step function (or a text) and its name.
class Neuron {
 public:
  Neuron(std::string name, std::function<void(Step&)> step);
  explicit Neuron(ir::Graph graph);  ///< for flexsn's own use: ir::Graph is not part of the API

  const std::string& name() const { return name_; }
  /// For flexsn's own use: the step traced with `type` as the type of every argument that names none. A
  /// neuron read from a text has its types in the text. With `smooth`, a spike is the smooth function of its
  /// surrogate, where it has one.
  ir::Graph graph(Mem type = Mem::f32, bool smooth = false) const;

 private:
  std::string name_;
  std::function<void(Step&)> step_;
  std::shared_ptr<const ir::Graph> fixed_;
};

/// A neuron from a step function; the function is traced when the neuron is first used.
Neuron neuron(std::string name, std::function<void(Step&)> step);
/// A neuron from `.fsn` text; `file` names the text in errors.
Neuron parse_neuron(std::string_view text, std::string_view file = "text");
/// A neuron from an `.fsn` file.
Neuron load_neuron(const std::string& path);

/// A built-in neuron by its command-line name with options: "lif", "lif:tau=3,v_reset=none",
/// "lif:surrogate=s2nn:alpha=3,tau=learnable:2". In code, flexsn/neurons.h has a function for each.
Neuron neuron_named(std::string_view name_and_options);
/// One line for each built-in neuron: its name, its options with defaults, what it is, its equations (a line
/// each), the name of its Python class, and, for each option, what it may be.
struct NeuronInfo {
  std::string name, options, doc, equations, python;
  std::vector<std::string> allowed;
};
std::vector<NeuronInfo> neuron_list();

/// One line for each op, target: what `flexsn list` prints.
struct OpInfo {
  std::string name, operands, kind, doc;
};
std::vector<OpInfo> op_list();
/// A place where neurons can run, and what is missing where it is not there.
struct TargetInfo {
  std::string name;
  bool available;
  std::string note;
};
std::vector<TargetInfo> target_list();

// ---- what can be done with a neuron ----------------------------------------------------------------

/// What a kernel computes: outputs and every state, outputs and the last states, the same for training with
/// what backward needs, gradients from the last step to the first.
enum class Kind : std::uint8_t { inference, inference_final_state, forward, backward };

/// How far a neuron has gone down the pipeline: as written, simplified, in exact ops; the simplified step
/// with all gradients, its two halves, and the plans of its kernels.
enum class Stage : std::uint8_t { step, simplified, expanded, joint, forward, backward, plan };

/// Arguments of a run. A state that is absent starts at its initial value, a parameter at its default.
struct Arguments {
  std::map<std::string, Array> inputs = {};  ///< [T, step shape]
  std::map<std::string, Array> states = {};  ///< step shape
  std::map<std::string, Array> params = {};  ///< broadcasts to the step shape; step_param: with T in front
  std::optional<std::int64_t> steps = {};    ///< T, needed when there is no input
  std::optional<std::vector<std::int64_t>> shape = {};  ///< step shape, needed when there is no input
  /// The number of the first step, for sequences run in chunks; at least 0. A neuron that reads it reads an
  /// i32.
  std::int64_t first_step = 0;
  bool state_sequences = false;  ///< every state of the sequence, not only the last
  Mem type = Mem::f32;           ///< the type the neuron is traced for
};
struct Results {
  std::map<std::string, Array> outputs = {};  ///< [T, step shape]
  std::map<std::string, Array> states = {};   ///< step shape, or [T, step shape] with state_sequences
};

/// Runs the neuron over time in the interpreter, which defines what every backend computes.
Results run(const Neuron& neuron, const Arguments& arguments);

/// Gradients that arrive at a run's results; what is absent takes part in no sum.
struct Arriving {
  std::map<std::string, Array> outputs = {};  ///< [T, step shape]
  std::map<std::string, Array> states = {};   ///< of the last states; with state_sequences [T, step shape]
};
/// Gradients of a run's arguments. Those of parameters have the shape the parameter was given with, and are
/// summed in one order that depends on the shapes alone (docs/internals.md).
struct Gradients {
  std::map<std::string, Array> inputs = {};  ///< [T, step shape]
  std::map<std::string, Array> states = {};  ///< step shape, of the first states: f32 or f64
  std::map<std::string, Array> params = {};
};
/// Runs the neuron backward through time in the interpreter. `wanted` names the inputs, states and parameters
/// whose gradients are wanted; nothing there means all that can carry one.
Gradients run_backward(const Neuron& neuron, const Arguments& arguments, const Arriving& arriving,
                       const std::vector<std::string>& wanted = {});

// ---- training ------------------------------------------------------------------------------------

/// What arithmetic costs beside memory traffic, in bytes: it decides between saving and computing again.
struct CostModel {
  std::string name = "cpu";
  double op = 0.25;   ///< one exact op for one element
  double keep = 0.2;  ///< one byte kept near the processor for the steps of a segment
  double hidden = 0;  ///< of what a kernel's memory and processor take, this share of the lesser is free
  double room = 64;   ///< bytes for each element that can be kept so; where there are more, all go to memory
  /// Is the room registers? They hold the rows that a segment reads as well, a quarter of them costs nothing,
  /// and only what is over goes to memory.
  bool registers = false;
  int smallest = 4;  ///< bytes that a smaller value counts as
  int longest = 64;  ///< steps of a segment, at most: checkpoints are next to nothing by then
  /// Steps whose values fit into registers. What a longer segment keeps goes through memory that a block of
  /// threads shares, which has so many bytes for each element.
  int at_once = 8;
  double shared = 0;
};
/// "cpu", "gpu", or "bytes", where arithmetic is free.
CostModel cost_model_named(std::string_view name);

/// How backward gets the values of forward: what the planner finds best; every value that backward uses saved
/// for each step; values saved for each step, the cheapest that suffice; values built anew from a checkpoint
/// of the states every few steps (where backward needs a state at all, else as per_step).
enum class Saving : std::uint8_t { automatic, everything, per_step, rebuild };

/// What training a neuron means: which gradients there are, and what may be kept for them.
struct Training {
  Mem type = Mem::f32;                   ///< the type the neuron is traced for
  std::vector<std::string> wanted = {};  ///< arguments whose gradients are wanted; empty: all that carry one
  std::optional<std::vector<std::string>> arriving = {};  ///< outputs with a gradient; nothing: all that can
  bool state_sequences = false;                           ///< forward gives every state, not only the last
  std::optional<double> budget = {};  ///< bytes kept alive per element and step at most, inputs included
  CostModel costs = {};
  Saving saving = Saving::automatic;
  int segment = 0;  ///< steps between checkpoints, a power of two; 0: the planner's choice
  /// step_params that have an entry for each element: reading one again costs like reading an input again.
  std::vector<std::string> full_step_params = {};
};

/// How a neuron is shown. The canonical form has no names, no locations, no initial values and no defaults:
/// equal texts mean that the same is computed.
struct ShowOptions {
  Stage stage = Stage::step;
  Mem type = Mem::f32;
  bool canonical = false;
  bool locations = false;
  std::optional<Kind> kind = {};  ///< which plan; nothing: those of training
  Training training = {};         ///< for the stages from joint on; its type is `type`
};
/// The neuron as `.fsn` text, or its plans.
std::string show(const Neuron& neuron, const ShowOptions& options = {});

/// The code of a kernel for states and outputs that all are wanted: as LLVM IR, as assembly of this machine,
/// or as PTX, which NVRTC makes.
enum class Listing : std::uint8_t { llvm, assembly, ptx };
std::string emit(const Neuron& neuron, Kind kind, Listing what, const Training& training = {});

/// Compiled kernels on disk.
struct CacheInfo {
  std::string directory;
  bool usable = false;
  std::string problem;  ///< why it is not used, or not written
  std::int64_t entries = 0, bytes = 0;
};
CacheInfo cache_info();
/// Removes them all; gives the number of files.
std::int64_t cache_clear();

/// A name with its type in memory.
struct Named {
  std::string name;
  Mem type = Mem::f32;

  bool operator==(const Named&) const = default;
};

/// A value of forward that backward reads for each step.
struct Residual {
  std::string name;
  Mem type = Mem::f32;
  int input = -1;     ///< which of KernelInfo::inputs it is
  int returned = -1;  ///< which of KernelInfo::returns it is, where it is none of the inputs
};

/// One kernel: what it takes and gives.
struct KernelInfo {
  std::string neuron;
  Kind kind = Kind::inference;
  std::vector<Named> inputs, states, params, outputs;  ///< of the neuron
  std::vector<Named> reads, writes;      ///< of this kernel, in order; gradients are "grad_NAME"
  std::vector<Named> returns;            ///< of forward, each once: outputs, states, saved values
  std::vector<Residual> residuals;       ///< what backward reads of forward; an output or input is no copy
  std::vector<std::string> checkpoints;  ///< states of which every few steps one is kept
  int segment = 0;                       ///< steps from one checkpoint to the next; 0: there are none
};
/// Describes the kernel of a kind. Training is for the kinds forward and backward; of the others only its
/// type matters. Throws where training is asked for and no output or state carries a gradient.
KernelInfo kernel_info(const Neuron& neuron, Kind kind, const Training& training = {});

// ---- kernels -------------------------------------------------------------------------------------

/// The caller's memory: elements of one type and how many there are. Made from anything contiguous (a vector,
/// a span, an array), from a pointer and a number, or, for f16 and bf16, from a pointer, a type and a number.
/// A temporary that owns its elements is refused: they would be gone before a run.
class View {
 public:
  template <class Container>
    requires requires(Container& c) { std::size(c), std::data(c); } && std::ranges::borrowed_range<Container>
  View(Container&& container) : View(std::data(container), static_cast<std::int64_t>(std::size(container))) {}
  template <class Container>
    requires requires(Container& c) { std::size(c), std::data(c); } &&
                 (!std::ranges::borrowed_range<Container>)
  View(Container&& temporary) = delete;
  template <class T>
  View(T* data, std::int64_t count) : View(data, memory_of<std::remove_const_t<T>>(), count) {
    writable_ = !std::is_const_v<T>;
  }
  View(const void* data, Mem type, std::int64_t count)
      : data_(const_cast<void*>(data)), type_(type), count_(count), writable_(false) {}
  View(void* data, Mem type, std::int64_t count) : data_(data), type_(type), count_(count) {}
  View(Array& array);
  View(const Array& array);
  View(const Array&& temporary) = delete;

  /// The same with rows that start every `elements` elements; without it rows follow each other.
  View rows_every(std::int64_t elements) const {
    View view = *this;
    view.row_stride_ = elements;
    return view;
  }

  void* data() const { return data_; }
  Mem type() const { return type_; }
  std::int64_t count() const { return count_; }
  std::optional<std::int64_t> row_stride() const { return row_stride_; }
  bool writable() const { return writable_; }

 private:
  template <class T>
  static constexpr Mem memory_of() {
    static_assert(
        std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::int32_t> ||
            std::same_as<T, std::uint8_t> || std::same_as<T, std::byte> || std::same_as<T, bool>,
        "elements are float, double, std::int32_t, std::uint8_t or bool; give f16 and bf16 as (pointer, "
        "Mem, count)");
    return std::same_as<T, float>          ? Mem::f32
           : std::same_as<T, double>       ? Mem::f64
           : std::same_as<T, std::int32_t> ? Mem::i32
           : std::same_as<T, bool>         ? Mem::b8
                                           : Mem::u8;
  }
  void* data_;
  Mem type_;
  std::int64_t count_;
  bool writable_ = true;
  std::optional<std::int64_t> row_stride_ = {};
};
using Views = std::map<std::string, View>;

/// T and the step's shape.
struct Extent {
  std::int64_t steps = 0;
  std::vector<std::int64_t> shape = {};
};

/// Runs task(0) to task(count - 1), each once, in any order and in any thread, and returns when all have
/// ended.
using ParallelFor = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& task)>;

struct CompileOptions {
  Training training = {};
  /// "cpu": machine code; "cuda": kernels for an NVIDIA GPU; "interpreter": what defines the bits, slow,
  /// anywhere.
  std::string target = "cpu";
  int device = 0;                 ///< of target "cuda"; its default cost model of training is "gpu"
  int threads = 0;                ///< 0: $FLEXSN_THREADS (1 to 1024), else as many as the process may use
  ParallelFor parallel_for = {};  ///< who runs tasks; empty: a small pool that all kernels share
};

namespace detail {
struct KernelState;
struct RunState;
}  // namespace detail

/// Arrays bound to a kernel by name. Everything is checked against the step's shape before a byte is touched.
/// Arrays start at a multiple of their type's size and must stay where they are while the run is used;
/// backward reads inputs, states and parameters again, so what is in them must stay from forward to backward.
/// What is written must overlap nothing else that is bound, but for a state or the gradient of one, which may
/// be written exactly where it is read. Binding anything means that forward must run again before backward. A
/// run belongs to one thread, a workspace to one run from forward to backward.
///
/// Target "cuda": arrays and the workspace lie on the kernel's device, but for single parameter values, which
/// may lie in the host's memory and are read by the call. Calls are queued on a stream and return at once;
/// they may be captured into a CUDA graph, which can be replayed while the kernel lives. Ranges of parameters
/// that lie on the device are not checked, nor is a workspace that something else has written to.
class Run {
 public:
  /// An input, [T, step shape].
  Run& in(const std::string& name, const View& view);
  /// A parameter of this shape, which broadcasts to the step's; a step_param has T in front. Its values must
  /// be in its range now and at each run.
  Run& param(const std::string& name, const View& view, std::vector<std::int64_t> shape = {});
  /// A state that is read before the first step and written after the last. One that is not bound starts at
  /// its initial value.
  Run& state(const std::string& name, const View& view);
  /// The two apart: where it is read, where it is written.
  Run& first_state(const std::string& name, const View& view);
  Run& last_state(const std::string& name, const View& view);
  /// Every value of a state, [T, step shape]; the kernel must be compiled for training.state_sequences, or
  /// run for inference. Other states of the run may have no sequence, and this one may have its last state
  /// written elsewhere as well.
  Run& state_sequence(const std::string& name, const View& view);
  /// An output, [T, step shape]; one that is not bound is not computed.
  Run& out(const std::string& name, const View& view);
  /// The number of the first step, for sequences run in chunks.
  Run& first_step(std::int64_t step);
  /// Of target "cuda": where calls are queued, a CUstream or cudaStream_t of the kernel's device; null, as at
  /// first, is its default stream.
  Run& stream(void* cuda_stream);

  /// Outputs and states.
  void inference();
  /// Bytes that forward and backward need between them.
  std::size_t workspace_bytes();
  /// The same as inference, and what backward needs in the workspace.
  void forward(const View& workspace);
  /// After forward on the same workspace: gradients that arrive, by the names of outputs and states (of last
  /// states; with state_sequences [T, step shape]), and those that are wanted, by the names of inputs,
  /// parameters and states (of first states). What does not arrive takes part in no sum, what is not wanted
  /// is not computed.
  void backward(const View& workspace, const Views& arriving, const Views& wanted);

 private:
  friend class Kernel;
  explicit Run(std::shared_ptr<detail::RunState> state) : state_(std::move(state)) {}
  detail::RunState& held() const;
  std::shared_ptr<detail::RunState> state_;
};

/// A neuron compiled for a target; copies share it. It may be used from several threads at once.
class Kernel {
 public:
  Run bind(Extent extent) const;
  /// What the kernel of a kind takes and gives.
  const KernelInfo& info(Kind kind) const;

 private:
  friend Kernel compile(const Neuron& neuron, const CompileOptions& options);
  explicit Kernel(std::shared_ptr<detail::KernelState> state) : state_(std::move(state)) {}
  detail::KernelState& held() const;
  std::shared_ptr<detail::KernelState> state_;
};

/// Machine code is made when a run first needs it, once for all shapes, and kept on disk. Throws where the
/// target is not there.
Kernel compile(const Neuron& neuron, const CompileOptions& options = {});

/// What to explain. States start at their initial values, unless they are given.
struct ExplainOptions {
  std::int64_t steps = 16;
  std::optional<std::int64_t> elements = {};            ///< N, short for the shape {N}; by default 1048576
  std::optional<std::vector<std::int64_t>> shape = {};  ///< of a step
  /// Parameters by name, with the shapes that runs will give them (a step_param has T in front); what is not
  /// named is its default.
  std::map<std::string, std::vector<std::int64_t>> param_shapes = {};
  /// Inputs, states and parameters by name, whose rows start at multiples of 1 or 2 entries only, or at
  /// multiples of 4, as those do that are not named: a GPU loads no more of them at once.
  std::map<std::string, int> entries_at_once = {};
  bool given_states = false;  ///< states come from memory, and their gradients are wanted
  Training training = {};  ///< wanted is by default all inputs and parameters; sequences are inference's too
  int device = 0;          ///< which GPU is meant, where costs are those of one
};
/// The memory traffic of one kernel.
struct Traffic {
  std::string kernel;
  double read_per_step = 0, written_per_step = 0;  ///< bytes per element and step of a long run
  std::int64_t read = 0, written = 0;              ///< bytes of this run
  int launches = 1;                                ///< a GPU may need several for the sums of one gradient
};
/// A parameter whose shape was given.
struct ParamTraffic {
  std::string name;
  Mem type = Mem::f32;
  std::vector<std::int64_t> shape = {};
  std::int64_t bytes = 0;
  std::int64_t expanded = 0;  ///< bytes written once a call where it must be expanded to the step's shape
};
/// A value of forward that backward gets.
struct SavedValue {
  std::string name;
  Mem type = Mem::f32;
  std::string reason;
};
/// What the compiler made of one entry of a kernel, where there is a GPU.
struct GpuEntry {
  std::string entry;
  int registers = 0;    ///< of a thread
  int local_bytes = 0;  ///< of a thread: what did not fit into registers
  /// It did not fit at first and was compiled once more: with what, "no early rows, at most 128 registers";
  /// "" where it was not.
  std::string again;
};
/// How a kernel is cut for a GPU, and what it waits for there.
struct GpuKernel {
  std::string kernel;
  int elements_a_thread = 0, threads_a_block = 0;
  int steps_at_once = 0;         ///< whose loads are issued together
  int registers = 0;             ///< of a thread, for values, roughly
  int ops = 0;                   ///< exact ops for each element and step
  int instructions = 0;          ///< that they become, roughly
  double bytes = 0;              ///< read and written for each element and step
  double most_instructions = 0;  ///< that the device has time for while it moves those bytes
  std::vector<GpuEntry> compiled;
  std::string refused;  ///< why it cannot run there; "" where it can
};
/// What runs of a neuron will do. A pass is [T, N] elements of the first input (output where there is none).
struct Explanation {
  std::string neuron;
  std::vector<std::int64_t> shape;  ///< of a step
  std::int64_t elements = 0;
  std::vector<ParamTraffic> params;
  int step_ops = 0;        ///< ops of one step as written
  int simplified_ops = 0;  ///< after simplification
  int expanded_ops = 0;    ///< exact ops that run for each element and step
  int hoisted_ops = 0;     ///< exact ops that depend on parameters only and run once a call
  std::vector<Traffic> inference;
  double inference_passes = 0;
  std::string untrainable;  ///< why there is no training; "" where there is, and the rest is filled in
  std::vector<Traffic> training;
  double training_passes = 0;
  std::int64_t floor = 0;  ///< bytes that no plan of this training can do without
  double ratio = 0;        ///< the plan's bytes to those
  std::vector<SavedValue> saved;
  std::vector<std::string> recomputed;    ///< ops of forward that run again
  int forward_ops = 0, backward_ops = 0;  ///< exact ops for each element and step
  int segment = 0;                        ///< steps from one checkpoint to the next; 0: no checkpoints
  std::int64_t checkpoint_rows = 0;
  std::vector<std::string> checkpoints;
  std::int64_t kept_alive = 0;     ///< bytes between forward and backward, inputs included
  double kept_alive_per_step = 0;  ///< of a long run, per element and step; what a budget limits
  std::vector<GpuKernel> gpu;      ///< where the costs are those of "gpu"
  std::string text;                ///< all of it in words
};
Explanation explain(const Neuron& neuron, const ExplainOptions& options = {});

/// One property of a neuron that was checked.
struct Check {
  std::string what;
  bool passed;
  std::string detail;
  bool left_out = false;  ///< it needs what this machine has not, as the detail says; it counts as passed
};
/// Verifies the neuron, its text round trip, that every pass, every training plan and the kernels of
/// the CPU and of a GPU, where there is one, keep every bit of the interpreter's results on random and
/// edge-case data made from `seed`, and that gradients agree with differences in f64 (spikes replaced by the
/// smooth functions of their surrogates, values near a jump left out).
std::vector<Check> check(const Neuron& neuron, Mem type = Mem::f32, std::uint64_t seed = 0);
/// A hash of what the neuron computes, forward and backward, on data made from `seed`: the same on every
/// machine and target. "": "cpu" where there are kernels for it, else "interpreter".
std::string digest(const Neuron& neuron, Mem type = Mem::f32, std::uint64_t seed = 0,
                   std::string_view target = "");

/// What to simulate. An input is one of
///   step:LEVEL[:START]       0 before step START (default 0), LEVEL from then on
///   ramp:FROM:TO             straight from FROM in the first step to TO in the last
///   noise:SEED[:LOW:HIGH]    uniform between LOW and HIGH (default 0 and 2), the same on every machine
///   FILE.csv                 the column with the input's name, or the only column; a row a step
struct Simulation {
  std::int64_t steps = 100;
  std::int64_t elements = 1;
  std::map<std::string, std::string> inputs = {};  ///< for each input by name; "" names all others
  std::map<std::string, double> params = {};
  Mem type = Mem::f32;
};
/// Runs the neuron and gives every input, output and state of every step as CSV text.
std::string simulate(const Neuron& neuron, const Simulation& simulation);

/// The version of this library, "0.1.0".
std::string_view version();

}  // namespace flexsn
