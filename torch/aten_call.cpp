#include "aten_call.h"

namespace flexsn {

std::optional<Mem> memory_named(std::string_view type) {
  static const std::map<std::string, Mem, std::less<>> known = {
      {"float32", Mem::f32}, {"float64", Mem::f64}, {"float16", Mem::f16}, {"bfloat16", Mem::bf16},
      {"int32", Mem::i32},   {"uint8", Mem::u8},    {"bool", Mem::b8}};
  const auto found = known.find(type);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

double AtenCall::scalar(std::size_t i, std::string_view name, double otherwise) const {
  const Given* found = i < arguments_.size() ? &arguments_[i] : nullptr;
  if (const auto by_name = named_.find(name); by_name != named_.end()) found = &by_name->second;
  if (found == nullptr || found->kind == 'n') return otherwise;
  if (found->kind == '%') fail("needs a number as its argument '", name, "', found a tensor");
  return found->number;
}

std::optional<double> AtenCall::literal(std::size_t i) const {
  if (!has(i) || arguments_[i].kind == '%') return {};
  return arguments_[i].number;
}

std::string_view AtenCall::word(std::size_t i, std::string_view name) const {
  if (const auto by_name = named_.find(name); by_name != named_.end()) return by_name->second.text;
  return i < arguments_.size() ? arguments_[i].text : std::string_view();
}

ir::V AtenCall::stored(ir::V value) const {
  const Mem mem = result_memory();
  value = ir::convert(value, value_type(mem));
  if (mem == Mem::f16) return ir::round_f16(value);
  if (mem == Mem::bf16) return ir::round_bf16(value);
  return mem == Mem::u8 ? ir::round_u8(value) : value;
}

Mem AtenCall::memory_of(std::string_view type) const {
  if (const std::optional<Mem> found = memory_named(type)) return *found;
  if (type == "int64")
    fail("gives int64; integers of a step are int32: make it one with .int(), or write floats");
  fail("gives ", type, "; a step works with float32, float64, float16, bfloat16, int32, uint8 and bool");
}

}  // namespace flexsn
