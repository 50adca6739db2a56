// Attention over many short sequences with heads of 16 channels, and its derivative.
//
// mdtim/cuda_attention.py compiles and launches this, mdtim/kernels.py defines what it computes.
// A program brings some heads of its sequences into shared memory, in lines of up to 256 bytes,
// and each of its warps attends one head of one sequence at a time. Results take the place of what
// they were made from, and leave in the same lines: memory is read and written once.
//
// Compile-time constants:
//   HALF    1 for float16, 0 for bfloat16
//   TILES   tiles of 16 rows that hold a sequence, or several packed ones
//   PACKED  1 if several sequences share a tile
//   GROUPS  groups of TILES tiles that a program takes
//   HEADS   heads that a program takes, a power of two, of NUM_HEADS
//   ROPE    1 to rotate queries and keys
//   PROGRAMS  programs that shall fit a multiprocessor
//
// Fragments are those of cuda_products.cuh.

#include "gpu/cuda_halves.cuh"
#include "gpu/cuda_products.cuh"

typedef long long i64;

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16 * TILES;
constexpr int PROGRAM_ROWS = GROUPS * ROWS;
constexpr int WIDTH = 16 * NUM_HEADS;
constexpr int CHUNKS = 2 * HEADS;  // of 16 bytes, in a row of q, k or v
constexpr int ROWS_AT_ONCE = THREADS / CHUNKS;
// An odd number of chunks: eight rows below each other then lie in different banks.
constexpr int PITCH = 16 * (CHUNKS + 1);
constexpr int PART = PROGRAM_ROWS * PITCH;  // bytes of q, k, v or a gradient
constexpr float SCALE = 0.25f;              // 1 / sqrt(16)
constexpr float LOG2_SCALE = SCALE * 1.4426950408889634f;
constexpr float NOTHING = -1e30f;  // no score: its exponential is 0
constexpr u32 ONES = HALF ? 0x3C003C00u : 0x3F803F80u;

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A tile of 16 x 16 halves. As a right factor it stands for its transpose: x[0], x[2] are the
// columns of the product that belong to its upper rows, x[1], x[3] those of its lower ones.
__device__ __forceinline__ void load(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

// The same for a right factor as it is: x[0], x[1] are its left columns, x[2], x[3] its right ones.
__device__ __forceinline__ void load_across(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

// A tile of sums, as halves, to where this lane's first word of the tile lies.
__device__ __forceinline__ void store_tile(u32 address, const float (&x)[2][4]) {
  store_word(address, pack(x[0][0], x[0][1]));
  store_word(address + 8 * PITCH, pack(x[0][2], x[0][3]));
  store_word(address + 16, pack(x[1][0], x[1][1]));
  store_word(address + 8 * PITCH + 16, pack(x[1][2], x[1][3]));
}

__device__ __forceinline__ void fetch_chunk(u32 to, const u16 *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

struct Launch {
  int num_sequences, length, stride, sequences;

  __device__ int first_group() const { return blockIdx.x / (NUM_HEADS / HEADS) * GROUPS; }
};

// The first channel of q that a program takes.
__device__ __forceinline__ int first_column() {
  return blockIdx.x % (NUM_HEADS / HEADS) * HEADS * 16;
}

// Which row of the tensors each row of the program is; -1 for none.
__device__ __forceinline__ void locate(i64 *at, const Launch &launch) {
  for (int row = threadIdx.x; row < PROGRAM_ROWS; row += THREADS) {
    int within = row % ROWS;
    int member = PACKED ? within / launch.length : 0;
    int position = within - member * launch.length;
    int sequence = (launch.first_group() + row / ROWS) * launch.sequences + member;
    bool is_there = member < launch.sequences && position < launch.length &&
                    sequence < launch.num_sequences;
    i64 start = (i64)(sequence / launch.stride) * launch.length * launch.stride;
    at[row] = is_there ? start + sequence % launch.stride + (i64)position * launch.stride : -1;
  }
  __syncthreads();
}

// Bring q, k and v, and a gradient if there is one; what is not there is filled with zeros.
__device__ __forceinline__ void fetch(u32 shared, const u16 *qkv, const u16 *grad, const i64 *at) {
  const int chunk = threadIdx.x % CHUNKS, column = first_column() + chunk * 8;
#pragma unroll
  for (int first = 0; first < PROGRAM_ROWS; first += ROWS_AT_ONCE) {
    const int row = first + threadIdx.x / CHUNKS;
    if (PROGRAM_ROWS % ROWS_AT_ONCE && row >= PROGRAM_ROWS) break;
    const i64 there = at[row];
    const i64 known = there < 0 ? 0 : there;
    const int bytes = there < 0 ? 0 : 16;
    const u32 to = shared + row * PITCH + chunk * 16;
#pragma unroll
    for (int part = 0; part < 3; part++)
      fetch_chunk(to + part * PART, qkv + known * (3 * WIDTH) + part * WIDTH + column, bytes);
    if (grad) fetch_chunk(to + 3 * PART, grad + known * WIDTH + column, bytes);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void await_fetched() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
}

// Take parts to a tensor whose rows have them side by side.
template <int PARTS>
__device__ __forceinline__ void write(u16 *to, const char *shared, const i64 *at) {
  const int chunk = threadIdx.x % CHUNKS, column = first_column() + chunk * 8;
#pragma unroll
  for (int first = 0; first < PROGRAM_ROWS; first += ROWS_AT_ONCE) {
    const int row = first + threadIdx.x / CHUNKS;
    if (PROGRAM_ROWS % ROWS_AT_ONCE && row >= PROGRAM_ROWS) break;
    const i64 there = at[row];
    if (there < 0) continue;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      *(uint4 *)(to + there * (PARTS * WIDTH) + part * WIDTH + column) =
          *(const uint4 *)(shared + part * PART + row * PITCH + chunk * 16);
  }
}

// What a lane knows of its places in a tile.
struct Lane {
  int row, column;  // g and 2t
  u32 whole;        // bytes to the row that it hands ldmatrix
  u32 word;         // bytes to its own first word
  u32 seen;         // PACKED: which of its eight scores are of one sequence
  int length;

  __device__ __forceinline__ explicit Lane(int length) : length(length) {
    int lane = threadIdx.x % 32;
    row = lane / 4;
    column = lane % 4 * 2;
    whole = lane % 16 * PITCH + lane / 16 * 16;
    word = row * PITCH + column * 2;
    seen = 0;
    if (PACKED)
      for (int i = 0; i < 8; i++) {
        int query = row + i % 4 / 2 * 8, key = i / 4 * 8 + column + i % 2;
        seen |= (query / length == key / length ? 1u : 0u) << i;
      }
  }

  __device__ int position(int row) const {
    return PACKED ? row % length : row < length ? row : length - 1;
  }
};

struct Turn {
  float2 cos[2], sin[2];  // of rows g and g + 8

  __device__ Turn(const float *table, int tile, const Lane &lane) {
#if ROPE
    for (int i = 0; i < 2; i++) {
      const float *at = table + lane.position(16 * tile + lane.row + 8 * i) * 16 + lane.column;
      cos[i] = __ldg((const float2 *)at);
      sin[i] = __ldg((const float2 *)(at + 8));
    }
#endif
  }

  __device__ __forceinline__ void rotate(u32 (&x)[4]) const {
#if ROPE
    for (int i = 0; i < 2; i++) {
      float2 a = unpack(x[i]), b = unpack(x[i + 2]);
      x[i] = pack(a.x * cos[i].x - b.x * sin[i].x, a.y * cos[i].y - b.y * sin[i].y);
      x[i + 2] = pack(b.x * cos[i].x + a.x * sin[i].x, b.y * cos[i].y + a.y * sin[i].y);
    }
#endif
  }

  __device__ __forceinline__ void rotate_back(float (&x)[2][4]) const {
#if ROPE
    for (int i = 0; i < 4; i++) {
      float c = i % 2 ? cos[i / 2].y : cos[i / 2].x, s = i % 2 ? sin[i / 2].y : sin[i / 2].x;
      float a = x[0][i], b = x[1][i];
      x[0][i] = a * c + b * s;
      x[1][i] = b * c - a * s;
    }
#endif
  }
};

__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float maximum_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Turn a tile's scores into probabilities but for a factor of each row.
__device__ __forceinline__ void exponentiate(float (&s)[2 * TILES][4], const Lane &lane) {
  if (PACKED) {
    for (int i = 0; i < 8; i++)
      if (!(lane.seen >> i & 1)) s[i / 4][i % 4] = NOTHING;
  } else if (lane.length < ROWS) {
    for (int j = 2 * TILES - 2; j < 2 * TILES; j++)
      for (int i = 0; i < 4; i++)
        if (8 * j + lane.column + i % 2 >= lane.length) s[j][i] = NOTHING;
  }
  for (int half = 0; half < 2; half++) {
    float most = NOTHING;
    for (int j = 0; j < 2 * TILES; j++)
      most = fmaxf(most, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
    most = maximum_of_row(most) * LOG2_SCALE;
    for (int j = 0; j < 2 * TILES; j++)
      for (int i = 2 * half; i < 2 * half + 2; i++)
        s[j][i] = exp2_of(s[j][i] * LOG2_SCALE - most);
  }
}

// Two neighbouring tiles of scores as the left factor of a product.
__device__ __forceinline__ void as_factor(u32 (&x)[4], const float (&a)[4], const float (&b)[4]) {
  x[0] = pack(a[0], a[1]);
  x[1] = pack(a[2], a[3]);
  x[2] = pack(b[0], b[1]);
  x[3] = pack(b[2], b[3]);
}

__device__ __forceinline__ void scale_rows(float (&x)[2][4], float upper, float lower) {
  for (int i = 0; i < 8; i++) x[i / 4][i % 4] *= i % 4 < 2 ? upper : lower;
}

// sum (16 x 16) += the transpose of a tile, times another.
__device__ __forceinline__ void multiply_transposed(float (&sum)[2][4], const u32 (&x)[4],
                                                    const u32 (&across)[4]) {
  const u32 left[4] = {transposed(x[0]), transposed(x[2]), transposed(x[1]), transposed(x[3])};
  multiply(sum[0], left, across[0], across[1]);
  multiply(sum[1], left, across[2], across[3]);
}

__device__ __forceinline__ u32 address_of(const char *shared) {
  return (u32)__cvta_generic_to_shared(shared);
}

// Where q (and by further PARTs k, v and a gradient) of a warp's next head lie.
__device__ __forceinline__ u32 head_at(u32 shared, int unit) {
  return shared + unit / HEADS * ROWS * PITCH + unit % HEADS * 32;
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS)
    attend(const u16 *qkv, const float *table, u16 *out, int num_sequences, int length, int stride,
           int sequences) {
  extern __shared__ __align__(16) char shared[];
  __shared__ i64 at[PROGRAM_ROWS];
  const u32 begin = address_of(shared);
  locate(at, {num_sequences, length, stride, sequences});
  fetch(begin, qkv, nullptr, at);
  const Lane lane(length);
  await_fetched();

  for (int unit = threadIdx.x / 32; unit < GROUPS * HEADS; unit += WARPS) {
    const u32 q_at = head_at(begin, unit), k_at = q_at + PART, v_at = k_at + PART;
    u32 q[TILES][4], k[TILES][4], v[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      load(q[i], q_at + 16 * i * PITCH + lane.whole);
      load(k[i], k_at + 16 * i * PITCH + lane.whole);
      load_across(v[i], v_at + 16 * i * PITCH + lane.whole);
      const Turn turn(table, i, lane);
      turn.rotate(q[i]);
      turn.rotate(k[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      float p[2 * TILES][4] = {}, o[2][4] = {}, sum[4] = {};
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        multiply(p[2 * j], q[i], k[j][0], k[j][2]);
        multiply(p[2 * j + 1], q[i], k[j][1], k[j][3]);
      }
      exponentiate(p, lane);
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        u32 left[4];
        as_factor(left, p[2 * j], p[2 * j + 1]);
        multiply(o[0], left, v[j][0], v[j][1]);
        multiply(o[1], left, v[j][2], v[j][3]);
        multiply(sum, left, ONES, ONES);
      }
      scale_rows(o, reciprocal(sum[0]), reciprocal(sum[2]));
      store_tile(q_at + 16 * i * PITCH + lane.word, o);
    }
  }
  __syncthreads();
  write<1>(out, shared, at);
}

// `out`, if given, gets the attention's output once more.
extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS)
    attend_backward(const u16 *qkv, const float *table, const u16 *grad, u16 *dqkv, u16 *out,
                    int num_sequences, int length, int stride, int sequences) {
  extern __shared__ __align__(16) char shared[];
  __shared__ i64 at[PROGRAM_ROWS];
  const u32 begin = address_of(shared);
  locate(at, {num_sequences, length, stride, sequences});
  fetch(begin, qkv, grad, at);
  const Lane lane(length);
  await_fetched();

  for (int unit = threadIdx.x / 32; unit < GROUPS * HEADS; unit += WARPS) {
    const u32 q_at = head_at(begin, unit), k_at = q_at + PART, v_at = k_at + PART;
    const u32 do_at = v_at + PART;
#if ROPE
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      const Turn turn(table, i, lane);
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const u32 tile_at = q_at + part * PART + 16 * i * PITCH;
        u32 x[4];
        load(x, tile_at + lane.whole);
        turn.rotate(x);
        __syncwarp();
        store_word(tile_at + lane.word, x[0]);
        store_word(tile_at + lane.word + 8 * PITCH, x[1]);
        store_word(tile_at + lane.word + 16, x[2]);
        store_word(tile_at + lane.word + 8 * PITCH + 16, x[3]);
      }
    }
    __syncwarp();
#endif
    float dk[TILES][2][4] = {}, dv[TILES][2][4] = {};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      const u32 tile = 16 * i * PITCH;
      float p[2 * TILES][4] = {}, o[2][4] = {}, sum[4] = {};
      u32 q[4];
      load(q, q_at + tile + lane.whole);
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        u32 k[4];
        load(k, k_at + 16 * j * PITCH + lane.whole);
        multiply(p[2 * j], q, k[0], k[2]);
        multiply(p[2 * j + 1], q, k[1], k[3]);
      }
      exponentiate(p, lane);
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        u32 left[4], v[4];
        as_factor(left, p[2 * j], p[2 * j + 1]);
        load_across(v, v_at + 16 * j * PITCH + lane.whole);
        multiply(o[0], left, v[0], v[1]);
        multiply(o[1], left, v[2], v[3]);
        multiply(sum, left, ONES, ONES);
      }
      const float factor[2] = {reciprocal(sum[0]), reciprocal(sum[2])};
      scale_rows(o, factor[0], factor[1]);
      u32 d[4], d_across[4], q_across[4];
      load(d, do_at + tile + lane.whole);
      load_across(q_across, q_at + tile + lane.whole);
      // What all scores of a row share: the sum of p dp over its keys, which is that of o do.
      float mean[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 left = unpack(d[half]), right = unpack(d[half + 2]);
        const float by = factor[half];
        mean[half] = SCALE * by * sum_of_row(left.x * o[0][2 * half] + left.y * o[0][2 * half + 1] +
                                     right.x * o[1][2 * half] + right.y * o[1][2 * half + 1]);
        // The factor of a row of probabilities serves as well on that row of the gradient.
        d_across[half] = transposed(pack(left.x * by, left.y * by));
        d_across[half + 2] = transposed(pack(right.x * by, right.y * by));
      }
      const float scale[2] = {SCALE * factor[0], SCALE * factor[1]};
      __syncwarp();
      if (out) store_tile(do_at + tile + lane.word, o);
      float dq[2][4] = {};
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        u32 v[4], k_across[4], x[4];
        load(v, v_at + 16 * j * PITCH + lane.whole);
        load_across(k_across, k_at + 16 * j * PITCH + lane.whole);
        float ds[2][4] = {};
        multiply(ds[0], d, v[0], v[2]);
        multiply(ds[1], d, v[1], v[3]);
#pragma unroll
        for (int n = 0; n < 8; n++)
          ds[n / 4][n % 4] = p[2 * j + n / 4][n % 4] *
                             (scale[n % 4 / 2] * ds[n / 4][n % 4] - mean[n % 4 / 2]);
        as_factor(x, ds[0], ds[1]);
        multiply(dq[0], x, k_across[0], k_across[1]);
        multiply(dq[1], x, k_across[2], k_across[3]);
        multiply_transposed(dk[j], x, q_across);
        as_factor(x, p[2 * j], p[2 * j + 1]);
        multiply_transposed(dv[j], x, d_across);
      }
      Turn(table, i, lane).rotate_back(dq);
      __syncwarp();
      store_tile(q_at + tile + lane.word, dq);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < TILES; j++) {
      Turn(table, j, lane).rotate_back(dk[j]);
      store_tile(k_at + 16 * j * PITCH + lane.word, dk[j]);
      store_tile(v_at + 16 * j * PITCH + lane.word, dv[j]);
    }
  }
  __syncthreads();
  write<3>(dqkv, shared, at);
  if (out) write<1>(out, shared + 3 * PART, at);
}
