// The end of residual layers of diffusion models: products before and behind a gate.
//
// mdtim/baselines/cuda_layers.py packs the weights, compiles and launches this. As in
// cuda_encoder.cu a program stays on its multiprocessor with all weights, and a warp takes 32 rows.
// Compile-time constants are those of cuda_states.cuh.

#define HALF 1
#include "gpu/cuda_halves.cuh"
#include "gpu/cuda_products.cuh"
#include "baselines/cuda_states.cuh"

constexpr int MIDDLE = 0, END = 2 * C * C, END_OF_WEIGHTS = 4 * C * C;
constexpr int TILES = 2;

__device__ __forceinline__ const uint4* weight_at(int place) { return shared + place / 8; }

// The rows of a warp, from `first` on; what comes through the gate is kept in `through` meanwhile.
__device__ __forceinline__ void finish_tile(const u16* __restrict__ y, u16* h, u16* total,
                                            const u16* __restrict__ side, u32* through, int first,
                                            int rows, int samples, int cells) {
  const int lane = lane_of(), g = lane / 4, t = lane % 4;
  u32 x[TILES][STEPS][4] = {};
  int place[TILES][2];
  const u16* told[TILES][2];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first + 16 * tile + 8 * half + g, inside = min(row, rows - 1);
      place[tile][half] = row < rows ? row : -1;
      const int window = inside / cells;
      const int cell = inside - window * cells + window / samples * cells;
      told[tile][half] = side + (long long)cell * (2 * C) + 8 * t;
      load_row(x[tile], half, y + (long long)inside * C);
    }
    // Sums of nothing, that products find them in other registers than those they were loaded to.
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
      for (int part = 0; part < 4; part++) x[tile][step][part] = add_pairs(x[tile][step][part], 0);
  }
  __syncwarp();  // the rows before these are done
#pragma unroll 1
  for (int group = 0; group < GROUPS; group++) {
    float sum[2][4][TILES][4] = {};
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
      for (int part = 0; part < 4; part++)
        multiply_column(sum[which][part], x,
                        weight_at(MIDDLE) + (which * COLUMNS + 4 * group + part) * GROUPS * 32);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u16* words = told[tile][half] + 32 * group;
        const uint4 gates = __ldg((const uint4*)words), contents = __ldg((const uint4*)(words + C));
        const u32 gate_words[4] = {gates.x, gates.y, gates.z, gates.w};
        const u32 content_words[4] = {contents.x, contents.y, contents.z, contents.w};
#pragma unroll
        for (int part = 0; part < 4; part++) {
          const float2 gate = unpack(gate_words[part]), content = unpack(content_words[part]);
          float value[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const float open = sum[0][part][tile][2 * half + i] + (i ? gate.y : gate.x);
            const float said = sum[1][part][tile][2 * half + i] + (i ? content.y : content.x);
            // sigmoid times tanh
            const float closing = exp2_of(-1.4426950408889634f * open);
            const float turned = exp2_of(-2.8853900817779268f * fabsf(said));
            value[i] = copysignf(__fdividef(1 - turned, (1 + turned) * (1 + closing)), said);
          }
          through[4 * ((tile * STEPS + 2 * group + part / 2) * 32 + lane) + 2 * (part % 2) + half] =
              pack(value[0], value[1]);
        }
      }
  }
  __syncwarp();
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      const uint4 word = ((const uint4*)through)[(tile * STEPS + step) * 32 + lane];
      x[tile][step][0] = word.x, x[tile][step][1] = word.y;
      x[tile][step][2] = word.z, x[tile][step][3] = word.w;
    }
#pragma unroll 1
  for (int column = 0; column < 2 * COLUMNS; column += 4) {
    const bool skips = column >= COLUMNS;
    const int group = column / 4 % GROUPS;
    uint4* words[TILES][2];
    uint4 before[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u16* row = (skips ? total : h) + (long long)max(place[tile][half], 0) * C;
        words[tile][half] = (uint4*)(row + 32 * group + 8 * t);
        before[tile][half] = *words[tile][half];
      }
    float sum[4][TILES][4], shift[8];
    load_eight(shift, (const float*)weight_at(END_OF_WEIGHTS), column / 4);
#pragma unroll
    for (int part = 0; part < 4; part++) {
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[part][tile][i] = shift[2 * part + i % 2];
      multiply_column(sum[part], x, weight_at(END) + (column + part) * GROUPS * 32);
    }
    const float scale = skips ? 1.f : ROOT_HALF;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint4 old = before[tile][half];
        u32 word[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
        for (int part = 0; part < 4; part++) {
          const float2 two = unpack(word[part]);
          word[part] = pack(scale * (two.x + sum[part][tile][2 * half]),
                            scale * (two.y + sum[part][tile][2 * half + 1]));
        }
        if (place[tile][half] >= 0)
          *words[tile][half] = make_uint4(word[0], word[1], word[2], word[3]);
      }
  }
}

// The end of a residual layer: products before and behind a gate, states and their sum in place.
//   y      (rows, C) what the transformer layers said
//   side   (rows / samples, 2 C) what each window says, with the first product's bias
//   cells  of a window
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    finish(const u16* __restrict__ y, u16* h, u16* total, const u16* __restrict__ side,
           const uint4* __restrict__ weights, const uint4* __restrict__ vectors, int rows,
           int samples, int cells) {
  bring(shared, weights, END_OF_WEIGHTS / 8);
  bring(shared + END_OF_WEIGHTS / 8, vectors, 2 * C / 4);
  __syncthreads();
  constexpr int ROWS = 16 * TILES;
  const int warp = threadIdx.x / 32;
  u32* through = (u32*)(shared + END_OF_WEIGHTS / 8 + 2 * C / 4 + warp * (TILES * STEPS * 32));
  for (int first = (blockIdx.x * WARPS + warp) * ROWS; first < rows;
       first += gridDim.x * WARPS * ROWS)
    finish_tile(y, h, total, side, through, first, rows, samples, cells);
}
