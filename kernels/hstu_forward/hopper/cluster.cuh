// A cluster's barrier, reads of what its thread blocks write for each other, and copies by the copy engine.
#pragma once

#include <cstdint>

#include "../../hstu_attention/hopper/ptx.cuh"

namespace hopper_forward {

// From the cache that all multiprocessors share: the nearer ones do not see what others write.
__device__ inline uint4 far_read16(const char* at) { return __ldcg(reinterpret_cast<const uint4*>(at)); }
__device__ inline uint2 far_read8(const char* at) { return __ldcg(reinterpret_cast<const uint2*>(at)); }

// Words that other thread blocks write without a signal: memory holds `kMissing` until then. It is a NaN that no
// conversion to a half type yields.
constexpr uint32_t kMissing = 0xFFFFFFFF;

__device__ inline uint4 late_read16(const char* at) {
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}

__device__ inline uint2 late_read8(const char* at) {
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at) : "memory");
    return x;
}

__device__ inline void late_store(char* to, uint32_t x) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// Whether all words of all lanes of a warp are there.
template <int Count>
__device__ inline bool all_there(const uint32_t (&words)[Count]) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Count; ++i) most = max(most, words[i]);
    return __all_sync(0xFFFFFFFF, most != kMissing);
}

// All threads of all blocks arrive; what they wrote before is seen after the wait.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Make initialised barriers visible to the copy engine.
__device__ inline void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Let the copy engine copy `bytes`, a multiple of 16, and end the barrier's phase.
__device__ inline void copy(void* to, const void* from, int bytes, uint64_t* barrier) {
    hopper::barrier_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     hopper::shared_address(to)),
                 "l"(from), "r"(bytes), "r"(hopper::shared_address(barrier))
                 : "memory");
}

}  // namespace hopper_forward
