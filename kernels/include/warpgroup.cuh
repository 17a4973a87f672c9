// Warpgroups: four warps in a row, of which the first one's number is a multiple of four (PTX ISA, setmaxnreg; sm_90a).

constexpr int WARPGROUP = 128;
constexpr int WARPGROUP_WARPS = 4;

// Moves registers between warpgroups: the threads of this one have `COUNT` from here on, a multiple of 8.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
