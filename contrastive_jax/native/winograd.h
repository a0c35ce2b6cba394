// Convolutions of 3x3 without a stride by Winograd's minimal filtering: F(4x4, 3x3), with a quarter of the
// multiplications, and F(2x2, 3x3), with four ninths (Lavin and Gray, 2016, "Fast algorithms for convolutional neural
// networks").
//
// Squares of N x N inputs, N = M + 2, become N * N matrices [tile][channel]. Each is multiplied by a matrix
// [channel][channel] made of the 3x3 kernel, and the products become squares of M x M outputs. The gradient of the images
// is the same with the flipped kernel; the gradient of the kernel sums products over tiles.
//
// F(4x4) evaluates polynomials at 0, +-sqrt(1/2), +-sqrt(2) and infinity: the errors are a quarter of those of 0, +-1,
// +-2 and infinity. An input that is not finite reaches all outputs of its tile, so up to M - 1 pixels more than those
// that read it.

#pragma once

#include "vectors.h"

namespace {
namespace winograd {

template <int M>
struct Transform;

template <>
struct Transform<4> {
  static constexpr float p = 0.70710678118654752f, q = 1.41421356237309505f;

  template <typename V>
  static void input(const V* d, V* o) {
    const V a = d[4] - 2.0f * d[2], b = (d[3] - 2.0f * d[1]) * p, c = d[4] - 0.5f * d[2], e = (d[3] - 0.5f * d[1]) * q;
    o[0] = d[0] - 2.5f * d[2] + d[4];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = d[1] - 2.5f * d[3] + d[5];
  }
  template <typename V>
  static void kernel(const V* g, V* o) {
    const V a = (g[0] + 0.5f * g[2]) * (-2.0f / 3), b = g[1] * (-2.0f / 3 * p), c = (g[0] + 2.0f * g[2]) * (1.0f / 6),
            e = g[1] * (q / 6);
    o[0] = g[0];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = g[2];
  }
  template <typename V>
  static void output(const V* m, V* o) {
    const V a = m[1] + m[2], b = (m[1] - m[2]) * p, c = m[3] + m[4], e = (m[3] - m[4]) * q;
    o[0] = m[0] + a + c;
    o[1] = b + e;
    o[2] = 0.5f * a + 2.0f * c;
    o[3] = 0.5f * b + 2.0f * e + m[5];
  }
  template <typename V>
  static void gradient(const V* y, V* o) {  // the transpose of `output`
    const V a = y[0] + 0.5f * y[2], b = (y[1] + 0.5f * y[3]) * p, c = y[0] + 2.0f * y[2], e = (y[1] + 2.0f * y[3]) * q;
    o[0] = y[0];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = y[3];
  }
  template <typename V>
  static void kernel_gradient(const V* s, V* o) {  // the transpose of `kernel`
    const V a = s[1] + s[2], b = s[1] - s[2], c = s[3] + s[4], e = s[3] - s[4];
    o[0] = s[0] - (2.0f / 3) * a + (1.0f / 6) * c;
    o[1] = (q / 6) * e - (2.0f / 3 * p) * b;
    o[2] = (c - a) * (1.0f / 3) + s[5];
  }
};

template <>
struct Transform<2> {
  template <typename V>
  static void input(const V* d, V* o) {
    o[0] = d[0] - d[2];
    o[1] = d[1] + d[2];
    o[2] = d[2] - d[1];
    o[3] = d[3] - d[1];
  }
  template <typename V>
  static void kernel(const V* g, V* o) {
    const V a = (g[0] + g[2]) * 0.5f, b = g[1] * 0.5f;
    o[0] = g[0];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = g[2];
  }
  template <typename V>
  static void output(const V* m, V* o) {
    o[0] = m[0] + m[1] + m[2];
    o[1] = m[1] - m[2] + m[3];
  }
  template <typename V>
  static void gradient(const V* y, V* o) {
    o[0] = y[0];
    o[1] = y[0] + y[1];
    o[2] = y[0] - y[1];
    o[3] = y[1];
  }
  template <typename V>
  static void kernel_gradient(const V* s, V* o) {
    const V a = s[1] + s[2];
    o[0] = s[0] + 0.5f * a;
    o[1] = (s[1] - s[2]) * 0.5f;
    o[2] = 0.5f * a + s[3];
  }
};

// Applies a transform of FROM numbers to TO to the columns of a square, then to the rows: write(i, j, T X T').
template <int FROM, int TO, int L, typename Apply, typename Read, typename Write>
inline __attribute__((always_inline)) void square(const Apply& apply, const Read& read, const Write& write) {
  // Templates that deduce the type of vectors do not see that it is less aligned than usual, so arrays are aligned.
  alignas(4 * L) Vector<L> half[TO][FROM];
#pragma GCC unroll 6
  for (int j = 0; j < FROM; ++j) {
    alignas(4 * L) Vector<L> from[FROM], to[TO];
#pragma GCC unroll 6
    for (int i = 0; i < FROM; ++i) from[i] = read(i, j);
    apply(from, to);
#pragma GCC unroll 6
    for (int i = 0; i < TO; ++i) half[i][j] = to[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < TO; ++i) {
    alignas(4 * L) Vector<L> to[TO];
    apply(half[i], to);
#pragma GCC unroll 6
    for (int j = 0; j < TO; ++j) write(i, j, to[j]);
  }
}

// Vectors of the last channels, of which there may be less than L.
template <int L>
Vector<L> load_some(const float* from, int64_t lanes) {
  if (lanes >= L) return load<L>(from);
  float some[L] = {};
  std::memcpy(some, from, lanes * sizeof(float));
  return load<L>(some);
}
template <int L>
void store_some(float* to, Vector<L> value, int64_t lanes) {
  if (lanes >= L) return store<L>(to, value);
  std::memcpy(to, &value, lanes * sizeof(float));
}

// A convolution of [images, rows, columns, in] to [images, down, right, out], in tiles of M x M outputs.
template <int M, int L>
struct Convolution {
  static constexpr int N = M + 2, SQUARE = N * N, BLOCK = 2 * L;  // BLOCK: channels of a panel
  int64_t images, rows, columns, in, out, down, right, top, left;

  int64_t tall() const { return ceil_div(down, M); }
  int64_t wide() const { return ceil_div(right, M); }
  int64_t tiles() const { return images * tall() * wide(); }
  static int64_t padded(int64_t channels) { return ceil_div(channels, L) * L; }
  // Floats from one tile to the next. An odd number of vectors, as rows that are a power of two apart share few places
  // of a cache. So do matrices, from one to the next, for the same reason.
  static int64_t row(int64_t channels) { return (ceil_div(channels, L) | (channels > 128)) * L; }
  static int64_t matrix(int64_t tiles, int64_t channels) { return tiles * row(channels) + 3 * L; }

  // The place of a tile's first output.
  struct Place {
    int64_t image, y, x;
  };
  Place place(int64_t tile) const {
    const int64_t within = tile % (tall() * wide());
    return {tile / (tall() * wide()), within / wide() * M, within % wide() * M};
  }

  // What tiles read and write is asked for a row of tiles before: a sixth to a third of the time was waiting for it.

  // Transforms the squares of SIDE x SIDE numbers that begin `top` and `left` before the outputs of n tiles, in an array
  // [images, height, width, channels], zeros outside: to[place of the square][tile][channel].
  template <int SIDE, typename Apply>
  void gather(const Apply& apply, const float* from, int64_t height, int64_t width, int64_t channels, int64_t up,
              int64_t before, int64_t first, int64_t n, float* to, int64_t apart) const {
    for (int64_t t = 0; t < n; ++t, to += row(channels)) {
      const Place at = place(first + t);
      const int64_t y = at.y - up, x = at.x - before;
      const float* base = from + ((at.image * height + y) * width + x) * channels;
      const bool whole = y >= 0 && x >= 0 && y + SIDE <= height && x + SIDE <= width;
      for (int64_t c = 0; c < channels; c += L) {
        const auto write = [&](int i, int j, Vector<L> value) { store<L>(to + (i * N + j) * apart + c, value); };
        if (whole && c + L <= channels) {
          square<SIDE, N, L>(
              apply,
              [&](int i, int j) {
                const float* number = base + (i * width + j) * channels + c;
                __builtin_prefetch(number + M * width * channels);
                return load<L>(number);
              },
              write);
          continue;
        }
        float some[SIDE * SIDE][L];
        for (int i = 0; i < SIDE; ++i)
          for (int j = 0; j < SIDE; ++j) {
            const bool inside = y + i >= 0 && y + i < height && x + j >= 0 && x + j < width;
            const float* at = base + (i * width + j) * channels + c;
            __builtin_prefetch(base + ((i + M) * width + j) * channels + c);
            store<L>(some[i * SIDE + j], inside ? load_some<L>(at, channels - c) : Vector<L>{});
          }
        square<SIDE, N, L>(apply, [&](int i, int j) { return load<L>(some[i * SIDE + j]); }, write);
      }
    }
  }
  void inputs(const float* from, int64_t first, int64_t n, float* to, int64_t apart) const {
    gather<N>([](const auto* a, auto* b) { Transform<M>::input(a, b); }, from, rows, columns, in, top, left, first, n, to,
              apart);
  }
  void gradients(const float* from, int64_t first, int64_t n, float* to, int64_t apart) const {
    gather<M>([](const auto* a, auto* b) { Transform<M>::gradient(a, b); }, from, down, right, out, 0, 0, first, n, to,
              apart);
  }

  void outputs(const float* products, int64_t first, int64_t n, float* to, int64_t apart) const {
    const auto apply = [](const auto* a, auto* b) { Transform<M>::output(a, b); };
    for (int64_t t = 0; t < n; ++t, products += row(out)) {
      const Place at = place(first + t);
      float* base = to + ((at.image * down + at.y) * right + at.x) * out;
      const bool whole = at.y + M <= down && at.x + M <= right;
      for (int64_t k = 0; k < out; k += L) {
        const auto read = [&](int i, int j) { return load<L>(products + (i * N + j) * apart + k); };
        if (whole && k + L <= out) {
          square<N, M, L>(apply, read, [&](int i, int j, Vector<L> value) {
            store<L>(base + (i * right + j) * out + k, value);
            __builtin_prefetch(base + ((i + M) * right + j) * out + k, 1);
          });
          continue;
        }
        square<N, M, L>(apply, read, [&](int i, int j, Vector<L> value) {
          if (at.y + i < down && at.x + j < right) store_some<L>(base + (i * right + j) * out + k, value, out - k);
        });
      }
    }
  }

  // Weights: [place of the square][block of BLOCK or, at the end, L outputs][input][output].
  int64_t weights_matrix() const { return in * padded(out) + 3 * L; }
  void weights(const Kernel& kernel, int64_t c, int64_t end, float* to) const {
    const auto apply = [](const auto* a, auto* b) { Transform<M>::kernel(a, b); };
    for (int64_t k = 0; k < out; k += L) {
      const int64_t block = k / BLOCK * BLOCK, width = std::min<int64_t>(BLOCK, padded(out) - block);
      const int64_t lanes = std::min<int64_t>(L, out - k);
      for (int64_t i = c; i < end; ++i) {
        float taps[9][L] = {};
        for (int t = 0; t < 9; ++t) {
          const float* from = kernel.numbers + (kernel.flipped ? 8 - t : t) * in * out + i * kernel.across;
          for (int64_t l = 0; l < lanes; ++l) taps[t][l] = from[(k + l) * kernel.along];
        }
        square<3, N, L>(apply, [&](int y, int x) { return load<L>(taps[y * 3 + x]); },
                        [&](int y, int x, Vector<L> value) {
                          store<L>(to + (y * N + x) * weights_matrix() + block * in + i * width + k - block, value);
                        });
      }
    }
  }
};

// out[r] (+)= x[r] * w for R tiles and V vectors of channels.
template <int R, int V, int L>
void multiply(const float* x, int64_t apart, const float* w, int64_t channels, float* out, int64_t out_apart,
              bool first) {
  Vector<L> sum[R][V] = {};
  for (int64_t c = 0; c < channels; ++c, w += V * L) {
    Vector<L> weights[V];
    for (int v = 0; v < V; ++v) weights[v] = load<L>(w + v * L);
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += weights[v] * x[r * apart + c];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = out + r * out_apart + v * L;
      store<L>(to, first ? sum[r][v] : load<L>(to) + sum[r][v]);
    }
}

template <int R, int V, int L>
void multiply_all(const float* x, int64_t apart, int64_t tiles, const float* w, int64_t channels, float* out,
                  int64_t out_apart, bool first) {
  for (; tiles >= R; tiles -= R, x += R * apart, out += R * out_apart)
    multiply<R, V, L>(x, apart, w, channels, out, out_apart, first);
  if constexpr (R > 1)
    if (tiles > 0) multiply_all<(R + 1) / 2, V, L>(x, apart, tiles, w, channels, out, out_apart, first);
}

// out[r] (+)= sum over tiles of x[tile][r] * y[tile], for R channels of inputs and V vectors of outputs'.
template <int R, int V, int L>
void sum_products(const float* x, int64_t apart, const float* y, int64_t y_apart, int64_t tiles, float* out,
                  int64_t out_apart, bool first) {
  Vector<L> sum[R][V] = {};
  for (int64_t t = 0; t < tiles; ++t, x += apart, y += y_apart) {
    Vector<L> d[V];
    for (int v = 0; v < V; ++v) d[v] = load<L>(y + v * L);
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += d[v] * x[r];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = out + r * out_apart + v * L;
      store<L>(to, first ? sum[r][v] : load<L>(to) + sum[r][v]);
    }
}

template <int R, int V, int L>
void sum_all_products(const float* x, int64_t apart, int64_t channels, const float* y, int64_t y_apart, int64_t tiles,
                      float* out, int64_t out_apart, bool first) {
  for (; channels >= R; channels -= R, x += R, out += R * out_apart)
    sum_products<R, V, L>(x, apart, y, y_apart, tiles, out, out_apart, first);
  if constexpr (R > 1)
    if (channels > 0) sum_all_products<(R + 1) / 2, V, L>(x, apart, channels, y, y_apart, tiles, out, out_apart, first);
}

// Rows of a product's tile in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
template <int V>
constexpr int TILES = 24 / V;
template <int V>
constexpr int INPUTS = 16 / V;
#else
template <int V>
constexpr int TILES = V == 2 ? 6 : 10;
template <int V>
constexpr int INPUTS = V == 2 ? 6 : 8;
#endif

constexpr int64_t TASK = 512 << 10;     // bytes of matrices of a task: they stay in the second cache
constexpr int64_t STAGED = 4 << 20;     // bytes of weights from which on each is read by one task only
constexpr int64_t STAGE = 32 << 20;     // bytes of matrices of a stage
constexpr int64_t SUMS = 8 << 20;       // bytes of partial sums of a kernel's gradient
constexpr int64_t TOGETHER = 24;        // tiles of a task, at least

// Tiles whose matrices take some bytes: a multiple of TOGETHER.
template <typename Any>
int64_t tiles_in(int64_t bytes, const Any& s) {
  const int64_t tile = Any::SQUARE * (s.row(s.in) + s.row(s.out)) * 4;
  return std::max<int64_t>(1, bytes / tile / TOGETHER) * TOGETHER;
}

// Products of n tiles at one place of the square, for blocks [b, end) of outputs.
template <int M, int L>
void products(const Convolution<M, L>& s, const float* x, const float* w, int64_t n, int64_t b, int64_t end,
              float* out) {
  using S = Convolution<M, L>;
  constexpr int64_t DEPTH = PANEL / (4 * S::BLOCK);  // channels of a panel, in the first cache
  for (int64_t k = b * S::BLOCK; k < std::min(end * S::BLOCK, s.padded(s.out)); k += S::BLOCK) {
    const float* block = w + k * s.in;
    const bool two = k + L < s.padded(s.out);
    for (int64_t c = 0; c < s.in; c += DEPTH) {
      const int64_t some = std::min(DEPTH, s.in - c);
      if (two)
        multiply_all<TILES<2>, 2, L>(x + c, s.row(s.in), n, block + c * S::BLOCK, some, out + k, s.row(s.out), c == 0);
      else
        multiply_all<TILES<1>, 1, L>(x + c, s.row(s.in), n, block + c * L, some, out + k, s.row(s.out), c == 0);
    }
  }
}

template <int M, int L>
void convolve(ffi::ThreadPool& pool, const Convolution<M, L>& s, const float* images, const Kernel& kernel,
              float* out) {
  using S = Convolution<M, L>;
  const int64_t tiles = s.tiles(), blocks = ceil_div(s.out, S::BLOCK);
  std::unique_ptr<float[]> weights(new float[S::SQUARE * s.weights_matrix()]);
  const int64_t each = std::max<int64_t>(1, 4096 / s.out);  // input channels of a task
  parallel(pool, ceil_div(s.in, each),
           [&](int64_t i) { s.weights(kernel, i * each, std::min(s.in, (i + 1) * each), weights.get()); });
  if (S::SQUARE * s.weights_matrix() * 4 < STAGED) {
    const int64_t together = tiles_in(TASK, s);
    parallel(pool, ceil_div(tiles, together), [&](int64_t task) {
      const int64_t first = task * together, n = std::min(together, tiles - first);
      const int64_t x_apart = s.matrix(n, s.in), y_apart = s.matrix(n, s.out);
      float* x = scratch<0>(S::SQUARE * x_apart);
      float* y = scratch<1>(S::SQUARE * y_apart);
      s.inputs(images, first, n, x, x_apart);
      for (int64_t i = 0; i < S::SQUARE; ++i)
        products(s, x + i * x_apart, weights.get() + i * s.weights_matrix(), n, 0, blocks, y + i * y_apart);
      s.outputs(y, first, n, out, y_apart);
    });
    return;
  }
  const int64_t stage = std::min(tiles, tiles_in(STAGE, s));
  const int64_t x_apart = s.matrix(stage, s.in), y_apart = s.matrix(stage, s.out);
  std::unique_ptr<float[]> x(new float[S::SQUARE * x_apart]), y(new float[S::SQUARE * y_apart]);
  constexpr int64_t SOME = 8, BLOCKS = 4;  // tiles and blocks of a task
  for (int64_t begin = 0; begin < tiles; begin += stage) {
    const int64_t here = std::min(stage, tiles - begin), slices = ceil_div(blocks, BLOCKS);
    parallel(pool, ceil_div(here, SOME), [&](int64_t task) {
      const int64_t t = task * SOME;
      s.inputs(images, begin + t, std::min(SOME, here - t), x.get() + t * s.row(s.in), x_apart);
    });
    parallel(pool, S::SQUARE * slices, [&](int64_t task) {
      const int64_t i = task / slices, b = task % slices * BLOCKS;
      products(s, x.get() + i * x_apart, weights.get() + i * s.weights_matrix(), here, b, b + BLOCKS,
               y.get() + i * y_apart);
    });
    parallel(pool, ceil_div(here, SOME), [&](int64_t task) {
      const int64_t t = task * SOME;
      s.outputs(y.get() + t * s.row(s.out), begin + t, std::min(SOME, here - t), out, y_apart);
    });
  }
}

// Sums over n tiles at one place of the square, of input channels [c, end): sum[channel][output].
template <int M, int L>
void sums(const Convolution<M, L>& s, const float* x, const float* y, int64_t n, int64_t c, int64_t end, float* sum,
          bool first) {
  using S = Convolution<M, L>;
  constexpr int64_t RUN = 96;  // tiles whose block of gradients stays in the first cache
  const int64_t wide = s.padded(s.out);
  for (int64_t t = 0; t < n; t += RUN) {
    const int64_t some = std::min(RUN, n - t);
    for (int64_t k = 0; k < wide; k += S::BLOCK) {
      const float *from = x + t * s.row(s.in) + c, *gradient = y + t * s.row(s.out) + k;
      if (k + L < wide)
        sum_all_products<INPUTS<2>, 2, L>(from, s.row(s.in), end - c, gradient, s.row(s.out), some, sum + c * wide + k,
                                          wide, first && t == 0);
      else
        sum_all_products<INPUTS<1>, 1, L>(from, s.row(s.in), end - c, gradient, s.row(s.out), some, sum + c * wide + k,
                                          wide, first && t == 0);
    }
  }
}

template <int M, int L>
void kernel_gradient(ffi::ThreadPool& pool, const Convolution<M, L>& s, const float* images, const float* gradient,
                     float* out) {
  using S = Convolution<M, L>;
  const int64_t tiles = s.tiles(), wide = s.padded(s.out), matrix = s.in * wide + 3 * L;
  const int64_t bytes = S::SQUARE * matrix * 4, together = tiles_in(TASK, s), blocks = ceil_div(tiles, together);
  const bool staged = bytes > SUMS / 8;
  const int64_t pieces = staged ? 1 : std::min<int64_t>({blocks, PIECES, SUMS / bytes});
  std::unique_ptr<float[]> all(new float[pieces * S::SQUARE * matrix]);
  if (!staged) {
    const int64_t each = ceil_div(blocks, pieces);
    parallel(pool, pieces, [&](int64_t piece) {
      float* sum = all.get() + piece * S::SQUARE * matrix;
      if (piece * each >= blocks) return clear(sum, S::SQUARE * matrix);
      for (int64_t b = piece * each; b < std::min((piece + 1) * each, blocks); ++b) {
        const int64_t first = b * together, n = std::min(together, tiles - first);
        const int64_t x_apart = s.matrix(n, s.in), y_apart = s.matrix(n, s.out);
        float* x = scratch<0>(S::SQUARE * x_apart);
        float* y = scratch<1>(S::SQUARE * y_apart);
        s.inputs(images, first, n, x, x_apart);
        s.gradients(gradient, first, n, y, y_apart);
        for (int64_t i = 0; i < S::SQUARE; ++i)
          sums(s, x + i * x_apart, y + i * y_apart, n, 0, s.in, sum + i * matrix, b == piece * each);
      }
    });
  } else {
    const int64_t stage = std::min(tiles, tiles_in(STAGE, s));
    const int64_t x_apart = s.matrix(stage, s.in), y_apart = s.matrix(stage, s.out);
    std::unique_ptr<float[]> x(new float[S::SQUARE * x_apart]), y(new float[S::SQUARE * y_apart]);
    constexpr int64_t SOME = 8;
    const int64_t slices = ceil_div(s.in, SLICE);
    for (int64_t begin = 0; begin < tiles; begin += stage) {
      const int64_t here = std::min(stage, tiles - begin);
      parallel(pool, ceil_div(here, SOME), [&](int64_t task) {
        const int64_t t = task * SOME, n = std::min(SOME, here - t);
        s.inputs(images, begin + t, n, x.get() + t * s.row(s.in), x_apart);
        s.gradients(gradient, begin + t, n, y.get() + t * s.row(s.out), y_apart);
      });
      parallel(pool, S::SQUARE * slices, [&](int64_t task) {
        const int64_t i = task / slices, c = task % slices * SLICE;
        sums(s, x.get() + i * x_apart, y.get() + i * y_apart, here, c, std::min(s.in, c + SLICE), all.get() + i * matrix,
             begin == 0);
      });
    }
  }
  parallel(pool, s.in, [&](int64_t c) {
    for (int64_t k = 0; k < s.out; k += L) {
      const float* first = all.get() + c * wide + k;
      square<S::N, 3, L>(
          [](const auto* a, auto* b) { Transform<M>::kernel_gradient(a, b); },
          [&](int i, int j) {
            Vector<L> total = {};
            for (int64_t piece = 0; piece < pieces; ++piece)
              total += load<L>(first + (piece * S::SQUARE + i * S::N + j) * matrix);
            return total;
          },
          [&](int i, int j, Vector<L> value) {
            store_some<L>(out + ((i * 3 + j) * s.in + c) * s.out + k, value, s.out - k);
          });
    }
  });
}

}  // namespace winograd
}  // namespace
