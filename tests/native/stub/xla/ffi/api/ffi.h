// In the place of XLA's interface where the kernels are compiled by themselves: a pool that starts a thread a task.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace xla::ffi {

struct ThreadPool {
  int64_t threads;
  std::vector<std::thread>* started;

  int64_t num_threads() const { return threads; }
  void Schedule(std::function<void()> task) { started->emplace_back(std::move(task)); }
};

template <typename T>
struct Span {
  T* begin;
  size_t count;

  T& operator[](size_t i) const { return begin[i]; }
};

enum Type { F32 };

template <Type>
struct Buffer {
  float* numbers;
  std::vector<int64_t> shape;

  float* typed_data() const { return numbers; }
  Span<const int64_t> dimensions() const { return {shape.data(), shape.size()}; }
};

template <Type T>
struct ResultBuffer {
  Buffer<T>* buffer;

  Buffer<T>* operator->() const { return buffer; }
};

struct RemainingArgs {
  size_t size() const { return 0; }
  template <typename T>
  const T* get(int) const {
    return nullptr;
  }
};

struct Error {
  static Error Success() { return {}; }
};

}  // namespace xla::ffi

#define XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, binding)
