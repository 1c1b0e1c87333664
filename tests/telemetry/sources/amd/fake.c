/* Stands in for libamd_smi.so: the calls that wattmesh makes, on boards that a test describes.
 *
 * The file that AMD_FAKE names is read at each call: a line for each GPU,
 *   bdf uuid watts ticks tick_uj gfx_percent cap_uw mhz pid status since_s speed
 * its counter moves from `ticks` on since `since_s` (monotonic), `speed` times as fast as its watts;
 * where status is returned by every call about this GPU (0: success), and a first line
 *   init-status
 * Every other function of the real library is a symbol that returns "not supported" (stubs.c).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_INIT 32
#define MOST 64

struct gpu {
    unsigned domain, bus, device, function;
    char uuid[64];
    uint32_t watts;
    uint64_t ticks;
    float tick_uj;
    uint32_t percent;
    uint64_t cap_uw;
    uint32_t mhz, pid, status;
    double since_s, speed;
};

static int initialised, hangs_s;
static char epoch; /* handles of an earlier initialisation are not of this one */

static int load(struct gpu *gpus, uint32_t *status) {
    FILE *file = fopen(getenv("AMD_FAKE"), "r");
    int count = 0;
    if (file == NULL || fscanf(file, "%u %d", status, &hangs_s) != 2) {
        *status = 34;
        return 0;
    }
    while (count < MOST) {
        struct gpu *g = &gpus[count];
        if (fscanf(file, "%x:%x:%x.%x %63s %u %lu %f %u %lu %u %u %u %lf %lf", &g->domain, &g->bus,
                   &g->device, &g->function, g->uuid, &g->watts, &g->ticks, &g->tick_uj,
                   &g->percent, &g->cap_uw, &g->mhz, &g->pid, &g->status, &g->since_s,
                   &g->speed) != 15)
            break;
        count++;
    }
    fclose(file);
    return count;
}

static uint32_t find(void *handle, struct gpu *found) {
    struct gpu gpus[MOST];
    uint32_t status;
    uintptr_t value = (uintptr_t)handle;
    int count = load(gpus, &status);
    int index = (int)(value & 0xff) - 1;
    if (!initialised || (char)(value >> 8) != epoch)
        return NOT_INIT;
    if (hangs_s)
        sleep((unsigned)hangs_s);
    if (index < 0 || index >= count)
        return 31;
    *found = gpus[index];
    return found->status;
}

uint32_t amdsmi_init(uint64_t flags) {
    struct gpu gpus[MOST];
    uint32_t status;
    (void)flags;
    load(gpus, &status);
    if (status == SUCCESS) {
        initialised = 1;
        epoch++;
    }
    return status;
}

uint32_t amdsmi_shut_down(void) {
    if (!initialised)
        return NOT_INIT;
    initialised = 0;
    return SUCCESS;
}

uint32_t amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    if (!initialised)
        return NOT_INIT;
    *count = 1;
    if (handles != NULL)
        handles[0] = (void *)1;
    return SUCCESS;
}

uint32_t amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    struct gpu gpus[MOST];
    uint32_t status;
    (void)socket;
    *count = (uint32_t)load(gpus, &status);
    if (handles != NULL)
        for (uint32_t each = 0; each < *count; each++)
            handles[each] = (void *)(uintptr_t)(((unsigned char)epoch << 8) + each + 1);
    return SUCCESS;
}

uint32_t amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bdf) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    if (status == SUCCESS)
        *bdf = g.function | g.device << 3 | g.bus << 8 | (uint64_t)g.domain << 16;
    return status;
}

uint32_t amdsmi_get_gpu_device_uuid(void *handle, uint32_t *length, char *uuid) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    if (status == SUCCESS)
        snprintf(uuid, *length, "%s", g.uuid);
    return status;
}

struct power_info {
    uint64_t socket;
    uint32_t current, average;
    uint64_t gfx_mv, soc_mv, mem_mv;
    uint32_t limit, padding;
    uint64_t reserved[18];
};

uint32_t amdsmi_get_power_info(void *handle, struct power_info *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    if (status == SUCCESS) {
        memset(told, 0, sizeof *told);
        told->socket = told->average = 0xFFFF;
        told->current = g.watts;
    }
    return status;
}

uint32_t amdsmi_get_energy_count(void *handle, uint64_t *ticks, float *tick_uj, uint64_t *at_ns) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    if (status == SUCCESS && g.ticks == 0)
        return 2;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - g.since_s;
    *ticks = g.ticks;
    if (g.speed > 0)
        *ticks += (uint64_t)(g.speed * g.watts * passed_s * 1e6 / g.tick_uj);
    *tick_uj = g.tick_uj;
    *at_ns = 0;
    return status;
}

struct engine_usage {
    uint32_t gfx, umc, mm, reserved[13];
};

uint32_t amdsmi_get_gpu_activity(void *handle, struct engine_usage *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    memset(told, 0, sizeof *told);
    told->gfx = g.percent;
    return status;
}

struct power_cap {
    uint64_t cap, usual, dpm, least, most, reserved[3];
};

uint32_t amdsmi_get_power_cap_info(void *handle, uint32_t sensor, struct power_cap *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    (void)sensor;
    memset(told, 0, sizeof *told);
    told->cap = g.cap_uw;
    return status;
}

struct clock {
    uint32_t mhz, least, most;
    uint8_t locked, sleeps, padding[2];
    uint32_t reserved[4];
};

uint32_t amdsmi_get_clock_info(void *handle, uint32_t kind, struct clock *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    (void)kind;
    memset(told, 0, sizeof *told);
    told->mhz = g.mhz;
    return status;
}

struct driver {
    char version[256], date[256], name[256];
};

uint32_t amdsmi_get_gpu_driver_info(void *handle, struct driver *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    memset(told, 0, sizeof *told);
    snprintf(told->version, sizeof told->version, "6.14.14-fake");
    return status;
}

struct process {
    char name[256];
    uint32_t pid, padding;
    uint64_t mem;
    struct {
        uint64_t gfx, enc;
        uint32_t reserved[12];
    } engine;
    struct {
        uint64_t gtt, cpu, vram;
        uint32_t reserved[10];
    } memory;
    char container[256];
    uint32_t occupancy, reserved[11];
};

uint32_t amdsmi_get_gpu_process_list(void *handle, uint32_t *most, struct process *told) {
    struct gpu g;
    uint32_t status = find(handle, &g);
    if (status != SUCCESS)
        return status;
    *most = g.pid ? 1 : 0;
    if (g.pid) {
        memset(told, 0, sizeof *told);
        told->pid = g.pid;
    }
    return SUCCESS;
}
