// Pairs of float16, as src/mdtim/gpu/cuda_halves.cuh has them, on a CPU.

typedef unsigned int u32;
typedef unsigned short u16;

inline u32 pack(float low, float high) {
  const _Float16 two[2] = {(_Float16)low, (_Float16)high};
  u32 both;
  memcpy(&both, two, 4);
  return both;
}

inline float2 unpack(u32 both) {
  _Float16 two[2];
  memcpy(two, &both, 4);
  return {(float)two[0], (float)two[1]};
}
