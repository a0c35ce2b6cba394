// Resizing of an image by a few weights an output row and column: the sums of crops.py, in its order.
//
// It is compiled without contraction of products and sums, so that on x86 it rounds as SciPy's sparse products do, which
// take its place where there is no compiler. SciPy's build for ARM contracts them.

#include <algorithm>
#include <cstdint>

namespace {

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int ROWS = 4;  // of results, computed together

// Weights of one axis: of `taps` pixels in each result.
struct Axis {
  const int32_t* pixels;
  const float* weights;
  int64_t taps;
};

// Sums pixels [n] of some rows to floats, N rows at once.
template <int N>
void add_rows(const uint8_t* image, int64_t row, const int32_t* pixels, const float* weights, bool first, int64_t n,
              float* out) {
  const uint8_t* from[N];
  float by[N];
  for (int t = 0; t < N; ++t) from[t] = image + pixels[t] * row, by[t] = weights[t];
  for (int64_t i = 0; i < n; ++i) {
    float sum = first ? 0.0f : out[i];
    for (int t = 0; t < N; ++t) sum += by[t] * from[t][i];
    out[i] = sum;
  }
}

void one_row(const uint8_t* image, int64_t row, const Axis& axis, int64_t at, int64_t n, float* out) {
  const int32_t* pixels = axis.pixels + at * axis.taps;
  const float* weights = axis.weights + at * axis.taps;
  int64_t t = 0;
  for (; t + 4 <= axis.taps; t += 4) add_rows<4>(image, row, pixels + t, weights + t, t == 0, n, out);
  for (; t < axis.taps; ++t) add_rows<1>(image, row, pixels + t, weights + t, t == 0, n, out);
}

// Lines of results from the sums [w][channels] of ROWS rows, `apart` floats apart. Three channels are one vector, whose
// last lane the next pixel writes over.
template <int TAPS>
void lines(const float* sums, int64_t apart, const Axis& axis, int64_t size, int64_t channels, float* out) {
  const int64_t taps = TAPS ? TAPS : axis.taps;
  const int32_t* pixels = axis.pixels;
  const float* weights = axis.weights;
  for (int64_t x = 0; x < size; ++x, pixels += taps, weights += taps, out += channels) {
    if (channels == 3) {
      Four sum[ROWS] = {};
      for (int64_t t = 0; t < taps; ++t) {
        const float* from = sums + 3 * static_cast<int64_t>(pixels[t]);
        for (int r = 0; r < ROWS; ++r) sum[r] += weights[t] * *reinterpret_cast<const Four*>(from + r * apart);
      }
      for (int r = 0; r < ROWS; ++r) *reinterpret_cast<Four*>(out + r * apart) = sum[r];
      continue;
    }
    for (int r = 0; r < ROWS; ++r)
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (int64_t t = 0; t < taps; ++t) sum += weights[t] * sums[r * apart + channels * pixels[t] + c];
        out[r * apart + c] = sum;
      }
  }
}

}  // namespace

// Resizes an image, rows of `width` pixels `row` bytes apart, to [size][size][channels]. `scratch` takes
// 8 * (max(width, size) * channels + 1) floats.
extern "C" void contrastive_resize(const uint8_t* image, int64_t row, int64_t width, int64_t channels, int64_t size,
                                   const int32_t* row_pixels, const float* row_weights, int64_t row_taps,
                                   const int32_t* column_pixels, const float* column_weights, int64_t column_taps,
                                   float* scratch, uint8_t* out) {
  const Axis rows{row_pixels, row_weights, row_taps}, columns{column_pixels, column_weights, column_taps};
  const int64_t apart = std::max(width, size) * channels + 1;  // a vector's last lane is one too many
  float *sums = scratch, *results = scratch + ROWS * apart;
  for (int r = 0; r < ROWS; ++r) sums[r * apart + width * channels] = 0;
  for (int64_t y = 0; y < size; y += ROWS) {
    const int64_t count = std::min<int64_t>(ROWS, size - y);
    for (int64_t r = 0; r < count; ++r) one_row(image, row, rows, y + r, width * channels, sums + r * apart);
    (columns.taps == 4 ? lines<4> : lines<0>)(sums, apart, columns, size, channels, results);
    for (int64_t r = 0; r < count; ++r, out += size * channels)
      for (int64_t i = 0; i < size * channels; ++i)
        out[i] = static_cast<uint8_t>(
            static_cast<int32_t>(std::min(255.0f, std::max(0.0f, results[r * apart + i] + 0.5f))));
  }
}
