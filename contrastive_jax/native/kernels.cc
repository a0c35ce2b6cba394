// Convolutions and batch-norm sums for XLA's CPU backend, on the compiler's vector extensions: no instruction set is
// named but by the number of lanes. Compiled at first use by library.py.
//
// Results do not depend on the number of threads: work is cut up by shapes alone, and partial sums are added in a
// fixed order.

#include "vectors.h"
#include "winograd.h"

namespace {

// A tile is V vectors of channels, one or two, at some positions, of which sums are in registers; so are the weights of
// some channels of the input.
#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers
template <int V>
constexpr int POSITIONS = 16 / V;
template <int V>
constexpr int STEPS = 8 / V;
#else  // 16 registers
template <int V>
constexpr int POSITIONS = V == 2 ? 6 : 10;
template <int V>
constexpr int STEPS = 1;
#endif

constexpr int64_t SCRATCH = 256 << 10;  // bytes of packed images of a task: they stay in the second cache
constexpr int64_t PIXELS = 64 << 10;    // bytes of packed images and gradients that a piece goes over
constexpr int64_t RUN = 32;             // positions of a row of packed images, at least: narrow images share rows

// ---- Packed rows ----
//
// A group of images is packed row by row as [phase][column][image][channel]. Columns are those of the padded image;
// column X lies in phase X % stride at X / stride. So the inputs of one tap, for all positions (column, image) of an
// output row, are `channels` apart, whatever the stride.

struct Packing {
  int64_t images, rows, columns, channels;  // of the array [images, rows, columns, channels]
  int64_t first, count;                     // channels that are packed: a slice
  int64_t stride, before, width;            // of columns; zeros on the left; packed columns of a phase
  int64_t group;                            // images that share a row

  int64_t row_floats() const { return stride * width * group * count; }

  // Images [image, image + group) and rows [row, end) to `to`.
  void pack(const float* from, int64_t image, int64_t row, int64_t end, float* to) const {
    for (int64_t y = row; y < end; ++y)
      for (int64_t phase = 0; phase < stride; ++phase)
        for (int64_t x = 0; x < width; ++x) {
          const int64_t column = x * stride + phase - before;
          if (column < 0 || column >= columns) {
            clear(to, group * count);
            to += group * count;
            continue;
          }
          const float* at = from + ((image * rows + y) * columns + column) * channels + first;
          if (group == 1 && stride == 1 && count == channels) {  // the rest of the row, at once
            const int64_t rest = std::min(columns - column, width - x);
            std::memcpy(to, at, rest * count * sizeof(float));
            to += rest * count;
            x += rest - 1;
            continue;
          }
          for (int64_t g = 0; g < group; ++g, to += count) copy(to, at + g * rows * columns * channels, count);
        }
  }
};

// ---- Images: the convolution, and the gradient of its images ----

struct Tap {
  const float* in;       // of the first position
  const float* weights;  // [channels][V * L]
};

// out[at[r]] (+)= sum over taps and channels of in[r][c] * weights[c], for R positions and V vectors of channels.
template <int R, int V, int L>
void tile(const Tap* taps, int64_t count, int64_t apart, int64_t from, int64_t channels, float* out, const int64_t* at,
          int64_t lanes, bool first) {
  constexpr int U = STEPS<V>;
  Vector<L> sum[R][V];
  float edge[V * L];
  for (int r = 0; r < R; ++r) {
    const float* old = out + at[r];
    if (!first && lanes < V * L) {
      std::memset(edge, 0, sizeof edge);
      std::memcpy(edge, old, lanes * sizeof(float));
      old = edge;
    }
    for (int v = 0; v < V; ++v) sum[r][v] = first ? Vector<L>{} : load<L>(old + v * L);
  }
  for (int64_t t = 0; t < count; ++t) {
    const float* in = taps[t].in + from;
    const float* weights = taps[t].weights;
    int64_t c = 0;
    for (; c + U <= channels; c += U, weights += U * V * L) {
      Vector<L> w[U][V];
      for (int u = 0; u < U; ++u)
        for (int v = 0; v < V; ++v) w[u][v] = load<L>(weights + (u * V + v) * L);
      const float* x = in + c;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r, x += apart)
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) sum[r][v] += w[u][v] * x[u];
    }
    for (; c < channels; ++c, weights += V * L) {
      Vector<L> w[V];
      for (int v = 0; v < V; ++v) w[v] = load<L>(weights + v * L);
      const float* x = in + c;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r, x += apart)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] += w[v] * *x;
    }
  }
  for (int r = 0; r < R; ++r) {
    if (lanes < V * L) {
      for (int v = 0; v < V; ++v) store<L>(edge + v * L, sum[r][v]);
      std::memcpy(out + at[r], edge, lanes * sizeof(float));
    } else {
      for (int v = 0; v < V; ++v) store<L>(out + at[r] + v * L, sum[r][v]);
    }
  }
}

// All positions of a row, in tiles of R and of less where they do not divide.
template <int R, int V, int L>
void tiles(Tap* taps, int64_t count, int64_t apart, int64_t from, int64_t channels, int64_t positions, float* out,
           const int64_t* at, int64_t lanes, bool first) {
  int64_t done = 0;
  for (; done + R <= positions; done += R) {
    tile<R, V, L>(taps, count, apart, from, channels, out, at + done, lanes, first);
    for (int64_t t = 0; t < count; ++t) taps[t].in += R * apart;
  }
  if constexpr (R > 1)
    if (done < positions)
      tiles<(R + 1) / 2, V, L>(taps, count, apart, from, channels, positions - done, out, at + done, lanes, first);
}

// Few channels need no more than half a vector.
int64_t lanes_for(int64_t channels) { return channels <= LANES / 2 ? LANES / 2 : LANES; }

// Weights for tiles: [block][tap][in][block()], zeros past the last output channel.
struct Weights {
  int64_t taps, in, out;

  int64_t block() const { return out > LANES ? 2 * LANES : lanes_for(out); }
  int64_t blocks() const { return ceil_div(out, block()); }
  int64_t floats() const { return blocks() * taps * in * block(); }

  // Block b, of kernel[tap * in * out + i * across + o * along]; taps in their order, or the last first.
  void pack(const float* first, int64_t across, int64_t along, bool flipped, int64_t b, float* to) const {
    const int64_t wide = block(), begin = b * wide, lanes = std::min(wide, out - begin);
    to += b * taps * in * wide;
    for (int64_t t = 0; t < taps; ++t, to += in * wide) {
      const float* kernel = first + (flipped ? taps - 1 - t : t) * in * out;
      if (along == 1) {
        for (int64_t i = 0; i < in; ++i) {
          std::memcpy(to + i * wide, kernel + i * across + begin, lanes * sizeof(float));
          std::memset(to + i * wide + lanes, 0, (wide - lanes) * sizeof(float));
        }
      } else {
        for (int64_t o = 0; o < wide; ++o)
          for (int64_t i = 0; i < in; ++i)
            to[i * wide + o] = o < lanes ? kernel[i * across + (begin + o) * along] : 0.0f;
      }
    }
  }
};

// A tap of a row: which row of the input it reads, where in the packed row, by which kernel entry.
struct Read {
  int64_t row, offset, tap;
};

// An output row: its taps, and where its positions (column, image) lie in the output.
struct Row {
  std::vector<Read> reads;
  std::vector<int64_t> at;
};

template <int V, int L>
void rows_of_tiles(const std::vector<Row>& rows, const Weights& weights, const float* packed_weights,
                   const float* packed, int64_t first_row, int64_t row_floats, int64_t apart, float* out) {
  const int64_t channels = weights.in, wide = V * L;
  const int64_t depth = std::max<int64_t>(1, std::min(channels, PANEL / (wide * 4)));  // channels of a panel
  const int64_t together = std::max<int64_t>(1, PANEL / (channels * wide * 4));        // taps of a panel
  std::vector<Tap> taps(weights.taps);
  std::vector<char> begun(rows.size());
  for (int64_t b = 0; b < weights.blocks(); ++b) {
    const float* block = packed_weights + b * weights.taps * channels * wide;
    const int64_t lanes = std::min(wide, weights.out - b * wide);
    std::fill(begun.begin(), begun.end(), 0);
    for (int64_t tap = 0; tap < weights.taps; tap += together) {
      for (int64_t from = 0; from < channels; from += depth) {
        const int64_t some = std::min(depth, channels - from);
        for (size_t r = 0; r < rows.size(); ++r) {
          int64_t count = 0;
          for (const Read& read : rows[r].reads)
            if (read.tap >= tap && read.tap < tap + together)
              taps[count++] = {packed + (read.row - first_row) * row_floats + read.offset,
                               block + (read.tap * channels + from) * wide};
          if (count == 0) continue;
          tiles<POSITIONS<V>, V, L>(taps.data(), count, apart, from, some, rows[r].at.size(), out + b * wide,
                                    rows[r].at.data(), lanes, !begun[r]);
          begun[r] = 1;
        }
      }
    }
    for (size_t r = 0; r < rows.size(); ++r)
      if (!begun[r])
        for (int64_t at : rows[r].at) std::memset(out + b * wide + at, 0, lanes * sizeof(float));
  }
}

// The sizes of a convolution of [images, rows, columns, in] by [tall, wide, in, out] to [images, down, right, out].
struct Shape {
  int64_t images, rows, columns, in, tall, wide, out, down, right, stride_y, stride_x, top, left;
};

int64_t group_of(int64_t columns, int64_t images) {
  return std::min(images, std::max<int64_t>(1, RUN / std::max<int64_t>(1, columns)));
}

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -ceil_div(-a, b); }

// All output rows of all images, a task for some rows of a group of images. `needs(y)` is the range of input rows that
// output row y reads; `row_of(y, image, group, rows)` adds its rows. `merged` neighbours are one tap of more channels.
template <typename Needs, typename RowOf>
void by_rows(ffi::ThreadPool& pool, const Packing& packing, Weights weights, int64_t merged, const float* in,
             const Kernel& kernel, int64_t out_rows, const Needs& needs, const RowOf& row_of, float* out) {
  std::unique_ptr<float[]> packed_weights(new float[weights.floats()]);
  parallel(pool, weights.blocks(), [&](int64_t b) {
    weights.pack(kernel.numbers, kernel.across, kernel.along, kernel.flipped, b, packed_weights.get());
  });
  weights.taps /= merged;
  weights.in *= merged;
  auto extent = [&](int64_t y, int64_t n) {
    const int64_t begin = std::max<int64_t>(0, needs(y).first), end = std::min(packing.rows, needs(y + n - 1).second);
    return std::make_pair(begin, std::max(begin, end));
  };
  int64_t each = out_rows;  // output rows of a task
  while (each > 1 && (extent(0, each).second - extent(0, each).first) * packing.row_floats() * 4 > SCRATCH)
    each = ceil_div(each, 2);
  const int64_t strips = ceil_div(out_rows, each), groups = ceil_div(packing.images, packing.group);
  const auto run = weights.block() == 2 * LANES ? rows_of_tiles<2, LANES>
                   : weights.block() == LANES   ? rows_of_tiles<1, LANES>
                                                : rows_of_tiles<1, LANES / 2>;
  parallel(pool, groups * strips, [&](int64_t index) {
    Packing here = packing;
    const int64_t image = index / strips * packing.group, y = index % strips * each;
    here.group = std::min(packing.group, packing.images - image);
    const int64_t n = std::min(each, out_rows - y);
    const auto [begin, end] = extent(y, n);
    float* packed = scratch<0>((end - begin) * here.row_floats());
    here.pack(in, image, begin, end, packed);
    std::vector<Row> rows;
    for (int64_t i = 0; i < n; ++i) row_of(y + i, image, here.group, rows);
    run(rows, weights, packed_weights.get(), packed, begin, here.row_floats(), here.count, out);
  });
}

void convolve(ffi::ThreadPool& pool, const Shape& s, const float* images, const Kernel& kernel, float* out) {
  const int64_t width = s.right + (s.wide - 1) / s.stride_x, all = group_of(s.right, s.images);
  const Packing packing{s.images, s.rows, s.columns, s.in, 0, s.in, s.stride_x, s.left, width, all};
  const Weights weights{s.tall * s.wide, s.in, s.out};
  const int64_t merged = all == 1 && s.stride_x == 1 ? s.wide : 1;  // neighbours of a row lie side by side
  auto needs = [&](int64_t y) { return std::make_pair(y * s.stride_y - s.top, y * s.stride_y - s.top + s.tall); };
  auto row_of = [&](int64_t y, int64_t image, int64_t group, std::vector<Row>& rows) {
    Row row;
    for (int64_t i = 0; i < s.tall; ++i) {
      const int64_t from = y * s.stride_y + i - s.top;
      if (from < 0 || from >= s.rows) continue;
      for (int64_t j = 0; j < s.wide; j += merged)
        row.reads.push_back(
            {from, (j % s.stride_x * width + j / s.stride_x) * group * s.in, (i * s.wide + j) / merged});
    }
    row.at.reserve(s.right * group);
    for (int64_t x = 0; x < s.right; ++x)
      for (int64_t g = 0; g < group; ++g) row.at.push_back((((image + g) * s.down + y) * s.right + x) * s.out);
    rows.push_back(std::move(row));
  };
  by_rows(pool, packing, weights, merged, images, kernel, s.down, needs, row_of, out);
}

// The convolution of the gradient, by the flipped kernel, to the gradient of the images; without a stride.
Shape reversed(const Shape& s) {
  return {s.images, s.down, s.right,   s.out, s.tall, s.wide,           s.in,
          s.rows,   s.columns, 1, 1, s.tall - 1 - s.top, s.wide - 1 - s.left};
}

// Without a stride, the convolution of the gradient by the flipped kernel. With one, columns of the images that are a
// stride apart read the gradient through the same kernel entries, and have a row for each such phase.
void image_gradient(ffi::ThreadPool& pool, const Shape& s, const float* gradient, const float* numbers, float* out) {
  if (s.stride_y == 1 && s.stride_x == 1) {
    return convolve(pool, reversed(s), gradient, {numbers, 1, s.out, true}, out);
  }
  const int64_t before = std::max<int64_t>(0, -floor_div(s.left - s.wide + 1, s.stride_x));
  const int64_t width = before + std::max(s.right, floor_div(s.columns - 1 + s.left, s.stride_x) + 1);
  const Packing packing{s.images, s.down, s.right, s.out, 0,
                        s.out,    1,      before,  width, group_of(ceil_div(s.columns, s.stride_x), s.images)};
  const Weights weights{s.tall * s.wide, s.out, s.in};
  auto needs = [&](int64_t y) {
    return std::make_pair(floor_div(y + s.top - s.tall + s.stride_y, s.stride_y), floor_div(y + s.top, s.stride_y) + 1);
  };
  auto row_of = [&](int64_t y, int64_t image, int64_t group, std::vector<Row>& rows) {
    for (int64_t phase = 0; phase < std::min(s.stride_x, s.columns); ++phase) {
      Row row;
      for (int64_t i = (y + s.top) % s.stride_y; i < s.tall; i += s.stride_y) {
        const int64_t from = floor_div(y + s.top - i, s.stride_y);
        if (from < 0 || from >= s.down) continue;
        for (int64_t j = (phase + s.left) % s.stride_x; j < s.wide; j += s.stride_x) {
          const int64_t column = before + floor_div(phase + s.left - j, s.stride_x);
          row.reads.push_back({from, column * group * s.out, i * s.wide + j});
        }
      }
      for (int64_t x = phase; x < s.columns; x += s.stride_x)
        for (int64_t g = 0; g < group; ++g) row.at.push_back((((image + g) * s.rows + y) * s.columns + x) * s.in);
      rows.push_back(std::move(row));
    }
  };
  by_rows(pool, packing, weights, 1, gradient, {numbers, 1, s.out, false}, s.rows, needs, row_of, out);
}

// ---- The gradient of the kernel ----

struct Run {
  const float *images, *gradient;
  int64_t positions;
};

// out[r][d] += sum over positions of images[r] * gradient[d], for R channels of images and V vectors of the gradient.
template <int R, int V, int L>
void product(const Run* runs, int64_t count, int64_t from, int64_t in, int64_t to, int64_t wide, float* out) {
  Vector<L> sum[R][V] = {};
  for (int64_t run = 0; run < count; ++run) {
    const float *x = runs[run].images + from, *g = runs[run].gradient + to;
    for (int64_t p = 0; p < runs[run].positions; ++p, x += in, g += wide) {
      Vector<L> d[V];
      for (int v = 0; v < V; ++v) d[v] = load<L>(g + v * L);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] += d[v] * x[r];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* place = out + (from + r) * wide + to + v * L;
      store<L>(place, load<L>(place) + sum[r][v]);
    }
}

template <int R, int V, int L>
void products(const Run* runs, int64_t count, int64_t from, int64_t in, int64_t to, int64_t wide, float* out) {
  for (; from + R <= in; from += R) product<R, V, L>(runs, count, from, in, to, wide, out);
  if constexpr (R > 1)
    if (from < in) products<(R + 1) / 2, V, L>(runs, count, from, in, to, wide, out);
}

void kernel_gradient(ffi::ThreadPool& pool, const Shape& s, const float* images, const float* gradient, float* out) {
  const int64_t taps = s.tall * s.wide, group = group_of(s.right, s.images), groups = ceil_div(s.images, group);
  const int64_t ins = ceil_div(s.in, SLICE), outs = ceil_div(s.out, SLICE);
  const int64_t pieces = std::min(groups, ceil_div(PIECES, ins * outs)), each = ceil_div(groups, pieces);
  const int64_t wide =
      ceil_div(std::min(SLICE, s.out), lanes_for(s.out)) * lanes_for(s.out);  // channels of a piece's gradient, padded
  const int64_t floats = taps * std::min(SLICE, s.in) * wide;                 // of a piece
  std::unique_ptr<float[]> sums(new float[pieces * ins * outs * floats]);
  parallel(pool, pieces * ins * outs, [&](int64_t index) {
    const int64_t piece = index / (ins * outs), c = index / outs % ins * SLICE, d = index % outs * SLICE;
    const int64_t in = std::min(SLICE, s.in - c), here = std::min(SLICE, s.out - d);
    float* sum = sums.get() + index * floats;
    std::fill(sum, sum + floats, 0.0f);
    Packing packing{s.images, s.rows, s.columns, s.in, c, in, s.stride_x, s.left, s.right + (s.wide - 1) / s.stride_x,
                    group};
    std::vector<Run> runs;
    for (int64_t image = piece * each * group; image < std::min((piece + 1) * each * group, s.images); image += group) {
      packing.group = std::min(group, s.images - image);
      const int64_t row = s.right * packing.group * wide;  // floats of a packed row of the gradient
      int64_t n = s.down;                                  // rows at a time
      while (n > 1 && ((n - 1) * s.stride_y + s.tall) * packing.row_floats() + n * row > PIXELS / 4) n = ceil_div(n, 2);
      for (int64_t y = 0; y < s.down; y += n) {
        const int64_t end_y = std::min(y + n, s.down);
        const int64_t begin = std::max<int64_t>(0, y * s.stride_y - s.top);
        const int64_t end = std::max(begin, std::min(s.rows, (end_y - 1) * s.stride_y - s.top + s.tall));
        float* packed = scratch<0>((end - begin) * packing.row_floats());
        packing.pack(images, image, begin, end, packed);
        float* g = scratch<1>(n * row);
        for (int64_t r = y; r < end_y; ++r)
          for (int64_t x = 0; x < s.right; ++x)
            for (int64_t k = 0; k < packing.group; ++k) {
              float* to = g + (((r - y) * s.right + x) * packing.group + k) * wide;
              copy(to, gradient + (((image + k) * s.down + r) * s.right + x) * s.out + d, here);
              clear(to + here, wide - here);
            }
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t i = tap / s.wide, j = tap % s.wide;
          const int64_t x0 = std::max<int64_t>(0, ceil_div(s.left - j, s.stride_x));
          const int64_t x1 = std::min(s.right, floor_div(s.columns - 1 + s.left - j, s.stride_x) + 1);
          runs.clear();
          for (int64_t r = y; r < end_y && x0 < x1; ++r) {
            const int64_t from = r * s.stride_y + i - s.top;
            if (from < 0 || from >= s.rows) continue;
            const int64_t column = j % s.stride_x * packing.width + j / s.stride_x + x0;
            runs.push_back({packed + (from - begin) * packing.row_floats() + column * packing.group * in,
                            g + (r - y) * row + x0 * packing.group * wide, (x1 - x0) * packing.group});
          }
          if (runs.empty()) continue;
          float* place = sum + tap * in * wide;
          int64_t to = 0;
          for (; to + 2 * LANES <= wide; to += 2 * LANES)
            products<POSITIONS<2>, 2, LANES>(runs.data(), runs.size(), 0, in, to, wide, place);
          if (to + LANES <= wide)
            products<POSITIONS<1>, 1, LANES>(runs.data(), runs.size(), 0, in, to, wide, place);
          else if (to < wide)
            products<POSITIONS<1>, 1, LANES / 2>(runs.data(), runs.size(), 0, in, to, wide, place);
        }
      }
    }
  });
  parallel(pool, taps * ins, [&](int64_t index) {
    const int64_t tap = index / ins, slice = index % ins, in = std::min(SLICE, s.in - slice * SLICE);
    for (int64_t c = 0; c < in; ++c)
      for (int64_t d = 0; d < s.out; ++d) {
        float total = 0;
        for (int64_t piece = 0; piece < pieces; ++piece)
          total += sums[((piece * ins + slice) * outs + d / SLICE) * floats + (tap * in + c) * wide + d % SLICE];
        out[(tap * s.in + slice * SLICE + c) * s.out + d] = total;
      }
  });
}

// ---- Batch norm ----

// Adds up over positions, for each channel, the K vectors of numbers that `term(read, offset, channel, sum)` adds to
// its sums: out[k][channel]. What it reads, by `read(pointer)`, are vectors of channels; where few are left, of those.
template <int K, int L, typename Term>
void add_up(int64_t positions, int64_t channels, int64_t c, int64_t lanes, const Term& term, float* const (&out)[K]) {
  constexpr int APART = 4;  // sums of positions that are 4 apart: additions need not wait for each other
  alignas(4 * L) Vector<L> sum[APART][K] = {};  // `term` deduces its type, and not that it is less aligned
  auto all = [&](const auto& read) {
    int64_t p = 0;
    for (; p + APART <= positions; p += APART)
#pragma GCC unroll 4
      for (int a = 0; a < APART; ++a) term(read, (p + a) * channels + c, c, sum[a]);
    for (; p < positions; ++p) term(read, p * channels + c, c, sum[0]);
  };
  if (lanes == L) {
    all([](const float* from) { return load<L>(from); });
  } else {
    all([lanes](const float* from) {
      float some[L] = {};
      std::memcpy(some, from, lanes * sizeof(float));
      return load<L>(some);
    });
  }
  for (int k = 0; k < K; ++k) {
    const Vector<L> total = (sum[0][k] + sum[1][k]) + (sum[2][k] + sum[3][k]);
    std::memcpy(out[k] + c, &total, lanes * sizeof(float));
  }
}

template <int K, typename Term>
void add_up(int64_t positions, int64_t channels, const Term& term, float* const (&out)[K]) {
  for (int64_t c = 0, lanes; c < channels; c += lanes) {
    lanes = std::min<int64_t>(LANES, channels - c);
    if (lanes <= LANES / 2)
      add_up<K, LANES / 2>(positions, channels, c, lanes, term, out);
    else
      add_up<K, LANES>(positions, channels, c, lanes, term, out);
  }
}

// [rows, positions, channels] to the mean of each row and channel, and the mean square about it.
void moments(ffi::ThreadPool& pool, int64_t rows, int64_t positions, int64_t channels, const float* images,
             float* means, float* squares) {
  parallel(pool, rows, [&](int64_t row) {
    const float* x = images + row * positions * channels;
    float *mean = means + row * channels, *square = squares + row * channels;
    const float share = 1.0f / positions;
    add_up<1>(positions, channels, [&](const auto& read, int64_t at, int64_t, auto* sum) { sum[0] += read(x + at); },
              {mean});
    for (int64_t c = 0; c < channels; ++c) mean[c] *= share;
    add_up<1>(positions, channels,
              [&](const auto& read, int64_t at, int64_t c, auto* sum) {
                const auto from = read(x + at) - read(mean + c);
                sum[0] += from * from;
              },
              {square});
    for (int64_t c = 0; c < channels; ++c) square[c] *= share;
  });
}

// For each row and channel, the sum of the gradient, and of its product with the images less `centres`. The gradient
// counts where `outputs`, if there are any, are positive: that of a ReLU.
void sums(ffi::ThreadPool& pool, int64_t rows, int64_t positions, int64_t channels, const float* gradients,
          const float* images, const float* centres, const float* outputs, float* plain, float* weighted) {
  parallel(pool, rows, [&](int64_t row) {
    const int64_t first = row * positions * channels;
    const float *g = gradients + first, *x = images + first, *centre = centres + row * channels, *y = outputs + first;
    auto go = [&](auto positive) {
      add_up<2>(positions, channels,
                [&](const auto& read, int64_t at, int64_t c, auto* sum) {
                  auto d = read(g + at);
                  if constexpr (decltype(positive)::value) d = read(y + at) > 0 ? d : decltype(d){};
                  sum[0] += d;
                  sum[1] += d * (read(x + at) - read(centre + c));
                },
                {plain + row * channels, weighted + row * channels});
    };
    outputs ? go(std::true_type()) : go(std::false_type());
  });
}

// ---- Winograd's algorithm, or the kernels above ----

// Multiplications of the kernels above for one dimension of one image: pairs of an output and an input that it reads.
int64_t reads(int64_t inputs, int64_t outputs, int64_t taps, int64_t before) {
  int64_t count = 0;
  for (int64_t i = 0; i < taps; ++i)
    count += std::max<int64_t>(0, std::min(outputs, inputs + before - i) - std::max<int64_t>(0, before - i));
  return count;
}

constexpr int64_t FEWEST = 8;  // channels: with less of them the transforms take longer than they save

// Runs `run(convolution)` where the algorithm takes at most a share of the multiplications, with the larger tiles if they
// take less. Returns whether it did. The choice does not depend on the number of images, so outputs do not either.
template <int L, typename Run>
bool in_tiles(const Shape& s, double share, const Run& run) {
  const winograd::Convolution<4, L> four{s.images, s.rows, s.columns, s.in, s.out, s.down, s.right, s.top, s.left};
  const winograd::Convolution<2, L> two{s.images, s.rows, s.columns, s.in, s.out, s.down, s.right, s.top, s.left};
  const int64_t of_four = four.SQUARE * four.tall() * four.wide(), of_two = two.SQUARE * two.tall() * two.wide();
  const int64_t direct = reads(s.rows, s.down, s.tall, s.top) * reads(s.columns, s.right, s.wide, s.left);
  if constexpr (L == LANES) {
    if (of_two <= of_four && of_two <= share * direct) return run(two), true;
  }
  if (of_four <= share * direct) return run(four), true;
  return false;
}

template <typename Run>
bool by_winograd(const Shape& s, double share, const Run& run) {
  const int64_t fewest = std::min(s.in, s.out);
  if (s.tall != 3 || s.wide != 3 || s.stride_y != 1 || s.stride_x != 1 || fewest < FEWEST) return false;
  return fewest < LANES ? in_tiles<LANES / 2>(s, share, run) : in_tiles<LANES>(s, share, run);
}

void convolve_best(ffi::ThreadPool& pool, const Shape& s, const float* images, const Kernel& kernel, float* out) {
  if (!by_winograd(s, 0.8, [&](const auto& tiled) { winograd::convolve(pool, tiled, images, kernel, out); }))
    convolve(pool, s, images, kernel, out);
}

void image_gradient_best(ffi::ThreadPool& pool, const Shape& s, const float* gradient, const float* numbers,
                         float* out) {
  if (s.stride_y != 1 || s.stride_x != 1) return image_gradient(pool, s, gradient, numbers, out);
  const Shape back = reversed(s);
  const auto run = [&](const auto& tiled) { winograd::convolve(pool, tiled, gradient, {numbers, 1, s.out, true}, out); };
  if (!by_winograd(back, 0.8, run)) image_gradient(pool, s, gradient, numbers, out);
}

void kernel_gradient_best(ffi::ThreadPool& pool, const Shape& s, const float* images, const float* gradient,
                          float* out) {
  if (!by_winograd(s, 1.0, [&](const auto& tiled) { winograd::kernel_gradient(pool, tiled, images, gradient, out); }))
    kernel_gradient(pool, s, images, gradient, out);
}

// ---- XLA's interface ----

using Images = ffi::Buffer<ffi::F32>;
using Out = ffi::ResultBuffer<ffi::F32>;

Shape shape_of(ffi::Span<const int64_t> images, ffi::Span<const int64_t> kernel, ffi::Span<const int64_t> out,
               ffi::Span<const int64_t> strides, ffi::Span<const int64_t> before) {
  return {images[0], images[1], images[2],  images[3],  kernel[0], kernel[1], kernel[3],
          out[1],    out[2],    strides[0], strides[1], before[0], before[1]};
}

using Numbers = ffi::Span<const int64_t>;

ffi::Error Convolve(ffi::ThreadPool pool, Images images, Images kernel, Out out, Numbers strides, Numbers before,
                    bool winograd) {
  (winograd ? convolve_best : convolve)(
      pool, shape_of(images.dimensions(), kernel.dimensions(), out->dimensions(), strides, before), images.typed_data(),
      {kernel.typed_data(), out->dimensions()[3], 1, false}, out->typed_data());
  return ffi::Error::Success();
}

ffi::Error ImageGradient(ffi::ThreadPool pool, Images gradient, Images kernel, Out out, Numbers strides,
                         Numbers before, bool winograd) {
  (winograd ? image_gradient_best : image_gradient)(
      pool, shape_of(out->dimensions(), kernel.dimensions(), gradient.dimensions(), strides, before),
      gradient.typed_data(), kernel.typed_data(), out->typed_data());
  return ffi::Error::Success();
}

ffi::Error KernelGradient(ffi::ThreadPool pool, Images images, Images gradient, Out out, Numbers strides,
                          Numbers before, bool winograd) {
  (winograd ? kernel_gradient_best : kernel_gradient)(
      pool, shape_of(images.dimensions(), out->dimensions(), gradient.dimensions(), strides, before),
      images.typed_data(), gradient.typed_data(), out->typed_data());
  return ffi::Error::Success();
}

ffi::Error Moments(ffi::ThreadPool pool, Images images, Out mean, Out square) {
  const auto n = images.dimensions();
  moments(pool, n[0], n[1], n[2], images.typed_data(), mean->typed_data(), square->typed_data());
  return ffi::Error::Success();
}

ffi::Error Sums(ffi::ThreadPool pool, Images gradient, Images images, Images centre, ffi::RemainingArgs output,
                Out plain, Out weighted) {
  const auto n = images.dimensions();
  const float* outputs = output.size() ? output.get<Images>(0)->typed_data() : nullptr;
  sums(pool, n[0], n[1], n[2], gradient.typed_data(), images.typed_data(), centre.typed_data(), outputs,
       plain->typed_data(), weighted->typed_data());
  return ffi::Error::Success();
}

}  // namespace

#define OF_TWO()                \
  ffi::Ffi::Bind()              \
      .Ctx<ffi::ThreadPool>()   \
      .Arg<Images>()            \
      .Arg<Images>()            \
      .Ret<Images>()            \
      .Attr<Numbers>("strides") \
      .Attr<Numbers>("before")  \
      .Attr<bool>("winograd")
XLA_FFI_DEFINE_HANDLER_SYMBOL(contrastive_convolve, Convolve, OF_TWO());
XLA_FFI_DEFINE_HANDLER_SYMBOL(contrastive_image_gradient, ImageGradient, OF_TWO());
XLA_FFI_DEFINE_HANDLER_SYMBOL(contrastive_kernel_gradient, KernelGradient, OF_TWO());
XLA_FFI_DEFINE_HANDLER_SYMBOL(contrastive_moments, Moments,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Images>().Ret<Images>().Ret<Images>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(contrastive_sums, Sums,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Images>()
                                  .Arg<Images>()
                                  .Arg<Images>()
                                  .RemainingArgs()
                                  .Ret<Images>()
                                  .Ret<Images>());
