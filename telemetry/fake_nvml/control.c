/* The other side of the fake: what a test or a demo does to the GPUs. Built into a library of its
 * own, which control.py loads; it exports no name of NVML. */
#define _GNU_SOURCE
#include "abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The order is that of `Knob` in native.py. */
enum knob {
    KNOB_LOAD,           /* permille */
    KNOB_DRAW,           /* milliwatts; -1: back to the model */
    KNOB_LIMIT,          /* milliwatts, as another program sets it */
    KNOB_OUT_OF_BAND,    /* milliwatts; 0: none */
    KNOB_LOCK,           /* megahertz, as another program sets it; 0: none */
    KNOB_FLAG,           /* which bit; 0 or 1 */
    KNOB_FREEZE,         /* 0 or 1 */
    KNOB_REASONS,        /* forced event reason bits */
    KNOB_HANG,           /* nanoseconds per call */
    KNOB_WINDOW,         /* period and window, milliseconds */
    KNOB_UPDATE,         /* milliseconds */
    KNOB_ZERO,           /* the counter */
    KNOB_RELOAD,         /* the driver, for this GPU */
    KNOB_TAKE,           /* pid that keeps it busy; permille */
    KNOB_RELEASE,        /* pid that no longer does */
    KNOB_CLEAR_PROCESSES,
    KNOBS,
};

/* What is true of a GPU, whatever its sensor says. */
struct truth {
    uint64_t energy_mj, energy_pj, counter_mj, forced_reasons, reasons;
    uint32_t power_mw, clock_mhz, lock_mhz, requested_mw, enforced_mw, default_mw;
    uint32_t load_permille, capped, flags, owner_pid, processes, index;
    uint32_t loaded_clock_mhz, max_clock_mhz; /* what it would run at under full load */
    char uuid[48];
};

struct wish {
    uint32_t knob;
    int64_t a, b;
};

EXPORT uint64_t fake_layout(void) {
    return (uint64_t)STATE_VERSION << 48 | (uint64_t)KNOBS << 40 | (uint64_t)sizeof(struct truth) << 24 |
           (uint64_t)sizeof(struct board) << 12 | (uint64_t)sizeof(struct process);
}

/* How much of a record's place in the file is used and checked. */
EXPORT uint32_t fake_record_bytes(void) { return sizeof(struct record); }

static int take(struct record *gpu, uint32_t pid, uint32_t load) {
    uint64_t start = started_ticks(pid);
    if (!start) return NOT_FOUND;
    if (gpu->owner_pid) return NO_PERMISSION;
    gpu->owner_pid = pid;
    gpu->owner_load_permille = load;
    gpu->owner_start_ticks = start;
    gpu->owner_seen_ns = gpu->updated_ns;
    return OK;
}

static void freeze(struct record *gpu, bool on) {
    struct sensed now = sense(gpu, gpu->updated_ns, wall_us());
    gpu->frozen_counter_mj = now.counter_mj;
    gpu->frozen_wall_us = now.wall_us;
    gpu->frozen_power_mw = now.power_mw;
    gpu->frozen_average_mw = now.average_mw;
    gpu->flags = on ? gpu->flags | FLAG_FROZEN : gpu->flags & ~(uint32_t)FLAG_FROZEN;
}

/* Turn the knobs that are a plain value; arguments were checked by control.py. */
static bool plain(struct record *gpu, const struct wish *wish) {
    switch (wish->knob) {
        case KNOB_LOAD: gpu->load_permille = (uint32_t)wish->a; return true;
        case KNOB_DRAW: gpu->draw_mw = wish->a; return true;
        case KNOB_LIMIT: gpu->requested_mw = (uint32_t)wish->a; return true;
        case KNOB_OUT_OF_BAND: gpu->out_of_band_mw = (uint32_t)wish->a; return true;
        case KNOB_LOCK: gpu->lock_min_mhz = gpu->lock_max_mhz = (uint32_t)wish->a; return true;
        case KNOB_REASONS: gpu->forced_reasons = (uint64_t)wish->a; return true;
        case KNOB_HANG: gpu->hang_ns = (uint64_t)wish->a; return true;
        case KNOB_UPDATE: set_update(gpu, (uint32_t)wish->a); return true;
        case KNOB_CLEAR_PROCESSES: gpu->processes = 0; return true;
        default: return false;
    }
}

static int turn(struct record *gpu, void *argument) {
    const struct wish *wish = argument;
    if (plain(gpu, wish)) return OK;
    switch (wish->knob) {
        case KNOB_FLAG:
            if (wish->b)
                gpu->flags |= (uint32_t)wish->a;
            else
                gpu->flags &= ~(uint32_t)wish->a;
            return OK;
        case KNOB_FREEZE: freeze(gpu, wish->a != 0); return OK;
        case KNOB_WINDOW: set_window(gpu, (uint32_t)wish->a, (uint32_t)wish->b); return OK;
        case KNOB_ZERO: zero_counter(gpu); return OK;
        case KNOB_RELOAD: reload(gpu); return OK;
        case KNOB_TAKE: return take(gpu, (uint32_t)wish->a, (uint32_t)wish->b);
        case KNOB_RELEASE:
            if (gpu->owner_pid == (uint32_t)wish->a) gpu->owner_pid = gpu->owner_load_permille = 0;
            return OK;
        default: return INVALID_ARGUMENT;
    }
}

/* Make a state file of idle GPUs. `uuids` holds, per GPU, its own UUID and those of its MIG
 * instances, each in 48 bytes. The name must be new: the caller renames it into place. */
EXPORT int fake_create(const char *path, const struct board *board, uint32_t gpus,
                       const char *uuids, const char *driver, uint32_t update_ms) {
    struct header header = {.gpus = gpus, .permitted = 1, .boot = boot_number()};
    char page[HEADER_BYTES] = {0};
    if (!gpus || gpus > GPUS_MAX || strlen(driver) >= sizeof header.driver) return INVALID_ARGUMENT;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0) return OPERATING_SYSTEM;
    strcpy(header.driver, driver);
    seal_header(&header);
    memcpy(page, &header, sizeof header);
    bool written = write(descriptor, page, sizeof page) == (ssize_t)sizeof page;
    for (uint32_t i = 0; written && i < gpus; i++) {
        char place[RECORD_BYTES] = {0};
        struct record gpu;
        memset(&gpu, 0, sizeof gpu);
        gpu.boot = header.boot;
        memcpy(gpu.uuid, uuids + (size_t)i * 48 * (1 + MIG_INSTANCES), 48 * (1 + MIG_INSTANCES));
        gpu.index = i;
        gpu.flags = FLAG_PERSISTENCE;
        gpu.board = *board;
        gpu.update_ms = update_ms;
        gpu.period_ms = gpu.window_ms = 1;
        gpu.draw_mw = -1;
        gpu.updated_ns = monotonic_ns();
        reload(&gpu);
        solve(&gpu);
        seal(&gpu);
        memcpy(place, &gpu, sizeof gpu);
        written = write(descriptor, place, sizeof place) == (ssize_t)sizeof place;
    }
    written = fsync(descriptor) == 0 && written;
    close(descriptor);
    return written ? OK : OPERATING_SYSTEM;
}

EXPORT int fake_open(const char *path, struct state **state, uint32_t *gpus) {
    *state = calloc(1, sizeof **state);
    if (!*state) return OPERATING_SYSTEM;
    int result = state_open(*state, path);
    if (result) {
        free(*state);
        *state = NULL;
        return result;
    }
    *gpus = (*state)->header.gpus;
    return OK;
}

EXPORT void fake_close(struct state *state) {
    state_close(state);
    free(state);
}

EXPORT int fake_permit(struct state *state, int permitted) {
    return state_permit(state, permitted != 0);
}

EXPORT int fake_turn(struct state *state, uint32_t gpu, uint32_t knob, int64_t a, int64_t b) {
    struct wish wish = {knob, a, b};
    return alter(state, gpu, turn, &wish);
}

static int add_process(struct record *gpu, void *argument) {
    const struct process *wish = argument;
    uint32_t at = 0;
    while (at < gpu->processes && gpu->process[at].pid != wish->pid) at++;
    if (at == PROCESSES_MAX) return INSUFFICIENT_SIZE;
    if (at == gpu->processes) gpu->processes++;
    gpu->process[at] = *wish;
    return OK;
}

/* List a process. One that is alive now is dropped when it ends, unless it `lingers`. */
EXPORT int fake_process(struct state *state, uint32_t gpu, uint32_t pid, uint32_t utilization,
                        uint64_t memory_bytes, int lingers) {
    struct process wish = {pid, utilization, lingers ? 0 : started_ticks(pid), memory_bytes};
    return alter(state, gpu, add_process, &wish);
}

EXPORT int fake_truth(struct state *state, uint32_t index, struct truth *truth) {
    struct record gpu;
    int result = peek(state, index, &gpu);
    if (result) return result;
    memset(truth, 0, sizeof *truth);
    truth->energy_mj = gpu.drawn.mj;
    truth->energy_pj = gpu.drawn.carry;
    truth->counter_mj = sense(&gpu, gpu.updated_ns, 0).counter_mj;
    truth->forced_reasons = gpu.forced_reasons;
    truth->reasons = event_reasons(&gpu);
    truth->power_mw = gpu.power_mw;
    truth->clock_mhz = gpu.clock_mhz;
    truth->lock_mhz = gpu.lock_max_mhz;
    truth->requested_mw = gpu.requested_mw;
    truth->enforced_mw = enforced_mw(&gpu);
    truth->default_mw = gpu.board.default_mw;
    truth->load_permille = effective_load_permille(&gpu);
    truth->capped = gpu.capped;
    truth->flags = gpu.flags;
    truth->owner_pid = gpu.owner_pid;
    truth->processes = gpu.processes;
    truth->index = index;
    truth->max_clock_mhz = gpu.board.clock_max_mhz;
    memcpy(truth->uuid, gpu.uuid, sizeof truth->uuid);
    gpu.owner_pid = 0;
    gpu.draw_mw = -1;
    gpu.load_permille = 1000;
    solve(&gpu);
    truth->loaded_clock_mhz = gpu.clock_mhz;
    return OK;
}
