// What the lanes of a warp do together with pairs of halves: products, and a transposition.
//
// Fragments are those of mma.m16n8k16. Lane 4 * g + t of a warp holds, of a tile of 16 x 16 halves,
// columns 2t and 2t + 1 of rows g and g + 8, then the same rows of columns 2t + 8 and 2t + 9. Sums
// have the same places, in two tiles of 16 x 8 floats.

#if HALF
#define PAIR "f16"
#else
#define PAIR "bf16"
#endif

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sum (16 x 8) += a (16 x 16) b (16 x 8)
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." PAIR "." PAIR
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum (16 x 8) += a (16 x 8) b (8 x 8)
__device__ __forceinline__ void multiply_narrow(float (&sum)[4], u32 a0, u32 a1, u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." PAIR "." PAIR
      ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ u32 add_pairs(u32 a, u32 b) {
  u32 sum;
  asm volatile("add." PAIR "x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

__device__ __forceinline__ u32 transposed(u32 block) {
  u32 y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(block));
  return y;
}
