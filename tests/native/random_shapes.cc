// Every kernel over random shapes, against float64 and with one thread against several: bits must be the same.
// Compiled with sanitizers by test_sanitizers.py. Arrays have their exact sizes, so a byte outside is found.

#include "kernels.cc"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
std::mt19937 engine;
std::vector<std::thread> started;
int wrong = 0;
double worst = 0;

int64_t one_of(std::initializer_list<int64_t> numbers) { return *(numbers.begin() + engine() % numbers.size()); }

Floats normal(int64_t n) {
  std::normal_distribution<float> number;
  Floats found(n);
  for (float& x : found) x = number(engine);
  found.shrink_to_fit();
  return found;
}

// Runs `kernel(pool, out)` with 1, 2 and 3 threads; compares bits, and the numbers with `wanted`.
template <typename Run>
void check(const char* name, const std::string& shape, const Doubles& wanted, double tolerance, const Run& run) {
  Floats first;
  for (int64_t threads : {1, 2, 3}) {
    ffi::ThreadPool pool{threads, &started};
    Floats found(wanted.size(), NAN);
    run(pool, found.data());
    for (std::thread& thread : started) thread.join();
    started.clear();
    if (threads == 1) {
      first = found;
    } else if (std::memcmp(first.data(), found.data(), first.size() * sizeof(float))) {
      std::printf("%s, %s: other bits with %d threads\n", name, shape.c_str(), static_cast<int>(threads));
      ++wrong;
    }
  }
  double largest = 1e-3, error = 0;
  for (double x : wanted) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double apart = std::fabs(first[i] - wanted[i]);
    error = apart <= error ? error : apart;  // or not a number
  }
  error /= largest;
  if (!(error <= tolerance)) {
    std::printf("%s, %s: off by %g of the largest\n", name, shape.c_str(), error);
    ++wrong;
  }
  worst = std::max(worst, error);
}

// Numbers that are not finite in `wanted` must not be in what `run(pool, out)` writes; with `same`, no others either.
template <typename Run>
void check_not_finite(const char* name, const std::string& shape, const Doubles& wanted, bool same, const Run& run) {
  ffi::ThreadPool pool{2, &started};
  Floats found(wanted.size());
  run(pool, found.data());
  for (std::thread& thread : started) thread.join();
  started.clear();
  for (size_t i = 0; i < wanted.size(); ++i)
    if (std::isfinite(wanted[i]) ? same && !std::isfinite(found[i]) : std::isfinite(found[i])) {
      std::printf("%s, %s: %g instead of %g\n", name, shape.c_str(), found[i], wanted[i]);
      ++wrong;
      return;
    }
}

void convolutions(bool small) {
  const bool plain = engine() % 4 == 0;  // any kernel, stride and padding
  const int64_t size = plain ? one_of({1, 3, 5, 7}) : 3, stride = plain ? one_of({1, 2, 3}) : 1;
  const int64_t channels = engine() % 2 ? one_of({8, 16, 32, 64, 128}) : one_of({1, 3, 7, 9, 15, 17, 33, 70, 130});
  Shape s{};
  s.images = one_of({1, 2, 3, 5, 17});
  s.rows = one_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16});
  s.columns = one_of({1, 2, 3, 4, 5, 6, 8, 11, 16, 33});
  s.in = channels;
  s.out = engine() % 2 ? channels : one_of({1, 5, 8, 12, 16, 24, 40, 64, 96, 100, 256});
  if (engine() % 8 == 0) s.images = small ? 1 : 3, s.in = one_of({180, 300}), s.out = 200, s.rows = s.columns = 4;
  s.tall = s.wide = size;
  s.stride_y = s.stride_x = stride;
  s.top = plain ? engine() % (size + 1) : engine() % 4 ? 1 : engine() % 4;
  s.left = plain ? engine() % (size + 1) : engine() % 4 ? 1 : engine() % 4;
  const int64_t below = engine() % 4 ? s.top : engine() % 4, after = engine() % 4 ? s.left : engine() % 4;
  const int64_t down = s.rows + s.top + below - size, right = s.columns + s.left + after - size;
  if (down < 0 || right < 0) return;
  s.down = down / stride + 1, s.right = right / stride + 1;
  if (s.images * s.down * s.right * size * size * s.in * s.out > (small ? 9000000 : 60000000)) return;

  Floats images = normal(s.images * s.rows * s.columns * s.in);
  const Floats kernel = normal(size * size * s.in * s.out), gradient = normal(s.images * s.down * s.right * s.out);
  Doubles value(gradient.size()), of_images(images.size()), of_kernel(kernel.size());
  for (int64_t n = 0; n < s.images; ++n)
    for (int64_t y = 0; y < s.down; ++y)
      for (int64_t x = 0; x < s.right; ++x)
        for (int64_t i = 0; i < size; ++i)
          for (int64_t j = 0; j < size; ++j) {
            const int64_t row = y * stride + i - s.top, column = x * stride + j - s.left;
            if (row < 0 || row >= s.rows || column < 0 || column >= s.columns) continue;
            const int64_t in = ((n * s.rows + row) * s.columns + column) * s.in;
            const int64_t out = ((n * s.down + y) * s.right + x) * s.out;
            for (int64_t c = 0; c < s.in; ++c)
              for (int64_t d = 0; d < s.out; ++d) {
                const int64_t k = ((i * size + j) * s.in + c) * s.out + d;
                value[out + d] += static_cast<double>(images[in + c]) * kernel[k];
                of_images[in + c] += static_cast<double>(gradient[out + d]) * kernel[k];
                of_kernel[k] += static_cast<double>(images[in + c]) * gradient[out + d];
              }
          }
  char shape[200];
  std::snprintf(shape, sizeof shape, "%d images of %dx%d, %d to %d channels, %dx%d, stride %d, padding %d %d %d %d",
                int(s.images), int(s.rows), int(s.columns), int(s.in), int(s.out), int(size), int(size), int(stride),
                int(s.top), int(s.left), int(below), int(after));
  const Kernel numbers{kernel.data(), s.out, 1, false};
  check("convolution", shape, value, 3e-6,
        [&](auto& pool, float* out) { convolve(pool, s, images.data(), numbers, out); });
  check("gradient of images", shape, of_images, 3e-6,
        [&](auto& pool, float* out) { image_gradient(pool, s, gradient.data(), kernel.data(), out); });
  check("gradient of the kernel", shape, of_kernel, 3e-6,
        [&](auto& pool, float* out) { kernel_gradient(pool, s, images.data(), gradient.data(), out); });
  check("convolution, Winograd", shape, value, 1e-5,
        [&](auto& pool, float* out) { convolve_best(pool, s, images.data(), numbers, out); });
  check("gradient of images, Winograd", shape, of_images, 1e-5,
        [&](auto& pool, float* out) { image_gradient_best(pool, s, gradient.data(), kernel.data(), out); });
  check("gradient of the kernel, Winograd", shape, of_kernel, 1e-5,
        [&](auto& pool, float* out) { kernel_gradient_best(pool, s, images.data(), gradient.data(), out); });

  const int64_t bad = engine() % images.size(), c = bad % s.in, column = bad / s.in % s.columns;
  const int64_t row = bad / (s.in * s.columns) % s.rows, n = bad / (s.in * s.columns * s.rows);
  images[bad] = one_of({0, 1}) ? NAN : INFINITY;
  for (int64_t y = 0; y < s.down; ++y)
    for (int64_t x = 0; x < s.right; ++x) {
      const int64_t i = row + s.top - y * stride, j = column + s.left - x * stride;
      if (i < 0 || i >= size || j < 0 || j >= size) continue;
      for (int64_t d = 0; d < s.out; ++d)
        value[((n * s.down + y) * s.right + x) * s.out + d] = of_kernel[((i * size + j) * s.in + c) * s.out + d] = NAN;
    }
  for (const bool winograd : {false, true}) {
    check_not_finite("not finite, convolution", shape, value, !winograd, [&](auto& pool, float* out) {
      (winograd ? convolve_best : convolve)(pool, s, images.data(), numbers, out);
    });
    check_not_finite("not finite, gradient of the kernel", shape, of_kernel, !winograd, [&](auto& pool, float* out) {
      (winograd ? kernel_gradient_best : kernel_gradient)(pool, s, images.data(), gradient.data(), out);
    });
  }
}

void norms() {
  const int64_t rows = one_of({1, 2, 5}), positions = one_of({1, 2, 7, 64, 100}),
                channels = one_of({1, 3, 8, 9, 16, 17, 31, 64, 70});
  const Floats images = normal(rows * positions * channels), gradient = normal(images.size()),
               outputs = normal(images.size()), centres = normal(rows * channels);
  Doubles both(2 * centres.size()), sums_of(2 * centres.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) {
      double &mean = both[r * channels + c], &square = both[centres.size() + r * channels + c];
      const int64_t first = r * positions * channels + c;
      for (int64_t p = 0; p < positions; ++p) mean += images[first + p * channels] / double(positions);
      for (int64_t p = 0; p < positions; ++p)
        square += std::pow(images[first + p * channels] - mean, 2) / double(positions);
      for (int64_t p = 0; p < positions; ++p) {
        const int64_t at = first + p * channels;
        if (outputs[at] <= 0) continue;
        sums_of[r * channels + c] += gradient[at];
        sums_of[centres.size() + r * channels + c] +=
            gradient[at] * (double(images[at]) - centres[r * channels + c]);
      }
    }
  const std::string shape = std::to_string(rows) + " x " + std::to_string(positions) + " x " + std::to_string(channels);
  check("moments", shape, both, 3e-6, [&](auto& pool, float* out) {
    moments(pool, rows, positions, channels, images.data(), out, out + centres.size());
  });
  check("sums", shape, sums_of, 3e-6, [&](auto& pool, float* out) {
    sums(pool, rows, positions, channels, gradient.data(), images.data(), centres.data(), outputs.data(), out,
         out + centres.size());
  });
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 100;
  const bool small = count > 2 && std::atoi(arguments[2]);
  for (int round = 0; round < rounds; ++round) {
    convolutions(small);
    norms();
  }
  std::printf("%d lanes, %d rounds, %d wrong, the worst off by %g\n", LANES, rounds, wrong, worst);
  return wrong != 0;
}
