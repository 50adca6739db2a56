// Pairs of numbers in half precision: float16 where HALF is 1, bfloat16 where it is 0.

typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 pack(float low, float high) {
  u32 both;
#if HALF
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
  return both;
}

__device__ __forceinline__ float2 unpack(u32 both) {
  float2 x;
#if HALF
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(x.x), "=f"(x.y)
      : "r"(both));
#else
  x.x = __uint_as_float(both << 16);
  x.y = __uint_as_float(both & 0xffff0000u);
#endif
  return x;
}

__device__ __forceinline__ void store_word(u32 address, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
