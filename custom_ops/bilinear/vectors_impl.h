// Vectors of LANES floats, and the product of panels. Included by
// passes_impl.h, once for each instruction set: no include guard.

typedef float Vector
    __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr int64_t kLanes = LANES;
constexpr int64_t kPanel = 2 * LANES;
constexpr int64_t kRows = ROWS;  // of a product held in registers

inline Vector Load(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}

inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }

inline Vector LoadPart(const float* p, int64_t count) {
  Vector v = {};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}

inline void StorePart(float* p, Vector v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// c[i, :] (+)= sum over k of a[i * row + k * column] * b[k, :], for R rows and
// one panel. All R x 2 sums stay in registers.
template <int R>
void Block(int64_t depth, const float* a, int64_t row, int64_t column,
           const float* b, float* c, int64_t c_row, bool add) {
  Vector sum[R][2];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    sum[i][0] = add ? Load(c + i * c_row) : Vector{};
    sum[i][1] = add ? Load(c + i * c_row + kLanes) : Vector{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const Vector b0 = Load(b), b1 = Load(b + kLanes);
    // The panel comes from afar, and the processor's own guesses are late.
    __builtin_prefetch(b + 16 * kPanel);
    __builtin_prefetch(b + 16 * kPanel + kLanes);
    b += kPanel;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const float factor = a[i * row];
      sum[i][0] += factor * b0;
      sum[i][1] += factor * b1;
    }
    a += column;
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    Store(c + i * c_row, sum[i][0]);
    Store(c + i * c_row + kLanes, sum[i][1]);
  }
}

typedef void (*BlockFunction)(int64_t, const float*, int64_t, int64_t,
                              const float*, float*, int64_t, bool);

inline BlockFunction BlockOf(int64_t rows) {
  static constexpr BlockFunction kBlocks[] = {
      Block<1>,  Block<2>,  Block<3>,  Block<4>,  Block<5>,
      Block<6>,
#if ROWS > 6
      Block<7>,  Block<8>,  Block<9>,  Block<10>, Block<11>,
      Block<12>, Block<13>, Block<14>,
#endif
  };
  return kBlocks[rows - 1];
}

// Rows in groups as equal as can be: a last group of one row would leave most
// of the processor idle.
inline int64_t RowsPerGroup(int64_t rows) {
  const int64_t groups = (rows + kRows - 1) / kRows;
  return (rows + groups - 1) / groups;
}

// All rows and panels of a product; panels of `b` are `b_rows` apart. Rows go
// in bands, and a panel in parts that stay in the nearest cache while the rows
// of a band pass by.
inline void Multiply(int64_t rows, int64_t panels, int64_t depth,
                     const float* a, int64_t row, int64_t column,
                     const float* b, int64_t b_rows, float* c, int64_t c_row,
                     bool add) {
  constexpr int64_t kPart = 224;
  const int64_t parts = Max(1, (depth + kPart - 1) / kPart);
  const int64_t part = (depth + parts - 1) / parts;
  const int64_t group = RowsPerGroup(rows);
  const int64_t band = 4 * group;
  for (int64_t first = 0; first < rows; first += band) {
    const int64_t last = Min(first + band, rows);
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (int64_t k = 0; k < depth; k += part) {
        for (int64_t r = first; r < last; r += group) {
          BlockOf(Min(group, last - r))(
              Min(part, depth - k), a + r * row + k * column, row, column,
              b + (panel * b_rows + k) * kPanel,
              c + r * c_row + panel * kPanel, c_row, add || k > 0);
        }
      }
    }
  }
}
