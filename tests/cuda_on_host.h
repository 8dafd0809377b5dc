// What encode.cu uses of CUDA, for one thread of the host; cupy_on_host.py launches the kernels. The threads of a block
// are contexts that take turns where they wait for each other. Threads that wait for ones that have returned are an error.
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

struct Index { unsigned x; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };

namespace host {
typedef unsigned long long Word;
typedef void (*Kernel)(Word, Word, Word, Word, Word, Word);

struct Fiber {
  Index thread;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[1 << 16]};
};
struct Barrier { std::vector<Fiber*> waiting; };

Kernel kernel;
const Word* arguments;
bool backwards;  // threads begin with the last one: results must not depend on it
Index block, blocks, threads;
unsigned begun, returned;
Fiber* current;
ucontext_t launcher;
std::vector<std::unique_ptr<Fiber>> fibers;
unsigned fibers_used;
std::deque<Fiber*> ready;
Barrier of_block, of_warp[32];
Word boxes[32][32];

void switch_away();

void work() {
  while (begun < threads.x) {
    current->thread.x = backwards ? threads.x - 1 - begun : begun;
    ++begun;
    const Word* a = arguments;
    kernel(a[0], a[1], a[2], a[3], a[4], a[5]);
    ++returned;
  }
  switch_away();
}

// To one that can go on, else to threads that have not begun, else back to `launch`.
void switch_away() {
  Fiber* before = current;
  current = nullptr;
  if (!ready.empty()) {
    current = ready.front();
    ready.pop_front();
  } else if (begun < threads.x) {
    if (fibers_used == fibers.size()) fibers.emplace_back(new Fiber);
    current = fibers[fibers_used++].get();
    getcontext(&current->context);
    current->context.uc_stack.ss_sp = current->stack.get();
    current->context.uc_stack.ss_size = 1 << 16;
    makecontext(&current->context, work, 0);
  }
  ucontext_t* to = current ? &current->context : &launcher;
  swapcontext(before ? &before->context : &launcher, to);
}

void wait_for(Barrier& barrier, unsigned all) {
  if (barrier.waiting.size() + 1 < all) {
    barrier.waiting.push_back(current);
    switch_away();
    return;
  }
  ready.insert(ready.end(), barrier.waiting.begin(), barrier.waiting.end());
  barrier.waiting.clear();
}

unsigned lane() { return current->thread.x & 31; }
void wait_for_warp() { wait_for(of_warp[current->thread.x >> 5], 32); }

template <typename Result, typename Take>
Result from_lanes(Word mine, Take take) {  // `take` gets what all lanes of the warp give
  Word* box = boxes[current->thread.x >> 5];
  box[lane()] = mine;
  wait_for_warp();
  const Result result = take(box);
  wait_for_warp();
  return result;
}
template <typename T>
T from_lane(T mine, unsigned who) { return from_lanes<T>(mine, [=](const Word* box) { return (T)box[who & 31]; }); }
}  // namespace host

extern "C" void launch(host::Kernel kernel, unsigned blocks, unsigned threads, const host::Word* arguments, bool backwards) {
  host::kernel = kernel, host::arguments = arguments, host::backwards = backwards;
  host::blocks.x = blocks, host::threads.x = threads;
  for (unsigned b = 0; b < blocks; ++b) {
    host::block.x = backwards ? blocks - 1 - b : b;
    host::begun = host::returned = host::fibers_used = 0;
    host::switch_away();
    if (host::returned < threads) {
      std::fprintf(stderr, "%u of %u threads wait for others that have returned\n", threads - host::returned, threads);
      std::abort();
    }
  }
}

#define threadIdx host::current->thread
#define blockIdx host::block
#define blockDim host::threads
#define gridDim host::blocks
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(most)
#define __shared__ static

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(host::Word x, host::Word y) { return {x, y}; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(host::Word x) { return __builtin_popcountll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __ffsll(host::Word x) { return __builtin_ffsll((long long)x); }
inline int __clzll(host::Word x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
template <typename T> T __ldg(const T* at) { return *at; }

template <typename T> T atomicAdd(T* at, T more) { const T old = *at; *at += more; return old; }
inline unsigned atomicAdd(unsigned* at, int more) { return atomicAdd(at, (unsigned)more); }
inline unsigned atomicOr(unsigned* at, unsigned more) { const unsigned old = *at; *at |= more; return old; }
inline host::Word atomicCAS(host::Word* at, host::Word expected, host::Word wanted) {
  const host::Word old = *at;
  if (old == expected) *at = wanted;
  return old;
}

inline void __threadfence_system() {}
inline void __syncthreads() { host::wait_for(host::of_block, host::threads.x); }
inline void __syncwarp() { host::wait_for_warp(); }
template <typename T> T __shfl_sync(unsigned, T mine, int who) { return host::from_lane(mine, who); }
template <typename T> T __shfl_xor_sync(unsigned, T mine, int other) { return host::from_lane(mine, host::lane() ^ other); }
template <typename T> T __shfl_up_sync(unsigned, T mine, unsigned by) {
  return host::from_lane(mine, host::lane() < by ? host::lane() : host::lane() - by);
}
template <typename T> T __shfl_down_sync(unsigned, T mine, unsigned by) {
  return host::from_lane(mine, host::lane() + by > 31 ? host::lane() : host::lane() + by);
}
inline unsigned __ballot_sync(unsigned, bool mine) {
  return host::from_lanes<unsigned>(mine, [](const host::Word* box) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= (unsigned)box[i] << i;
    return all;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned mine) {
  return host::from_lanes<unsigned>(mine, [](const host::Word* box) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all += (unsigned)box[i];
    return all;
  });
}
inline unsigned __reduce_min_sync(unsigned, unsigned mine) {
  return host::from_lanes<unsigned>(mine, [](const host::Word* box) {
    unsigned least = ~0u;
    for (int i = 0; i < 32; ++i) least = min(least, (unsigned)box[i]);
    return least;
  });
}
