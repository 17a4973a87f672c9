// A made-up libnvidia-ml.so.1 with a device for every bus of the made-up libcuda, 0000:01:00.0 and up. FAKE_ECC: 0 = off; FAKE_ERRORS:
// uncorrected errors; FAKE_POWER_W: power limit; FAKE_OLD: the GPU tells neither; FAKE_LANES: lanes of the PCIe link; FAKE_THROTTLE: bits of
// the reasons for a lower clock; FAKE_XID: number of a critical error of the second device; FAKE_LOST: the second device fails in every
// call; FAKE_HANG: name of a function that never returns. No device tells its temperature.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int initialised;

// A device is a pointer into it.
static char devices[8];
// Calls that do not return.
int fake_hangs;

static unsigned setting(const char* name, unsigned otherwise) {
    const char* text = getenv(name);
    return text ? (unsigned)atoi(text) : otherwise;
}

static void enter(const char* function) {
    const char* hangs = getenv("FAKE_HANG");
    while (hangs && !strcmp(hangs, function)) {
        __atomic_store_n(&fake_hangs, 1, __ATOMIC_SEQ_CST);
        pause();
    }
}

// Begins a function of a device; the function fails without one.
#define DEVICE \
    char* device = handle; \
    enter(__func__); \
    if (!initialised || device < devices || device >= devices + 8) return 2; \
    if (device == devices + 1 && setting("FAKE_LOST", 0)) return 15

int nvmlInit_v2(void) { enter(__func__); ++initialised; return 0; }
int nvmlShutdown(void) { return --initialised ? 1 : 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) { snprintf(text, length, "580.65.06"); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) {
    unsigned bus;
    if (!initialised || sscanf(address, "0000:%2x:00.0", &bus) != 1 || bus < 1 || bus > 8) return 2;
    *handle = devices + bus - 1;
    return 0;
}
int nvmlDeviceGetEccMode(void* handle, unsigned* now, unsigned* pending) {
    DEVICE;
    if (setting("FAKE_OLD", 0)) return 3;
    *now = *pending = setting("FAKE_ECC", 1);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void* handle, unsigned type, unsigned counter, unsigned long long* count) {
    DEVICE;
    if (type != 1 || counter != 0 || setting("FAKE_OLD", 0)) return 3;
    *count = setting("FAKE_ERRORS", 0);
    return 0;
}
int nvmlDeviceGetClockInfo(void* handle, unsigned type, unsigned* mhz) {
    DEVICE;
    if (type != 1) return 3;
    *mhz = 345;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(void* handle, unsigned type, unsigned* mhz) {
    DEVICE;
    if (type != 1) return 3;
    *mhz = 1980;
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* handle, unsigned* mw) {
    DEVICE;
    if (setting("FAKE_OLD", 0)) return 3;
    *mw = setting("FAKE_POWER_W", 700) * 1000;
    return 0;
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* handle, unsigned* mw) {
    DEVICE;
    *mw = 700000;
    return 0;
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* mw) {
    DEVICE;
    *mw = 612500;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* rates) {
    DEVICE;
    rates[0] = 93;
    rates[1] = 40;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* bytes) {
    DEVICE;
    bytes[0] = 1ull << 30;
    bytes[1] = 1ull << 28;
    bytes[2] = 3ull << 28;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void* handle, unsigned long long* reasons) {
    DEVICE;
    // A GPU without work is idle.
    *reasons = setting("FAKE_THROTTLE", 1);
    return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* handle, unsigned* lanes) {
    DEVICE;
    *lanes = setting("FAKE_LANES", 16);
    return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* handle, unsigned* lanes) {
    DEVICE;
    *lanes = 16;
    return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* handle, unsigned* generation) {
    DEVICE;
    *generation = 1;
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* handle, unsigned* generation) {
    DEVICE;
    *generation = 5;
    return 0;
}

struct event {
    void* device;
    unsigned long long kind, number;
    unsigned gpu_instance, compute_instance;
};
int nvmlEventSetCreate(void** set) { *set = calloc(1, sizeof(struct event)); return *set ? 0 : 1; }
int nvmlDeviceRegisterEvents(void* handle, unsigned long long kinds, void* set) {
    DEVICE;
    if (kinds != 8 || !set) return 2;
    struct event* event = set;
    event->device = device;
    event->kind = kinds;
    event->number = device == devices + 1 ? setting("FAKE_XID", 0) : 0;
    return 0;
}
int nvmlEventSetWait_v2(void* set, struct event* next, unsigned milliseconds) {
    struct event* event = set;
    // 10: there was none in this time.
    if (milliseconds || !event->number) return 10;
    *next = *event;
    event->number = 0;
    return 0;
}
