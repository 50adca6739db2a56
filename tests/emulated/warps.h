// A CUDA kernel on a CPU: every lane of a program is a fiber, and they take turns.
//
// All lanes of a warp must come to what they do together, which holds for the kernels here. There a
// lane shows its words and lets the others go on; when it is its turn again, all have shown theirs.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

using std::max;
using std::min;

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Index { int x; };
static Index threadIdx, blockIdx, gridDim;

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)

template <class T>
T __ldg(const T* address) { return *address; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 17);
  std::vector<unsigned> shown;
  bool done = false;
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static std::function<void()> body;
static int waiting, waits;

inline int lane() { return threadIdx.x % 32; }

inline void let_others_go_on() {
  const int me = threadIdx.x;
  swapcontext(&fibers[me].context, &scheduler);
  threadIdx.x = me;
}

// Words that all lanes of a warp show each other.
class Shown {
 public:
  Shown(std::initializer_list<unsigned> words) { show(words.begin(), words.size()); }
  template <size_t N>
  explicit Shown(const unsigned (&words)[N]) { show(words, N); }
  ~Shown() { let_others_go_on(); }  // they may look still
  const unsigned* of(int lane) const { return fibers[threadIdx.x / 32 * 32 + lane].shown.data(); }

 private:
  void show(const unsigned* words, size_t count) {
    fibers[threadIdx.x].shown.assign(words, words + count);
    let_others_go_on();
  }
};

inline float __shfl_xor_sync(unsigned, float x, int mask) {
  unsigned word;
  memcpy(&word, &x, 4);
  const Shown shown({word});
  float other;
  memcpy(&other, shown.of(lane() ^ mask), 4);
  return other;
}

inline void __syncwarp() { let_others_go_on(); }

inline void __syncthreads() {
  const int wait = waits;
  if (++waiting == (int)fibers.size()) waiting = 0, waits++;
  while (wait == waits) let_others_go_on();
}

static void run_fiber() {
  body();
  fibers[threadIdx.x].done = true;
  swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

template <class... Parameters, size_t... Places>
void run(void (*kernel)(Parameters...), int programs, int threads, void** arguments,
         std::index_sequence<Places...>) {
  gridDim.x = programs;
  body = [&] { kernel(*(std::remove_cv_t<Parameters>*)arguments[Places]...); };
  for (blockIdx.x = 0; blockIdx.x < programs; blockIdx.x++) {
    fibers = std::vector<Fiber>(threads);
    waiting = waits = 0;
    for (Fiber& fiber : fibers) {
      getcontext(&fiber.context);
      fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
      makecontext(&fiber.context, run_fiber, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (int thread = 0; thread < threads; thread++)
        if (!fibers[thread].done) {
          any = true;
          threadIdx.x = thread;
          swapcontext(&scheduler, &fibers[thread].context);
        }
    }
  }
}

template <class... Parameters>
void run(void (*kernel)(Parameters...), int programs, int threads, void** arguments) {
  run(kernel, programs, threads, arguments, std::index_sequence_for<Parameters...>());
}
