// Parameters and buffers by name: copied into networks, and exchanged with Python through files.
//
// torch::pickle_load, which is public, makes None of the OrderedDict that Python saves (2.13), so the JIT's
// own pickler and unpickler are used, which torch does not promise to keep. They could go when it reads one.
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <fstream>

#include "error.h"
#include "flexsn/torch.h"

namespace flexsn::nn {

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// torch's reader makes None of an OrderedDict, and Python saves a state dict as one, with an attribute for
/// versions of modules. Of such a pickle this makes one of a pair: the class, and a plain dict.
void make_plain_dict(std::string& pickle) {
  using namespace std::string_view_literals;
  constexpr auto ordered =
                     "\x80\x02"
                     "ccollections\nOrderedDict\nq\0"sv,
                 call = ")R"sv, dict = "}"sv, pair_and_end = "\x86."sv, metadata = "X\t\0\0\0_metadata"sv;
  if (!pickle.starts_with(ordered) || pickle.compare(ordered.size(), call.size(), call) != 0) return;
  pickle.replace(ordered.size(), call.size(), dict);
  std::size_t end = pickle.size() - 1;
  if (const std::size_t attribute = pickle.rfind(metadata); attribute != std::string::npos)
    // Before it stands an empty dict and where that is remembered, in two bytes or five.
    end = attribute - (pickle[attribute - 2] == 'q' ? 3 : 6);
  pickle.replace(end, std::string::npos, pair_and_end);
}

c10::IValue unpickled(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader file(path);
  const auto [bytes, size] = file.getRecord("data.pkl");
  std::string pickle(static_cast<const char*>(bytes.get()), size);
  make_plain_dict(pickle);
  std::size_t at = 0;
  const auto read = [&](char* to, std::size_t count) {
    const std::size_t copied = pickle.copy(to, count, at);
    at += copied;
    return copied;
  };
  const auto tensor_bytes = [&](const std::string& name) {
    return std::get<0>(file.getRecord("data/" + name));
  };
  torch::jit::Unpickler unpickler(read, nullptr, nullptr, tensor_bytes, at::Device(at::kCPU));
  unpickler.set_version(file.version());
  const c10::IValue found = unpickler.parse_ivalue();
  return found.isTuple() && found.toTupleRef().size() == 2 ? found.toTupleRef().elements()[1] : found;
}

}  // namespace

StateDict state_dict(const torch::nn::Module& net) {
  StateDict values;
  for (const auto& tensors : {net.named_parameters(), net.named_buffers()})
    for (const auto& item : tensors) values.insert(item.key(), item.value().detach());
  return values;
}

void load_state_dict(torch::nn::Module& net, const StateDict& values, bool strict) {
  const torch::NoGradGuard no_grad;
  StateDict own = state_dict(net);
  std::vector<std::string> missing, unexpected;
  for (const auto& item : own)
    if (!values.contains(item.key())) missing.push_back(item.key());
  for (const auto& item : values)
    if (!own.contains(item.key())) unexpected.push_back(item.key());
  if (strict && !(missing.empty() && unexpected.empty()))
    user_error("load_state_dict: the names of the network and of the values differ; missing: ",
               missing.empty() ? "none" : listed(missing),
               "; unexpected: ", unexpected.empty() ? "none" : listed(unexpected),
               "; with strict = false what both have is loaded");
  const auto both = [&](const auto& call) {
    for (auto& item : own)
      if (const Tensor* value = values.find(item.key())) call(item.key(), item.value(), *value);
  };
  // All is looked at before anything is changed.
  both([](const std::string& name, const Tensor& to, const Tensor& from) {
    if (to.sizes() != from.sizes())
      user_error("load_state_dict: ", name, " has shape ", to.sizes(), " in the network, found ",
                 from.sizes());
  });
  both([](const std::string&, Tensor& to, const Tensor& from) { to.copy_(from); });
}

StateDict read_state_dict(const std::string& path) {
  if (!std::ifstream(path)) user_error("read_state_dict: cannot read ", path);
  c10::IValue found;
  try {
    found = unpickled(path);
  } catch (const c10::Error& error) {
    user_error("read_state_dict: ", path,
               " is no file that torch.save(net.state_dict(), path) wrote: ", error.what_without_backtrace());
  }
  const auto fail = [&](const auto&... what) {
    user_error("read_state_dict: expected tensors by name in ", path, ", found ", what...,
               "; write it with torch.save(net.state_dict(), path)");
  };
  if (!found.isGenericDict()) fail(found.tagKind());
  StateDict values;
  for (const auto& item : found.toGenericDict()) {
    if (!item.key().isString() || !item.value().isTensor()) fail(item.value().tagKind(), " at ", item.key());
    values.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return values;
}

void write_state_dict(const StateDict& values, const std::string& path) {
  c10::impl::GenericDict all(c10::StringType::get(), c10::TensorType::get());
  for (const auto& item : values)
    all.insert(item.key(), item.value().detach().cpu().clone(at::MemoryFormat::Contiguous));
  std::string pickle;
  // Not torch::pickle_save: its types of dicts are no part of what Python loads without asking.
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t size) { pickle.append(bytes, size); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(all);
  pickler.stop();

  std::ofstream file(path, std::ios::binary);
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* bytes, std::size_t size) {
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    return size;
  });
  archive.writeRecord("data.pkl", pickle.data(), pickle.size());
  for (std::size_t i = 0; i < pickler.tensorData().size(); ++i) {
    const Tensor& tensor = pickler.tensorData()[i];
    archive.writeRecord("data/" + std::to_string(i), tensor.const_data_ptr(), tensor.nbytes());
  }
  archive.writeEndOfFile();
  file.close();
  if (!file) user_error("write_state_dict: cannot write ", path);
}

}  // namespace flexsn::nn
