/* The part of NVML's binary interface that the fake serves: names, sizes and order of fields as
 * nvidia-ml-py declares them (CUDA 13). */
#ifndef FAKE_NVML_ABI_H
#define FAKE_NVML_ABI_H

#include "device.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct handle *nvmlDevice_t;

typedef union {
    double d;
    unsigned int ui;
    unsigned long ul;
    unsigned long long ull;
    signed long long sll;
} nvmlValue_t;

enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    unsigned int fieldId, scopeId;
    int64_t timestamp, latencyUsec; /* CPU time of the sample, microseconds since 1970 */
    unsigned int valueType;
    int nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_t;

typedef struct {
    unsigned int version, powerScope, powerValueMw;
} nvmlPowerValue_v2_t;

typedef struct {
    unsigned int version;
    unsigned int perf[8], requested[8], enforced[8];
} nvmlWorkloadPowerProfileCurrentProfiles_v1_t;

/* The version word that a caller writes into a structure: its number, and its size. */
#define STRUCT_VERSION(type, number) ((unsigned int)(sizeof(type) | ((number) << 24)))

/* A device as callers hold it: a GPU, or one MIG instance of it. */
struct handle {
    unsigned int gpu;
    int instance; /* -1: the whole GPU */
};

/* library.c: what every call needs. */
extern struct state library_state;
int resolve(nvmlDevice_t device, struct record *gpu);
int resolve_whole(nvmlDevice_t device, struct record *gpu);
int copy_text(const char *text, char *into, unsigned int length);
int change_device(nvmlDevice_t device, change_fn change, void *argument);

#endif
