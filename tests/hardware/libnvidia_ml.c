// A made-up libnvidia-ml.so.1. FAKE_ECC: 0 = off; FAKE_ERRORS: uncorrected errors; FAKE_POWER_W: power limit;
// FAKE_OLD: the GPU tells neither.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int initialised;

static unsigned setting(const char* name, unsigned otherwise) {
    const char* text = getenv(name);
    return text ? (unsigned)atoi(text) : otherwise;
}

int nvmlInit_v2(void) { ++initialised; return 0; }
int nvmlShutdown(void) { return --initialised ? 1 : 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) { snprintf(text, length, "580.65.06"); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
    if (!initialised || strncmp(address, "0000:0", 6)) return 2;
    *device = &initialised;
    return 0;
}
int nvmlDeviceGetEccMode(void* device, unsigned* now, unsigned* pending) {
    if (device != &initialised || setting("FAKE_OLD", 0)) return 3;
    *now = *pending = setting("FAKE_ECC", 1);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned type, unsigned counter, unsigned long long* count) {
    if (device != &initialised || type != 1 || counter != 0 || setting("FAKE_OLD", 0)) return 3;
    *count = setting("FAKE_ERRORS", 0);
    return 0;
}
int nvmlDeviceGetClockInfo(void* device, unsigned type, unsigned* mhz) {
    if (device != &initialised || type != 1) return 3;
    *mhz = 345;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(void* device, unsigned type, unsigned* mhz) {
    if (device != &initialised || type != 1) return 3;
    *mhz = 1980;
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* mw) {
    if (device != &initialised || setting("FAKE_OLD", 0)) return 3;
    *mw = setting("FAKE_POWER_W", 700) * 1000;
    return 0;
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* device, unsigned* mw) {
    if (device != &initialised) return 3;
    *mw = 700000;
    return 0;
}
