// Hopper's instructions as functions: barriers in shared memory, the copy engine, warpgroup products.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace hopper {

__device__ inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrive, and expect this many bytes from the copy engine in the same phase.
__device__ inline void barrier_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Wait for the end of the phase of this parity.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Barriers of warpgroups, by number; 0 is __syncthreads.
__device__ inline void named_sync(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Copy a box of a (head size, heads, rows) tensor into shared memory.
__device__ inline void copy_box(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int head, int row) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
        : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Make ordinary stores to shared memory visible to the tensor cores.
__device__ inline void fence_for_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int Registers>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ inline void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most this many groups of products run.
template <int Running>
__device__ inline void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Running) : "memory");
}

// A matrix in shared memory with swizzled rows of 64 or 128 bytes: `lead` and `stride` are distances in bytes, of two
// spans of rows and of two groups of eight rows. Only the lower half depends on the address.
struct Matrix {
    uint32_t low;
    uint32_t high;

    __device__ Matrix(uint32_t address, int row_bytes, int lead, int stride)
        : low((address & 0x3FFFF) >> 4 | lead >> 4 << 16), high(stride >> 4 | (row_bytes == 128 ? 1u : 2u) << 30) {}

    __device__ uint64_t at(int bytes) const { return static_cast<uint64_t>(high) << 32 | (low + (bytes >> 4)); }
};

#define R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)

// d += a b, or d = a b without `add`, for 64 rows of a and 16 columns. `multiply_shared` has a in shared memory, and b
// as columns by rows (K-major). `multiply_registers` has a in registers, and b as rows by columns (MN-major).
template <typename T, int Columns>
struct Product;

#define PRODUCT(T, NAME, COLUMNS, D, P0, P1, P2, P3, P4, P5, ...)                                                      \
    template <>                                                                                                        \
    struct Product<T, COLUMNS> {                                                                                       \
        static __device__ inline void multiply_shared(float (&d)[COLUMNS / 2], uint64_t a, uint64_t b, int add) {      \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " P2 ", 0;\n"                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" D "}, " P0 ", " P1 \
                         ", p, 1, 1, 0, 0;}"                                                                           \
                         : __VA_ARGS__                                                                                 \
                         : "l"(a), "l"(b), "r"(add));                                                                  \
        }                                                                                                              \
        static __device__ inline void multiply_registers(float (&d)[COLUMNS / 2], const uint32_t* a, uint64_t b,       \
                                                         int add) {                                                    \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " P5 ", 0;\n"                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" D "}, {" P0 "," P1 \
                         "," P2 "," P3 "}, " P4 ", p, 1, 1, 1;}"                                                       \
                         : __VA_ARGS__                                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                              \
        }                                                                                                              \
    };

#define PRODUCTS(T, NAME)                                                                                              \
    PRODUCT(T, NAME, 32, R0, "%16", "%17", "%18", "%19", "%20", "%21", F16(0))                                         \
    PRODUCT(T, NAME, 64, R0 "," R1, "%32", "%33", "%34", "%35", "%36", "%37", F16(0), F16(16))                         \
    PRODUCT(T, NAME, 128, R0 "," R1 "," R2 "," R3, "%64", "%65", "%66", "%67", "%68", "%69", F16(0), F16(16), F16(32), \
            F16(48))

PRODUCTS(__nv_bfloat16, "bf16")
PRODUCTS(__half, "f16")

#undef PRODUCTS
#undef PRODUCT
#undef F16
#undef F4
#undef R3
#undef R2
#undef R1
#undef R0

}  // namespace hopper
