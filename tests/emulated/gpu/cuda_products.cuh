// What the lanes of a warp do together, as src/mdtim/gpu/cuda_products.cuh says it, on a CPU.

inline float exp2_of(float x) { return x < -126 ? 0 : exp2f(x); }

inline float inverse_of(float x) { return 1 / x; }

inline float half_of(u32 both, int which) {
  const float2 two = unpack(both);
  return which ? two.y : two.x;
}

// sum (16 x 8) += a (16 x 8 * STEPS) b (8 * STEPS x 8); a lane shows its words of a, then of b.
template <int STEPS>
void multiply_tiles(float (&sum)[4], const u32 (&words)[3 * STEPS]) {
  const Shown shown(words);
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; i++) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (int k = 0; k < 8 * STEPS; k++) {
      const u32 a = shown.of(row % 8 * 4 + k % 8 / 2)[2 * (k / 8) + row / 8];
      const u32 b = shown.of(column * 4 + k % 8 / 2)[2 * STEPS + k / 8];
      sum[i] += half_of(a, k % 2) * half_of(b, k % 2);
    }
  }
}

inline void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_tiles<2>(sum, {a[0], a[1], a[2], a[3], b0, b1});
}

inline void multiply_narrow(float (&sum)[4], u32 a0, u32 a1, u32 b) {
  multiply_tiles<1>(sum, {a0, a1, b});
}

inline u32 add_pairs(u32 a, u32 b) {
  const float2 x = unpack(a), y = unpack(b);
  return pack(x.x + y.x, x.y + y.y);
}

inline u32 transposed(u32 block) {
  const Shown shown({block});
  const int g = lane() / 4, t = lane() % 4;
  const auto at = [&](int row) { return half_of(shown.of(row * 4 + g / 2)[0], g % 2); };
  return pack(at(2 * t), at(2 * t + 1));
}
