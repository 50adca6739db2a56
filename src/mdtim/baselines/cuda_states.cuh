// States of rows, as the kernels of residual layers hold them: fragments of cuda_products.cuh.
//
// Which channel of a state is which column is ours to choose: a lane holds eight neighbours of
// every 32, the 16 bytes that it reads and writes. Weights lie in shared memory, in the order in
// which the tensor cores take them.
//
// Compile-time constants:
//   C      channels, a multiple of 32
//   WARPS  of a program

constexpr int COLUMNS = C / 8;  // tiles of sums across the channels
constexpr int STEPS = C / 16;   // tiles of halves
constexpr int GROUPS = C / 32;  // what a lane reads at once
constexpr float ROOT_HALF = 0.70710678118654752f;

__device__ __forceinline__ int lane_of() { return threadIdx.x % 32; }

// Eight numbers of a vector that belong to a lane's eight channels of a group.
__device__ __forceinline__ void load_eight(float (&x)[8], const float* vector, int group) {
  const float4* place = (const float4*)(vector + 32 * group + 8 * (lane_of() % 4));
  const float4 low = place[0], high = place[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Rows g (half 0) or g + 8 (half 1) of a tile of states, from a row in memory.
__device__ __forceinline__ void load_row(u32 (&x)[STEPS][4], int half, const u16* row) {
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    const uint4 word = *(const uint4*)(row + 32 * group + 8 * (lane_of() % 4));
    x[2 * group][half] = word.x;
    x[2 * group][2 + half] = word.y;
    x[2 * group + 1][half] = word.z;
    x[2 * group + 1][2 + half] = word.w;
  }
}

// sum (16 x 8, for each of N tiles of rows) += x w, for one tile of columns of a packed weight
template <int N>
__device__ __forceinline__ void multiply_column(float (&sum)[N][4], const u32 (&x)[N][STEPS][4],
                                                const uint4* weight) {
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    const uint4 b = weight[32 * group + lane_of()];
#pragma unroll
    for (int tile = 0; tile < N; tile++) {
      multiply(sum[tile], x[tile][2 * group], b.x, b.y);
      multiply(sum[tile], x[tile][2 * group + 1], b.z, b.w);
    }
  }
}

// All threads of a program copy `count` times 16 bytes.
__device__ __forceinline__ void bring(uint4* to, const uint4* __restrict__ from, int count) {
  for (int i = threadIdx.x; i < count; i += 32 * WARPS) to[i] = __ldg(from + i);
}

extern __shared__ uint4 shared[];
