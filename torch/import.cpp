#include "import.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "aten_call.h"
#include "environment.h"
#include "ops.h"
#include "simplify.h"
#include "text.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

namespace {

using Fields = std::vector<std::string_view>;
using Dims = std::vector<std::int64_t>;

Fields split(std::string_view text, char mark) {
  Fields fields;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find(mark, start);
    fields.push_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return fields;
    start = end + 1;
  }
}

std::int64_t integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  internal_check(wrong == std::errc() && stop == text.data() + text.size(), "a listing has a bad integer");
  return value;
}

double real(std::string_view text) { return std::strtod(std::string(text).c_str(), nullptr); }

Dims dims(std::string_view text) {
  Dims out;
  if (text.empty()) return out;
  for (std::string_view part : split(text, ',')) out.push_back(integer(part));
  return out;
}

std::string dims_text(const Dims& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += join(i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

/// A shape without dimensions of size 1 in front, which broadcasting ignores.
Dims stripped(const Dims& shape) {
  return {std::find_if(shape.begin(), shape.end(), [](std::int64_t d) { return d != 1; }), shape.end()};
}

/// A shape without any dimension of size 1.
Dims without_ones(Dims shape) {
  std::erase(shape, 1);
  return shape;
}

/// Which axes of the step, counted from behind, the dimensions of a value are that are not 1.
std::vector<int> axes_of(const Dims& shape) {
  std::vector<int> axes;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) axes.push_back(static_cast<int>(shape.size() - i));
  return axes;
}

/// Does `shape` broadcast to `whole` without making it larger?
bool within(const Dims& shape, const Dims& whole) {
  const Dims inner = stripped(shape);
  if (inner.size() > whole.size()) return false;
  for (std::size_t i = 1; i <= inner.size(); ++i)
    if (inner[inner.size() - i] != 1 && inner[inner.size() - i] != whole[whole.size() - i]) return false;
  return true;
}

const std::map<std::string, Op, std::less<>>& table() {
  static const std::map<std::string, Op, std::less<>> names = [] {
    std::map<std::string, Op, std::less<>> out;
    for (int i = 0; i < static_cast<int>(Op::count); ++i) {
      const Op op = static_cast<Op>(i);
      if (op == Op::constant || op == Op::argument) continue;
      for (std::string_view name : split(row_of(op).aten, ' '))
        if (!name.empty()) out.emplace(name, op);
    }
    return out;
  }();
  return names;
}

class Importer : public AtenCall {
 public:
  explicit Importer(std::string_view listing) {
    graph_.files.emplace_back("");
    for (std::string_view line : split(listing, '\n')) {
      if (line.empty()) continue;
      fields_ = split(line, '\t');
      const std::string_view what = fields_[0];
      if (what == "core") graph_.name = std::string(fields_.at(1));
      if (what == "step") step_ = dims(fields_.at(1));
      if (what == "value") add_value();
      if (what == "node") add_node();
      if (what == "result") add_result();
    }
  }

  std::string text() {
    verify(graph_);
    const Graph simple = verified(simplify(graph_), "simplify");
    return print(simple, {.names = false, .lines = false});
  }

 private:
  // ---- lines -------------------------------------------------------------------------------------------

  void add_value() {
    const std::string_view what = fields_.at(1);
    function_ = "core.";
    const std::string type(fields_.at(3));
    Argument argument;
    argument.name = std::string(fields_.at(2));
    if (!memory_named(type))
      user_error(graph_.name, ": ", fields_[2], " is ", type,
                 type == "int64"
                     ? "; integers of a step are int32: make it one with .int()"
                     : "; a step works with float32, float64, float16, bfloat16, int32, uint8 and bool");
    argument.mem = *memory_named(type);
    if (what.starts_with("grad_output:")) {
      argument.role = Role::grad_output;
      argument.of = static_cast<int>(integer(what.substr(std::size("grad_output:") - 1)));
    } else if (what.starts_with("grad_state:")) {
      argument.role = Role::grad_next;
      argument.of = states_.at(static_cast<std::size_t>(integer(what.substr(std::size("grad_state:") - 1))));
      argument.mem = natural_memory(value_type(argument.mem));  // carried wider than half types
    } else if (what == "state") {
      argument.role = Role::state;
      states_.push_back(static_cast<int>(graph_.arguments.size()));
    } else if (what == "param") {
      argument.role = Role::param;
      params_.push_back(static_cast<int>(graph_.arguments.size()));
    } else {
      inputs_.push_back(static_cast<int>(graph_.arguments.size()));
    }
    Item item;
    item.live = argument.role != Role::param;
    item.value = add_argument(graph_, argument);
    item.shape = dims(fields_.at(4));
    item.type = type;
    items_.push_back(std::move(item));
  }

  void add_node() {
    function_ = fields_.at(1);
    result_type_ = fields_.at(2);
    file_ = fields_.at(5);
    line_ = fields_.at(6);
    arguments_.clear();
    named_.clear();
    for (std::size_t i = 8; i < fields_.size(); ++i) {
      const std::size_t equals = fields_[i].find('=');
      if (equals == std::string_view::npos)
        arguments_.push_back(read(fields_[i]));
      else
        named_[std::string(fields_[i].substr(0, equals))] = read(fields_[i].substr(equals + 1));
    }
    Item item;
    item.shape = dims(fields_.at(4));
    item.type = std::string(result_type_);
    item.live = false;
    for (const auto* list : operands()) item.live = item.live || list->item->live;
    const std::size_t first = graph_.nodes.size();
    if (is_sum()) {
      item = sum(item);
    } else {
      if (!is_known()) refuse();
      type_ = value_type(memory_of(result_type_));
      common_ = value_type(memory_named(fields_.at(3)).value_or(memory_of(result_type_)));
      check_sums(item);
      if (!item.reduced) check_shape(item);
      item.value = build();
      if (result_type_ == "uint8") item.value = round_u8(item.value);  // wraps
    }
    for (std::size_t id = first; id < graph_.nodes.size(); ++id) {
      graph_.debug[id].location = location();
    }
    if (graph_.nodes.size() > first) graph_.debug[item.value.id].name = std::string(fields_.at(7));
    items_.push_back(std::move(item));
  }

  void add_result() {
    const std::string_view what = fields_.at(1);
    function_ = "core.";
    const Given given = read(fields_.at(2));
    internal_check(given.item != nullptr, "a result must be a value");
    const Item& item = *given.item;
    const std::size_t colon = what.find(':');
    const auto number =
        colon == std::string_view::npos ? 0 : static_cast<std::size_t>(integer(what.substr(colon + 1)));
    const std::string_view kind = what.substr(0, colon);
    Result result;
    if (kind == "output") {
      result.gives = Gives::output;
      result.mem = memory_of(item.type);
      result.name = join("output", outputs_++);
    } else if (kind == "next") {
      result.gives = Gives::next;
      result.of = states_.at(number);
      result.mem = graph_.arguments[result.of].mem;
    } else {
      result.gives = Gives::grad;
      result.of = (kind == "grad_input" ? inputs_ : kind == "grad_state" ? states_ : params_).at(number);
      result.mem = gradient_memory(graph_.arguments[result.of]);
    }
    if (item.reduced && kind != "grad_param")
      user_error(graph_.name, item.summed_at, ": ", what, " depends on a sum over elements", no_reductions);
    if (item.reduced && item.axes != axes_of(items_.at(static_cast<std::size_t>(result.of)).shape))
      user_error(graph_.name, item.summed_at,
                 ": the gradient of a parameter is summed over other axes than those in "
                 "which the parameter is broadcast; a step sums gradients over those and no others");
    if (kind == "output" || kind == "next")
      if (item.shape != step_)
        user_error(graph_.name, ": ", kind == "output" ? "output " : "new state ",
                   kind == "output" ? static_cast<std::size_t>(outputs_ - 1) : number, " has shape ",
                   dims_text(item.shape), ", but the step's shape is ", dims_text(step_),
                   "; outputs and states have the shape of the inputs");
    V value = convert(item.value, value_type(result.mem));
    if (result.mem == Mem::f16) value = round_f16(value);
    if (result.mem == Mem::bf16) value = round_bf16(value);
    if (result.mem == Mem::u8) value = round_u8(value);
    result.value = value.id;
    graph_.results.push_back(std::move(result));
  }

  // ---- arguments of nodes ------------------------------------------------------------------------------

  Given read(std::string_view text) {
    if (text.starts_with('%')) return {&items_.at(static_cast<std::size_t>(integer(text.substr(1)))), '%'};
    if (text == "n") return {};
    Given out;
    out.kind = text[0];
    out.text = text.substr(2);
    if (out.kind == 'f') out.number = real(out.text);
    if (out.kind == 'i' || out.kind == 'b') out.number = static_cast<double>(integer(out.text));
    return out;
  }

  std::vector<const Given*> operands() const {
    std::vector<const Given*> out;
    for (const Given& given : arguments_)
      if (given.item != nullptr) out.push_back(&given);
    for (const auto& [name, given] : named_)
      if (given.item != nullptr) out.push_back(&given);
    return out;
  }

  Location location() {
    if (file_.empty()) return {};
    auto found = std::find(graph_.files.begin(), graph_.files.end(), file_);
    if (found == graph_.files.end()) found = graph_.files.insert(found, std::string(file_));
    return {static_cast<int>(found - graph_.files.begin()), static_cast<int>(integer(line_))};
  }

  // ---- shapes ------------------------------------------------------------------------------------------

  void check_shape(const Item& item) const {
    if (within(item.shape, step_)) return;
    fail("gives shape ", dims_text(item.shape), ", but the step's shape is ", dims_text(step_),
         "; a step works on each element alone, and parameters must broadcast to the step");
  }

  bool is_sum() const { return function_ == "sum.default" || function_ == "sum.dim_IntList"; }

  static constexpr const char* no_reductions =
      ", but a step works on each element alone, so reductions (sum, mean, norm, ...) have no place in it: "
      "compute "
      "them outside the core, or use backend=\"torch\"";

  /// A sum of what backward computes for each element: the gradient of a parameter, which flexsn sums itself.
  Item sum(Item item) const {
    const Item& source = *argument(0).item;
    if (!source.live) fail("sums a parameter inside the step; compute it before the step");
    item.value = source.value;
    item.reduced = source.reduced || !source.shape.empty();
    item.summed_at = place();
    std::vector<int> left = source.reduced ? source.axes : axes_of(source.shape);
    const Dims summed = arguments_.size() > 1 ? dims(arguments_[1].text) : Dims();
    const auto rank = static_cast<std::int64_t>(source.shape.size());
    std::size_t place_left = 0;
    for (std::int64_t d = 0; d < rank; ++d) {
      if (source.shape[static_cast<std::size_t>(d)] == 1) continue;
      const bool goes = summed.empty() || std::find(summed.begin(), summed.end(), d) != summed.end() ||
                        std::find(summed.begin(), summed.end(), d - rank) != summed.end();
      if (!goes) item.axes.push_back(left[place_left]);
      ++place_left;
    }
    return item;
  }

  /// After a sum only what could as well be done before it may follow.
  void check_sums(Item& item) const {
    const Item* sum = nullptr;
    std::size_t sums = 0, tensors = 0;
    for (const Given* given : operands()) {
      ++tensors;
      if (!given->item->reduced) continue;
      if (sum == nullptr) sum = given->item;
      sums += given->item->axes == sum->axes && given->item->shape == item.shape ? 1 : 0;
    }
    if (sum == nullptr) return;
    item.reduced = true;
    item.summed_at = sum->summed_at;
    item.axes = sum->axes;
    static const std::set<std::string_view> scales = {"neg.default",    "mul.Scalar",       "div.Scalar",
                                                      "detach.default", "_to_copy.default", "clone.default",
                                                      "alias.default"};
    const bool adds = function_ == "add.Tensor" || function_ == "sub.Tensor";
    const bool multiplies =
        function_ == "mul.Tensor" || (function_ == "div.Tensor" && argument(0).item == sum);
    const bool same = sum->shape == item.shape;
    bool fits = scales.contains(function_) && same;
    if (views().contains(function_)) fits = without_ones(sum->shape) == without_ones(item.shape);
    if (adds) fits = sums == 2 && tensors == 2;
    if (multiplies) fits = same && sums == 1 && (tensors == 1 || !other_is_live(*sum));
    if (!fits)
      user_error(graph_.name, ": torch.", name(), place(), " uses a sum over elements", item.summed_at,
                 no_reductions);
  }

  bool other_is_live(const Item& sum) const {
    for (const Given* given : operands())
      if (given->item != &sum && given->item->live) return true;
    return false;
  }

  /// Views that leave every element where it is.
  V view() {
    const Item& source = *argument(0).item;
    const Dims to = dims(fields_.at(4));
    const bool grows = function_ == "expand.default";
    if (!source.reduced && !grows && stripped(source.shape) != stripped(to))
      fail("turns shape ", dims_text(source.shape), " into ", dims_text(to),
           "; a step works on each element alone, so elements must stay where they are");
    return source.value;
  }

  // ---- functions ---------------------------------------------------------------------------------------

  static bool is_comparison(Op op) { return op >= Op::eq && op <= Op::ge; }

  static const std::set<std::string_view>& views() {
    static const std::set<std::string_view> views = {
        "view.default",    "_unsafe_view.default", "reshape.default",         "squeeze.dim",
        "squeeze.default", "squeeze.dims",         "unsqueeze.default",       "expand.default",
        "alias.default",   "clone.default",        "lift_fresh_copy.default", "lift_fresh.default",
        "detach.default",  "detach_.default",      "contiguous.default",      "positive.default"};
    return views;
  }

  /// x[:], whatever the size, or its gradient.
  bool takes_all() const {
    constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();
    const std::size_t first = function_ == "slice_backward.default" ? 3 : 2;
    if (function_ != "slice.Tensor" && first == 2) return false;
    const auto is = [this](std::size_t i, std::int64_t value) {
      return i >= arguments_.size() || arguments_[i].kind == 'n' ||
             (arguments_[i].kind == 'i' && integer(arguments_[i].text) == value);
    };
    return is(first, 0) && is(first + 1, endless) && is(first + 2, 1);
  }

  bool is_known() const {
    return takes_all() || views().contains(function_) || composites().contains(function_) ||
           table().contains(function_);
  }

  V build() {
    if (takes_all() || views().contains(function_)) return view();
    const auto composite = composites().find(function_);
    return composite != composites().end() ? composite->second(*this)
                                           : row_of_table(table().find(function_)->second);
  }

  V row_of_table(Op op) {
    const bool compares = is_comparison(op) || op == Op::isnan || op == Op::isinf || op == Op::isfinite;
    const bool logical = function_.starts_with("logical_");
    V values[max_arity];
    for (int i = 0; i < row_of(op).arity; ++i) {
      const Type wanted = compares ? common_ : logical ? Type::b1 : type_;
      values[i] = as(argument(static_cast<std::size_t>(i)), op == Op::select && i == 0 ? Type::b1 : wanted);
    }
    if (is_comparison(op) && common_ == Type::b1)
      for (V& value : values)
        if (value.exists()) value = convert(value, Type::i32);
    // Integers are whole and finite already.
    if (compares && !is_comparison(op) && !is_float(common_))
      return constant(graph_, Type::b1, op == Op::isfinite ? 1 : 0);
    if (!is_float(type_) && (op == Op::floor || op == Op::ceil || op == Op::trunc || op == Op::round))
      return values[0];
    if (type_ == Type::b1 && op == Op::sign) return values[0];
    if (type_ == Type::b1 && (op == Op::add || op == Op::maximum)) op = Op::bit_or;
    if (type_ == Type::b1 && (op == Op::mul || op == Op::minimum)) op = Op::bit_and;
    const Row& row = row_of(op);
    Type types[max_arity] = {};
    for (int i = 0; i < row.arity; ++i) types[i] = values[i].type();
    if (!result_type(row, types)) fail("is given types that it does not take: ", type_mismatch(row, types));
    return apply(op, values, row.arity);
  }

  [[noreturn]] void refuse() const {
    static const std::set<std::string_view> random = {
        "rand",       "randn",          "bernoulli",   "dropout", "normal",  "uniform",    "rand_like",
        "randn_like", "native_dropout", "exponential", "poisson", "randint", "multinomial"};
    static const std::set<std::string_view> moving = {
        "select",        "slice",        "index",           "gather",    "scatter", "cat",
        "stack",         "permute",      "transpose",       "t",         "roll",    "flip",
        "index_put",     "index_select", "narrow",          "split",     "unbind",  "cumsum",
        "masked_select", "take",         "constant_pad_nd", "as_strided"};
    static const std::set<std::string_view> reducing = {"mean",
                                                        "amax",
                                                        "amin",
                                                        "max",
                                                        "min",
                                                        "prod",
                                                        "var",
                                                        "std",
                                                        "norm",
                                                        "linalg_vector_norm",
                                                        "all",
                                                        "any",
                                                        "argmax",
                                                        "argmin",
                                                        "softmax",
                                                        "_softmax",
                                                        "_log_softmax",
                                                        "logsumexp",
                                                        "native_layer_norm",
                                                        "native_batch_norm",
                                                        "_native_batch_norm_legit_functional"};
    static const std::set<std::string_view> products = {"mm", "bmm",         "matmul", "addmm",  "dot",
                                                        "mv", "convolution", "linear", "einsum", "baddbmm"};
    std::string base = name();
    while (base.ends_with('_')) base.pop_back();
    const char* end = "; compute it outside the core, or use backend=\"torch\"";
    if (random.contains(base)) fail("draws random numbers, which a step cannot", end);
    if (moving.contains(base)) fail("moves or picks elements, but a step works on each element alone", end);
    if (reducing.contains(base)) fail("reduces over elements, but a step works on each element alone", end);
    if (products.contains(base)) fail("multiplies matrices, but a step works on each element alone", end);
    const char* gradient = name().ends_with("_backward") ? " (it is in the gradient that torch makes)" : "";
    std::vector<std::string> names;
    for (const auto& [known, op] : table()) {
      names.push_back(known.substr(0, known.find('.')));
      if (names.back() == base)
        fail("is called in a way that a step may not use (", function_, ")", gradient, end);
    }
    fail("is not among the functions that a step may use (flexsn list ops)", gradient,
         did_you_mean(name(), names), end);
  }

  Dims step_;
  std::deque<Item> items_;  // arguments point to items
  std::vector<int> inputs_, states_, params_;
  int outputs_ = 0;
  // of the line at hand
  Fields fields_;
  Type common_ = Type::f32;
};

}  // namespace

std::string import_listing(std::string_view listing) {
  const IeeeEnvironment environment;  // constants may be subnormal
  return Importer(listing).text();
}

}  // namespace flexsn
