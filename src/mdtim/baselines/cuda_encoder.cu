// Transformer layers along an axis, for residual layers of diffusion models.
//
// mdtim/baselines/cuda_layers.py packs the weights, compiles and launches this. A multiprocessor
// runs one program, which brings all weights into shared memory and stays. A warp takes 16 to 64
// rows, which are whole sequences, from the first product to the last: what it knows of them stays
// in registers, and no warp waits for another.
//
// Compile-time constants, beside those of cuda_states.cuh:
//   HEADS    attention heads, WIDTH channels of each: 8, 16 or 32
//   HIDDEN   channels between the last two products, a multiple of 32
//   LENGTH   rows of a sequence
//   TILES    tiles of 16 rows that a warp takes, PACKED sequences in them
//   VIEWS    views of a guide that a layer attends to; 0 without a guide
//   SHARED   1 if what rows attend to finds room in shared memory, too

#define HALF 1
#include "gpu/cuda_halves.cuh"
#include "gpu/cuda_products.cuh"
#include "baselines/cuda_states.cuh"

constexpr int ROWS = 16 * TILES;
constexpr int AT_ONCE = WIDTH < 16 ? 16 / WIDTH : 1;  // heads
constexpr int PART = AT_ONCE * WIDTH;                 // their channels
constexpr int KEYS = 2 * TILES;                       // tiles of 8
constexpr float NOTHING = -1e30f;                     // no score: its exponential is 0
constexpr u32 ONES = 0x3c003c00;                      // two of them

__device__ __forceinline__ void store_row(u16* row, const float (&z)[COLUMNS][4], int half) {
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    u32 word[4];
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const float* sums = z[4 * group + part];
      word[part] = pack(sums[2 * half], sums[2 * half + 1]);
    }
    *(uint4*)(row + 32 * group + 8 * (lane_of() % 4)) =
        make_uint4(word[0], word[1], word[2], word[3]);
  }
}

// Sums as the left factor of another product.
template <int STEPS_OF_IT>
__device__ __forceinline__ void to_factor(u32 (&x)[STEPS_OF_IT][4],
                                          const float (&z)[2 * STEPS_OF_IT][4]) {
#pragma unroll
  for (int step = 0; step < STEPS_OF_IT; step++)
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const float* sums = z[2 * step + part / 2];
      x[step][part] = pack(sums[2 * (part % 2)], sums[2 * (part % 2) + 1]);
    }
}

// z += a vector, the same for every row
__device__ __forceinline__ void add(float (&z)[COLUMNS][4], const float* vector) {
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    float x[8];
    load_eight(x, vector, group);
#pragma unroll
    for (int part = 0; part < 4; part++)
#pragma unroll
      for (int place = 0; place < 4; place++)
        z[4 * group + part][place] += x[2 * part + place % 2];
  }
}

__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float highest_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ void normalize(float (&z)[COLUMNS][4], const float* weight,
                                          const float* bias) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float mean = 0, square = 0;
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
      mean += z[column][2 * half] + z[column][2 * half + 1];
    mean = sum_of_four(mean) / C;
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
      for (int place = 2 * half; place < 2 * half + 2; place++) {
        z[column][place] -= mean;
        square += z[column][place] * z[column][place];
      }
    const float scale = rsqrtf(sum_of_four(square) / C + 1e-5f);
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
      z[column][2 * half] *= scale, z[column][2 * half + 1] *= scale;
  }
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    float scale[8], shift[8];
    load_eight(scale, weight, group);
    load_eight(shift, bias, group);
#pragma unroll
    for (int part = 0; part < 4; part++)
#pragma unroll
      for (int place = 0; place < 4; place++) {
        const int channel = 2 * part + place % 2;
        float& x = z[4 * group + part][place];
        x = x * scale[channel] + shift[channel];
      }
  }
}

// Abramowitz and Stegun's 7.1.25 for the error function: right to 3e-5, halves have 5e-4.
__device__ __forceinline__ float gelu(float x) {
  const float t = inverse_of(1 + (0.47047f * ROOT_HALF) * fabsf(x));
  const float tail = t * (0.1740121f + t * (-0.0479399f + 0.3739278f * t));
  return fmaxf(x, 0) - fabsf(x) * tail * exp2_of(-0.72134752f * x * x);
}

// z += (two neighbouring steps of a left factor) w, a group of rows of a packed weight that has
// `groups` of them
__device__ __forceinline__ void multiply_group(float (&z)[COLUMNS][4], const u32 (&a)[2][4],
                                               const uint4* weight, int group, int groups) {
#pragma unroll
  for (int column = 0; column < COLUMNS; column++) {
    const uint4 b = weight[32 * (column * groups + group) + lane_of()];
    multiply(z[column], a[0], b.x, b.y);
    multiply(z[column], a[1], b.z, b.w);
  }
}

// What a tile's rows attend to, as weights of keys in half precision, and the inverses of their
// sums: exponentials to the base of two over those of the row's highest. A row sees the keys of its
// own sequence, in every view.
template <int N>
__device__ __forceinline__ void weigh(u32 (&weight)[N / 2][4], float (&inverse)[2],
                                      float (&score)[N][4], int tile) {
  const int g = lane_of() / 4, t = lane_of() % 4;
  if (ROWS != LENGTH)
#pragma unroll
    for (int keys = 0; keys < N; keys++)
#pragma unroll
      for (int place = 0; place < 4; place++) {
        const int key = 8 * (keys % KEYS) + 2 * t + place % 2;
        const int row = 16 * tile + g + 8 * (place / 2);
        if (key / LENGTH != row / LENGTH) score[keys][place] = NOTHING;
      }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float highest = NOTHING;
#pragma unroll
    for (int keys = 0; keys < N; keys++)
      highest = fmaxf(highest, fmaxf(score[keys][2 * half], score[keys][2 * half + 1]));
    highest = highest_of_four(highest);
#pragma unroll
    for (int keys = 0; keys < N; keys++)
      weight[keys / 2][2 * (keys % 2) + half] =
          pack(exp2_of(score[keys][2 * half] - highest), exp2_of(score[keys][2 * half + 1] - highest));
  }
  // Products with ones: the tensor cores have more time left than what adds.
  float sum[4] = {};
#pragma unroll
  for (int step = 0; step < N / 2; step++) multiply(sum, weight[step], ONES, ONES);
  inverse[0] = inverse_of(sum[0]), inverse[1] = inverse_of(sum[2]);
}

// Sums of a head's rows over their weights, as halves of left factors.
__device__ __forceinline__ uint2 weighted(const float (&sum)[4], const float (&inverse)[2]) {
  return make_uint2(pack(sum[0] * inverse[0], sum[1] * inverse[0]),
                    pack(sum[2] * inverse[1], sum[3] * inverse[1]));
}

// z += x w, a left factor in memory, step by step
__device__ __forceinline__ void multiply_stored(float (&z)[COLUMNS][4], const uint4* x,
                                                const uint4* weight) {
#pragma unroll 1
  for (int group = 0; group < GROUPS; group++) {
    const uint4 low = x[64 * group + lane_of()], high = x[64 * group + 32 + lane_of()];
    const u32 both[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
    multiply_group(z, both, weight, group, GROUPS);
  }
}

// Places of the weights, in numbers from the first.
constexpr int QKV = 0, OUT = QKV + 3 * C * C, IN = OUT + C * C, DOWN = IN + C * HIDDEN,
              LOOK = DOWN + C * HIDDEN, LOOK_OUT = LOOK + (VIEWS ? C * C : 0),
              WEIGHTS = LOOK_OUT + (VIEWS ? C * C : 0);
// Places of the vectors.
constexpr int QKV_BIAS = 0, OUT_BIAS = QKV_BIAS + 3 * C, NORM1 = OUT_BIAS + C,
              IN_BIAS = NORM1 + 2 * C, DOWN_BIAS = IN_BIAS + HIDDEN, NORM2 = DOWN_BIAS + C,
              LOOK_BIAS = NORM2 + 2 * C, LOOK_OUT_BIAS = LOOK_BIAS + (VIEWS ? C : 0),
              LOOK_NORM = LOOK_OUT_BIAS + (VIEWS ? C : 0),
              VECTORS = LOOK_NORM + (VIEWS ? 2 * C : 0);

__device__ __forceinline__ const uint4* weight_at(int place) { return shared + place / 8; }

__device__ __forceinline__ const float* vector_at(int place) {
  return (const float*)(shared + WEIGHTS / 8) + place;
}

// What a tile's rows attend to in each other, as left factors.
__device__ __forceinline__ void attend(uint2* out, const u32 (&x)[TILES][STEPS][4]) {
  constexpr int NARROW = PART / 8;
  const int lane = lane_of(), t = lane % 4;
#pragma unroll 1
  for (int heads = 0; heads < HEADS / AT_ONCE; heads++) {
    const uint4* weight = weight_at(QKV) + heads * 3 * NARROW * GROUPS * 32;
    const float* bias = vector_at(QKV_BIAS) + heads * 3 * PART;
    u32 q[TILES][NARROW][2], k[TILES][NARROW][2], v[TILES][NARROW][2];
#pragma unroll
    for (int which = 0; which < 3; which++)
#pragma unroll
      for (int column = 0; column < NARROW; column++) {
        const float2 shift = *(const float2*)(bias + which * PART + 8 * column + 2 * t);
        float sum[TILES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
          sum[tile][0] = sum[tile][2] = shift.x, sum[tile][1] = sum[tile][3] = shift.y;
        multiply_column(sum, x, weight + (which * NARROW + column) * GROUPS * 32);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const u32 two = pack(sum[tile][2 * half], sum[tile][2 * half + 1]);
            if (which == 0) q[tile][column][half] = two;
            if (which == 1) k[tile][column][half] = two;
            if (which == 2) v[tile][column][half] = transposed(two);
          }
      }
#pragma unroll
    for (int head = 0; head < AT_ONCE; head++)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        float score[KEYS][4] = {}, inverse[2];
        u32 weight[TILES][4];
#pragma unroll
        for (int keys = 0; keys < KEYS; keys++) {
          const int half = keys % 2;
          if constexpr (WIDTH == 8)
            multiply_narrow(score[keys], q[tile][head][0], q[tile][head][1],
                            k[keys / 2][head][half]);
          else
#pragma unroll
            for (int column = 0; column < NARROW; column += 2) {
              const u32(&left)[2] = q[tile][column], (&right)[2] = q[tile][column + 1];
              const u32 query[4] = {left[0], left[1], right[0], right[1]};
              multiply(score[keys], query, k[keys / 2][column][half],
                       k[keys / 2][column + 1][half]);
            }
        }
        weigh(weight, inverse, score, tile);
#pragma unroll
        for (int column = 0; column < WIDTH / 8; column++) {
          const int channels = head * WIDTH / 8 + column;
          float sum[4] = {};
#pragma unroll
          for (int step = 0; step < TILES; step++)
            multiply(sum, weight[step], v[step][channels][0], v[step][channels][1]);
          const int place = heads * NARROW + channels;
          out[2 * ((tile * STEPS + place / 2) * 32 + lane) + place % 2] = weighted(sum, inverse);
        }
      }
  }
}

#if VIEWS
// z += what a tile's rows attend to in the guide of their sequences, kept in `seen` meanwhile
__device__ __forceinline__ void look(float (&z)[COLUMNS][4], const uint4* __restrict__ guide,
                                     uint4* seen, int tile) {
  static_assert(WIDTH == 8, "keys and values of a guide lie in one word");
  const int lane = lane_of();
  u32 x[1][STEPS][4];
  {
    float normed[COLUMNS][4];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
      for (int place = 0; place < 4; place++) normed[column][place] = z[column][place];
    normalize(normed, vector_at(LOOK_NORM), vector_at(LOOK_NORM + C));
    to_factor(x[0], normed);
  }
  constexpr int LOOKS = VIEWS * TILES;
  uint4 both[LOOKS];  // keys and values; those of the next head come while this one is weighed
  guide += lane;
#pragma unroll
  for (int step = 0; step < LOOKS; step++) both[step] = __ldg(guide + 32 * step);
#pragma unroll 2
  for (int head = 0; head < HEADS; head++) {
    const float2 shift = *(const float2*)(vector_at(LOOK_BIAS) + 8 * head + 2 * (lane % 4));
    float query[1][4] = {{shift.x, shift.y, shift.x, shift.y}};
    multiply_column(query, x, weight_at(LOOK) + head * GROUPS * 32);
    const u32 upper = pack(query[0][0], query[0][1]), lower = pack(query[0][2], query[0][3]);
    float score[2 * LOOKS][4] = {}, inverse[2], sum[4] = {};
    uint2 value[LOOKS];
    guide += head + 1 < HEADS ? 32 * LOOKS : 0;
#pragma unroll
    for (int step = 0; step < LOOKS; step++) {
      multiply_narrow(score[2 * step], upper, lower, both[step].x);
      multiply_narrow(score[2 * step + 1], upper, lower, both[step].y);
      value[step] = make_uint2(both[step].z, both[step].w);
      both[step] = __ldg(guide + 32 * step);
    }
    u32 weight[LOOKS][4];
    weigh(weight, inverse, score, tile);
#pragma unroll
    for (int step = 0; step < LOOKS; step++)
      multiply(sum, weight[step], value[step].x, value[step].y);
    ((uint2*)seen)[2 * (head / 2 * 32 + lane) + head % 2] = weighted(sum, inverse);
  }
  __syncwarp();
  add(z, vector_at(LOOK_OUT_BIAS));
  multiply_stored(z, seen, weight_at(LOOK_OUT));
}
#endif

// The states of a tile of rows, with the level added.
__device__ __forceinline__ void load_tile(u32 (&states)[STEPS][4], const u16* __restrict__ x,
                                          const u16* __restrict__ level, const int (&place)[2]) {
#pragma unroll
  for (int step = 0; step < STEPS; step++)
#pragma unroll
    for (int part = 0; part < 4; part++) states[step][part] = 0;
#pragma unroll
  for (int half = 0; half < 2; half++)
    if (place[half] >= 0) load_row(states, half, x + (long long)place[half] * C);
#pragma unroll
  for (int step = 0; step < STEPS; step++)
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const u16* words = level + 32 * (step / 2) + 8 * (lane_of() % 4) + 4 * (step % 2) + 2 * part;
      const u32 shift = level ? __ldg((const u32*)words) : 0;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32& word = states[step][2 * part + half];
        word = add_pairs(word, shift);
      }
    }
}

// The rows of a warp, which are the sequences of a window from `first` on.
__device__ __forceinline__ void encode_tile(const u16* __restrict__ x, u16* __restrict__ y,
                                            const u16* __restrict__ level,
                                            const uint4* __restrict__ guide, uint4* seen,
                                            int window, int first, int cells, int sequences,
                                            int stride, int sequence_stride) {
  const int lane = lane_of();
  const auto find = [&](int (&place)[2], int tile) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = 16 * tile + 8 * half + lane / 4;
      const int sequence = first + row / LENGTH;
      const bool valid = row < PACKED * LENGTH && sequence < sequences;
      const int cell = window * cells + sequence * sequence_stride + row % LENGTH * stride;
      place[half] = valid ? cell : -1;
    }
  };
  int place[2];
  {
    u32 states[TILES][STEPS][4];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      find(place, tile);
      load_tile(states[tile], x, level, place);
    }
    __syncwarp();  // the rows before these are done
    attend((uint2*)seen, states);
    __syncwarp();
  }
  // Code that is not repeated would have to be fetched again for every tile.
#pragma unroll 1
  for (int tile = 0; tile < TILES; tile++, seen += STEPS * 32) {
    float z[COLUMNS][4];
    u32 factor[1][STEPS][4];
    find(place, tile);
    load_tile(factor[0], x, level, place);
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 two = unpack(factor[0][column / 2][2 * (column % 2) + half]);
        z[column][2 * half] = two.x, z[column][2 * half + 1] = two.y;
      }
    add(z, vector_at(OUT_BIAS));
    multiply_stored(z, seen, weight_at(OUT));
    normalize(z, vector_at(NORM1), vector_at(NORM1 + C));
    to_factor(factor[0], z);
    add(z, vector_at(DOWN_BIAS));
#pragma unroll 1
    for (int group = 0; group < HIDDEN / 32; group++) {
      float wide[4][4];
#pragma unroll
      for (int part = 0; part < 4; part++) {
        const int column = 4 * group + part;
        const float2 shift = *(const float2*)(vector_at(IN_BIAS) + 8 * column + 2 * (lane % 4));
        float sum[1][4] = {{shift.x, shift.y, shift.x, shift.y}};
        multiply_column(sum, factor, weight_at(IN) + column * GROUPS * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
          wide[part][i] = gelu(sum[0][i]);
      }
      u32 both[2][4];
      to_factor(both, wide);
      multiply_group(z, both, weight_at(DOWN), group, HIDDEN / 32);
    }
    normalize(z, vector_at(NORM2), vector_at(NORM2 + C));
#if VIEWS
    look(z, guide, seen, tile);
#endif
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (place[half] >= 0) store_row(y + (long long)place[half] * C, z, half);
  }
}

// A transformer layer along an axis of states (windows, cells, C), from `x` to `y`.
//   level      added to every row of `x`, if given
//   scratch    without SHARED, what the rows of each warp attend to
//   samples    of each window that `guide` tells of, which has (windows / samples, tiles) tiles
//   cells, sequences  of a window
//   stride, sequence_stride  cells from a position to the next, from a sequence to the next
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    encode(const u16* __restrict__ x, u16* __restrict__ y, const u16* __restrict__ level,
           const uint4* __restrict__ weights, const uint4* __restrict__ vectors,
           const uint4* __restrict__ guide, uint4* scratch, int windows, int samples, int cells,
           int sequences, int stride, int sequence_stride) {
  bring(shared, weights, WEIGHTS / 8);
  bring(shared + WEIGHTS / 8, vectors, VECTORS / 4);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const int tiles = (sequences + PACKED - 1) / PACKED;
  constexpr int SEEN = TILES * STEPS * 32;
  uint4* seen = SHARED ? shared + WEIGHTS / 8 + VECTORS / 4 + warp * SEEN
                       : scratch + (blockIdx.x * WARPS + warp) * SEEN;
  for (int work = blockIdx.x * WARPS + warp; work < windows * tiles; work += gridDim.x * WARPS) {
    // Samples of a window side by side: they look at the same guide.
    const int told = work / samples;
    encode_tile(x, y, level, guide + (long long)told * (HEADS * VIEWS * TILES * 32), seen,
                told / tiles * samples + work % samples, told % tiles * PACKED, cells, sequences,
                stride, sequence_stride);
  }
}
