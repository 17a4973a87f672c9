// What ranks give one another: memory that all of them reach, words that say themselves that they have come, waits that end.
//
// Every rank has an area in its own memory that the others write into. A word there is empty, or what a peer put there, so no flag
// and no fence stands between data and who waits for it (Lamport, "The Mutual Exclusion Problem", 1986): an f32 area is empty where
// it holds -0, a board of pairs where a pair's second word is not the number that is waited for.
// PTX ISA, memory consistency model: accesses here are relaxed, of system scope, and strong on both sides; of a vector each word
// comes by itself. tests/emulated/ranks.rs runs this in random orders, with stores that come late.

#include "last_block.cuh"
#include "types.cuh"

// Polls between looks at the clock and at the word that ends all waits.
constexpr u32 POLLS = 256;

// Of a rank, in its memory. 0 at first.
struct LinkState {
    u32 epoch;        // sums so far; the same on all ranks between their launches
    u32 blocks_done;  // of the running one
    u32 failed;       // the operation whose wait did not end, plus 1; FAILED_ELSEWHERE: nobody shall wait any more; or 0
    u32 peer;         // that it waited for
    u32 at;           // its epoch, or its round
    u32 busy;         // time of its first blocks in exchanges, waits included: units of 2^10 ns, modulo 2^32
    u32 padding[2];
};

// A rank's place among the others.
struct Link {
    u8* areas[MAX_RANKS];  // of all ranks, this one's included; 256-byte aligned
    LinkState* state;      // this rank's
    u32 world;             // number of ranks
    u32 rank;              // this one
    u32 patience;          // ticks that a wait takes at most
    u32 padding;
};

__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// 2^20 ns, about a millisecond: a wait keeps one register of time.
__device__ __forceinline__ u32 ticks() { return static_cast<u32>(nanoseconds() >> 20); }

__device__ __forceinline__ void system_fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// An exchange of a launch, which all blocks begin and end.
struct Exchange {
    u32 epoch;  // its number
    u32 begun;  // in units of 2^10 ns, of the first thread of the grid, which tells how long it took; else 0
};

// The order of what was emptied goes along with what follows.
__device__ __forceinline__ Exchange begin_exchange(const Link& link) {
    if (threadIdx.x == 0) {
        system_fence();
    }
    const bool is_first = threadIdx.x == 0 && blockIdx.x == 0;
    return {link.state->epoch, is_first ? static_cast<u32>(nanoseconds() >> 10) : 0};
}

__device__ __forceinline__ void end_exchange(const Link& link, const Exchange& exchange) {
    __syncwarp();
    if (threadIdx.x == 0) {
        system_fence();
    }
    if (is_last_block(&link.state->blocks_done) && threadIdx.x == 0) {
        link.state->epoch = exchange.epoch + 1;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        link.state->busy += static_cast<u32>(nanoseconds() >> 10) - exchange.begun;
    }
}

__device__ __forceinline__ void put(u8* to, uint4 words) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

__device__ __forceinline__ uint4 look(const u8* at) {
    uint4 words;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(at)
                 : "memory");
    return words;
}

// A word and the number that it comes with, in one access of 64 bits.
__device__ __forceinline__ void put_pair(u8* to, u32 word, u32 number) {
    const u64 pair = static_cast<u64>(number) << 32 | word;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(to), "l"(pair) : "memory");
}

__device__ __forceinline__ u64 look_pair(const u8* at) {
    u64 pair;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(pair) : "l"(at) : "memory");
    return pair;
}

// A wait for one peer. A wait that does not end says so in the rank's state, and all later ones end at once: what they give is wrong,
// and the host, which reads the state with the step's tokens, uses none of it.
struct Wait {
    u32 polls = 0;
    u32 begun = 0;

    // Whether to look again.
    __device__ __forceinline__ bool goes_on(const Link& link, u32 operation, u32 peer, u32 at) {
        if (++polls % POLLS != 0) {
            return true;
        }
        volatile u32* failed = &link.state->failed;
        if (*failed != 0) {
            return false;
        }
        const u32 now = ticks();
        begun = polls == POLLS ? now : begun;
        if (now - begun < link.patience) {
            return true;
        }
        if (atomicCAS(&link.state->failed, 0, operation + 1) == 0) {
            link.state->peer = peer;
            link.state->at = at;
        }
        return false;
    }
};

constexpr u32 EMPTY = 0x80000000u;

// -0 means that nothing has come; a sum that begins with +0 is the same with either zero.
__device__ __forceinline__ u32 filled(float value) {
    const u32 bits = __float_as_uint(value);
    return bits == EMPTY ? 0 : bits;
}

// Four words of a peer that were looked at before: waits for those that had not come, and leaves their place empty. Compared as bits: no
// flushed denormal is a zero.
__device__ __forceinline__ void take(uint4& words, u8* at, const Link& link, u32 operation, u32 peer, u32 epoch) {
    Wait wait;
    while (words.x == EMPTY || words.y == EMPTY || words.z == EMPTY || words.w == EMPTY) {
        if (!wait.goes_on(link, operation, peer, epoch)) {
            break;
        }
        words = look(at);
    }
    put(at, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));
}
