// An MLP's first product with GELU behind it, and the way back through its second product and GELU.
//
// mdtim/cuda_mlp.py compiles and launches this. A program keeps some columns of a weight in shared
// memory and takes every so many tiles of rows: one warp fetches tiles ahead, and two groups of
// four warps work on them, so that products of the one run beside the GELU of the other. Tiles come
// and go by the copy engine, which reads zeros and writes nothing beyond the last row.
//
// Compile-time constants:
//   HALF    1 for float16, 0 for bfloat16
//   D       width, 128 or 256
//   F       width inside the MLP, a multiple of 128
//
// In shared memory everything lies in boxes: rows of 64 halves (128 bytes), of which the 16-byte
// pieces are permuted by the row's last three bits, as the copy engine and the tensor cores agree.

#include "gpu/cuda_halves.cuh"

typedef unsigned long long u64;

constexpr int BOXES = D / 64;
constexpr int ROWS = 64;              // of a tile
constexpr int TILE_BOX = ROWS * 128;  // bytes
constexpr int COLUMNS = 128;          // of a program
constexpr int GROUPS = 2;             // of warps that compute
constexpr int GROUP_WARPS = 4;
constexpr int GROUP_THREADS = 32 * GROUP_WARPS;
constexpr int THREADS = GROUP_THREADS * (GROUPS + 1);  // with a group that fetches
constexpr int COLUMN_TILES = F / COLUMNS;

struct alignas(64) Map {  // of a tensor, for the copy engine
  char bytes[128];
};

// Barriers in shared memory, whose phases take turns.

__device__ __forceinline__ void make_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void await(u32 barrier, u32 phase) {
  u32 done;
  do {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
  } while (!done);
}

// The four warps of a group meet.
__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Groups take turns at the tensor cores: while one multiplies, the other does all else.

__device__ __forceinline__ void await_turn(int group) {
  asm volatile("bar.sync %0, 256;" ::"r"(GROUPS + 1 + group) : "memory");
}

__device__ __forceinline__ void give_turn_to(int group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(GROUPS + 1 + group) : "memory");
}

__device__ __forceinline__ void fetch_box(u32 to, const Map &map, int column, int row,
                                          u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void write_box(const Map &map, int column, int row, u32 from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}

__device__ __forceinline__ void end_writes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until the engine has read all that it writes.
__device__ __forceinline__ void await_writes() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// The group that fetches leaves its registers to those that compute.

__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}

__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

// What threads wrote to shared memory, the copy engine and the tensor cores may read.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Products of a group of warps, which go on while it does something else.

__device__ __forceinline__ u64 describe(u32 address) {
  // Eight rows below each other are 1024 bytes; pieces are permuted within 128 bytes. Of what lies
  // across, the next 64 columns are in the next box of a tile.
  return (u64)((address & 0x3ffff) >> 4) | (u64)(TILE_BOX >> 4) << 16 | (u64)(1024 >> 4) << 32 |
         (u64)1 << 62;
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#if HALF
#define TYPES "f32.f16.f16"
#else
#define TYPES "f32.bf16.bf16"
#endif

// sum (64 x 64) = a (64 x 16) b (16 x 64), plus the sum itself; ACROSS factors lie transposed.
template <int A_ACROSS, int B_ACROSS>
__device__ __forceinline__ void multiply(float (&s)[32], u64 a, u64 b, int adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16." TYPES
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, p, 1, 1, %35, %36;}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]),
        "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]),
        "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]),
        "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]),
        "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
      : "l"(a), "l"(b), "r"(adds), "n"(A_ACROSS), "n"(B_ACROSS));
}

// sum (64 x 128) = a (64 x 16) b (16 x 128), plus the sum itself.
template <int A_ACROSS, int B_ACROSS>
__device__ __forceinline__ void multiply_wide(float (&s)[64], u64 a, u64 b, int adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0;"
      "wgmma.mma_async.sync.aligned.m64n128k16." TYPES
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "%64, %65, p, 1, 1, %67, %68;}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]),
        "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]),
        "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]),
        "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]),
        "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31]), "+f"(s[32]), "+f"(s[33]), "+f"(s[34]),
        "+f"(s[35]), "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39]), "+f"(s[40]), "+f"(s[41]),
        "+f"(s[42]), "+f"(s[43]), "+f"(s[44]), "+f"(s[45]), "+f"(s[46]), "+f"(s[47]), "+f"(s[48]),
        "+f"(s[49]), "+f"(s[50]), "+f"(s[51]), "+f"(s[52]), "+f"(s[53]), "+f"(s[54]), "+f"(s[55]),
        "+f"(s[56]), "+f"(s[57]), "+f"(s[58]), "+f"(s[59]), "+f"(s[60]), "+f"(s[61]), "+f"(s[62]),
        "+f"(s[63])
      : "l"(a), "l"(b), "r"(adds), "n"(A_ACROSS), "n"(B_ACROSS));
}

// GELU(x) / x in the tanh form, by the chip's own tanh: right to 2^-11, halves have 2^-9.
__device__ __forceinline__ float gelu_factor(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;"
      : "=f"(y)
      : "f"(x * (0.7978845608028654f + 0.035677408136300125f * x * x)));
  return 0.5f + 0.5f * y;
}

// Derivative of GELU, given its factor.
__device__ __forceinline__ float gelu_slope(float x, float factor) {
  float inner = x * (1.5957691216057308f + 0.21406444881780076f * x * x);
  return factor * (1 + inner * (1 - factor));
}

// Where a thread's two columns of the j-th eight of a box lie, in a row whose last bits are `row`.
__device__ __forceinline__ u32 piece(int row, int column, int j) {
  return row * 128 + ((j ^ (row & 7)) << 4) + column * 2;
}

__device__ __forceinline__ u32 load_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// Shared memory of a program: the weight, then the tiles in flight, then what is on its way out.
template <int STAGES>
struct Room {
  u32 weight, stages, out, ready, full, empty;

  __device__ __forceinline__ Room(char *shared, u32 weight_bytes, u32 stage_bytes, u32 out_bytes) {
    u32 begin = (u32)__cvta_generic_to_shared(shared);
    weight = (begin + 1023) / 1024 * 1024;  // as boxes want it
    stages = weight + weight_bytes;
    out = stages + STAGES * stage_bytes;
    ready = out + out_bytes;
    full = ready + 8;
    empty = full + 8 * STAGES;
  }

  __device__ __forceinline__ void make_barriers(int arrivals) const {
    if (threadIdx.x == 0) {
      make_barrier(ready, 1);
      for (int i = 0; i < STAGES; i++) {
        make_barrier(full + 8 * i, 1);
        make_barrier(empty + 8 * i, arrivals);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
};

// Places of a thread in the tiles of its group.
struct Place {
  int group, warp, row, column;  // row and column of its first two sums

  __device__ __forceinline__ Place() {
    int lane = threadIdx.x % 32;
    group = threadIdx.x / GROUP_THREADS;
    warp = threadIdx.x / 32 % GROUP_WARPS;
    row = 16 * warp + lane / 4;
    column = lane % 4 * 2;
  }

  __device__ __forceinline__ bool speaks_for_group() const {
    return threadIdx.x % GROUP_THREADS == 0;
  }
};

// act = GELU(x up' + bias), and what GELU is taken of. Groups take tiles in turn, each from
// stages of its own: a barrier's phases are told apart only by who has seen them all.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    up_and_gelu(const __grid_constant__ Map x, const __grid_constant__ Map up, const u16 *bias,
                const __grid_constant__ Map pre, const __grid_constant__ Map act, int num_tiles) {
  extern __shared__ char shared[];
  constexpr int STAGES = 2 * GROUPS;
  constexpr int WEIGHT_BOX = COLUMNS * 128;
  constexpr int STAGE = BOXES * TILE_BOX;
  constexpr int OUT = 2 * TILE_BOX;  // of a group: both results of half a tile
  const Room<STAGES> room(shared, BOXES * WEIGHT_BOX, STAGE, GROUPS * OUT);
  const int first = blockIdx.x % COLUMN_TILES * COLUMNS;
  const int chunk = blockIdx.x / COLUMN_TILES, chunks = gridDim.x / COLUMN_TILES;
  room.make_barriers(GROUP_WARPS);

  if (threadIdx.x >= GROUP_THREADS * GROUPS) {
    leave_registers();
    if (threadIdx.x == GROUP_THREADS * GROUPS) {
      expect(room.ready, BOXES * WEIGHT_BOX);
      for (int box = 0; box < BOXES; box++)
        fetch_box(room.weight + box * WEIGHT_BOX, up, 64 * box, first, room.ready);
      int n = 0;
      for (int tile = chunk; tile < num_tiles; tile += chunks, n++) {
        const int stage = n % STAGES;
        const u32 full = room.full + 8 * stage;
        await(room.empty + 8 * stage, n / STAGES % 2 ^ 1);
        expect(full, STAGE);
        for (int box = 0; box < BOXES; box++)
          fetch_box(room.stages + stage * STAGE + box * TILE_BOX, x, 64 * box, tile * ROWS, full);
      }
    }
    return;
  }

  take_registers();
  const Place place;
  u32 biases[COLUMNS / 8];
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j++)
    biases[j] = *(const u32 *)(bias + first + 8 * j + place.column);
  const u32 out = room.out + place.group * OUT;
  await(room.ready, 0);
  for (int n = place.group, tile = chunk + place.group * chunks; tile < num_tiles;
       n += GROUPS, tile += GROUPS * chunks) {
    const int stage = n % STAGES;
    const u32 from = room.stages + stage * STAGE;
    await(room.full + 8 * stage, n / STAGES % 2);
    float sum[64];
    begin_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply_wide<0, 0>(sum, describe(from + step / 4 * TILE_BOX + step % 4 * 32),
                    describe(room.weight + step / 4 * WEIGHT_BOX + step % 4 * 32), step > 0);
    end_products();
    await_products();
    if (threadIdx.x % 32 == 0) arrive(room.empty + 8 * stage);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 acts[16], pres[16];
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const int at = 32 * half + 2 * i;
        const float2 b = unpack(biases[8 * half + i / 2]);
        pres[i] = pack(sum[at] + b.x, sum[at + 1] + b.y);
        const float2 value = unpack(pres[i]);  // as the backward pass will read it
        acts[i] = pack(value.x * gelu_factor(value.x), value.y * gelu_factor(value.y));
      }
      if (place.speaks_for_group()) await_writes();
      meet(place.group);
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const u32 to = piece(place.row + i % 2 * 8, place.column, i / 2);
        store_word(out + to, acts[i]);
        store_word(out + TILE_BOX + to, pres[i]);
      }
      publish();
      meet(place.group);
      if (place.speaks_for_group()) {
        write_box(act, first + 64 * half, tile * ROWS, out);
        write_box(pre, first + 64 * half, tile * ROWS, out + TILE_BOX);
        end_writes();
      }
    }
  }
  if (place.speaks_for_group()) await_writes();
}

// dpre = (dz down) GELU'(pre), and sums over rows: ddown' = GELU(pre)' dz, and the bias's, of dpre.
// A program leaves its sums as float32 parts (chunks, F, D) and (chunks * 4, F), added later in a
// fixed order. Each group takes 64 of the program's columns in every tile. There are no more chunks
// than tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    back_to_gelu(const __grid_constant__ Map dz, const __grid_constant__ Map down,
                 const __grid_constant__ Map pre, const __grid_constant__ Map dpre, float *weight,
                 float *bias, int num_tiles) {
  extern __shared__ char shared[];
  constexpr int STAGES = 3;
  constexpr int WEIGHT_BOX = D * 128;
  constexpr int STAGE = (BOXES + GROUPS) * TILE_BOX;
  const Room<STAGES> room(shared, GROUPS * WEIGHT_BOX, STAGE, GROUPS * TILE_BOX);
  const int first = blockIdx.x % COLUMN_TILES * COLUMNS;
  const int chunk = blockIdx.x / COLUMN_TILES, chunks = gridDim.x / COLUMN_TILES;
  room.make_barriers(GROUPS * GROUP_WARPS);

  if (threadIdx.x >= GROUP_THREADS * GROUPS) {
    leave_registers();
    if (threadIdx.x == GROUP_THREADS * GROUPS) {
      expect(room.ready, GROUPS * WEIGHT_BOX);
      for (int box = 0; box < GROUPS; box++)
        fetch_box(room.weight + box * WEIGHT_BOX, down, first + 64 * box, 0, room.ready);
      int n = 0;
      for (int tile = chunk; tile < num_tiles; tile += chunks, n++) {
        const int stage = n % STAGES;
        const u32 full = room.full + 8 * stage, to = room.stages + stage * STAGE;
        await(room.empty + 8 * stage, n / STAGES % 2 ^ 1);
        expect(full, STAGE);
        for (int box = 0; box < BOXES; box++)
          fetch_box(to + box * TILE_BOX, dz, 64 * box, tile * ROWS, full);
        for (int box = 0; box < GROUPS; box++)
          fetch_box(to + (BOXES + box) * TILE_BOX, pre, first + 64 * box, tile * ROWS, full);
      }
    }
    return;
  }

  take_registers();
  const Place place;
  const u32 own_weight = room.weight + place.group * WEIGHT_BOX;
  const u32 act = room.out + place.group * TILE_BOX;
  const int column = first + 64 * place.group, other = 1 - place.group;
  float sums[D / 128][64] = {}, d[32] = {}, bias_sums[16] = {};

  const auto stage_of = [&](int n) { return room.stages + n % STAGES * STAGE; };
  const auto multiply_down = [&](int n) {
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<0, 1>(d, describe(stage_of(n) + step / 4 * TILE_BOX + step % 4 * 32),
                     describe(own_weight + step * 2048), step > 0);
  };
  const auto multiply_weight = [&](int n) {
#pragma unroll
    for (int step = 0; step < ROWS / 16; step++)
#pragma unroll
      for (int half = 0; half < D / 128; half++)
        multiply_wide<1, 1>(sums[half], describe(act + step * 2048),
                            describe(stage_of(n) + 2 * half * TILE_BOX + step * 2048), 1);
  };
  // Takes the place of the input of GELU.
  const auto go_through_gelu = [&](int n, int tile) {
    const u32 own = stage_of(n) + (BOXES + place.group) * TILE_BOX;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      // Loads, then arithmetic, then stores: in turn they would wait for each other.
      u32 at[8], pres[8], acts[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        at[i] = piece(place.row + i % 2 * 8, place.column, 4 * half + i / 2);
        pres[i] = load_word(own + at[i]);
      }
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float2 x = unpack(pres[i]);
        const float2 factor = make_float2(gelu_factor(x.x), gelu_factor(x.y));
        acts[i] = pack(x.x * factor.x, x.y * factor.y);
        const float left = d[16 * half + 2 * i] * gelu_slope(x.x, factor.x);
        const float right = d[16 * half + 2 * i + 1] * gelu_slope(x.y, factor.y);
        pres[i] = pack(left, right);
        bias_sums[8 * half + i / 2 * 2] += left;
        bias_sums[8 * half + i / 2 * 2 + 1] += right;
      }
#pragma unroll
      for (int i = 0; i < 8; i++) {
        store_word(act + at[i], acts[i]);
        store_word(own + at[i], pres[i]);
      }
    }
    publish();
    meet(place.group);
    if (place.speaks_for_group()) {
      write_box(dpre, column, tile * ROWS, own);
      end_writes();
    }
  };

  await(room.ready, 0);
  if (place.group == 1) give_turn_to(0);
  await(room.full, 0);
  await_turn(place.group);
  begin_products();
  multiply_down(0);
  end_products();
  await_products();
  give_turn_to(other);
  go_through_gelu(0, chunk);
  int n = 1;
  for (int tile = chunk + chunks; tile < num_tiles; tile += chunks, n++) {
    await(room.full + 8 * (n % STAGES), n / STAGES % 2);
    await_turn(place.group);
    begin_products();
    multiply_weight(n - 1);
    multiply_down(n);
    end_products();
    await_products();
    give_turn_to(other);
    if (place.speaks_for_group()) await_writes();
    if (threadIdx.x % 32 == 0) arrive(room.empty + 8 * ((n - 1) % STAGES));
    go_through_gelu(n, tile);
  }
  begin_products();
  multiply_weight(n - 1);
  end_products();
  await_products();
  if (place.group == 0) await_turn(0);  // that the other group gave last
  if (place.speaks_for_group()) await_writes();

#pragma unroll
  for (int half = 0; half < D / 128; half++)
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const int row = column + place.row + i % 4 / 2 * 8;
      float *to = weight + ((u64)chunk * F + row) * D + 128 * half + i / 4 * 8 + place.column;
      *(float2 *)to = make_float2(sums[half][i], sums[half][i + 1]);
    }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float total = bias_sums[i];
    for (int lanes = 4; lanes < 32; lanes *= 2) total += __shfl_xor_sync(~0u, total, lanes);
    float *to = bias + ((u64)chunk * GROUP_WARPS + place.warp) * F + column;
    if (threadIdx.x % 32 < 4) to[i / 2 * 8 + place.column + i % 2] = total;
  }
}
