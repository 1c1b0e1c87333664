/* What a fake GPU is: its record in the state file, and the functions that read and change it.
 *
 * The state file holds one page of header and then one record of RECORD_BYTES per GPU. Invariants:
 *   - A record is only ever replaced whole, by one write that crosses no page, under a kernel lock
 *     (flock). A writer may be killed at any instruction: the lock goes with it, and the record is
 *     the old one or the new one.
 *   - A reader takes no lock and writes nothing. Energy at a moment is a function of the record and
 *     of that moment, so any number of readers neither lose nor double any of it.
 *   - Energy is whole picojoules (milliwatts x nanoseconds) with a carry: it drifts nowhere.
 */
#ifndef FAKE_NVML_DEVICE_H
#define FAKE_NVML_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STATE_VERSION = 1,
    HEADER_BYTES = 4096,
    RECORD_BYTES = 2048,
    GPUS_MAX = 256,
    PROCESSES_MAX = 20,
    CHANGES_MAX = 48,
    MIG_INSTANCES = 2,
    MIG_SLOTS = 7,
    POWER_MAX_MW = 1000000000, /* a megawatt */
};

/* Return codes: those of NVML that this library gives. */
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMED_OUT = 10,
    CORRUPTED = 14,
    GPU_IS_LOST = 15,
    OPERATING_SYSTEM = 17,
    VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
};

/* Clocks event reasons. */
enum { REASON_IDLE = 0x1, REASON_SW_POWER_CAP = 0x4 };

/* What is true or not of a GPU. */
enum {
    FLAG_LOST = 1 << 0,
    FLAG_FROZEN = 1 << 1,
    FLAG_NO_COUNTER = 1 << 2,
    FLAG_MIG = 1 << 3,
    FLAG_PERSISTENCE = 1 << 4,
    FLAG_POWER_PROFILE = 1 << 5,
    FLAG_VIRTUAL = 1 << 6,
};

/* A kind of board. Power at load u (0..1) and clock f, with x = f / clock_max_mhz:
 *     idle + u * (active + linear * x + switching * x * max(voltage_floor, x)^2)
 * the usual CMOS shape: leakage, a part that follows frequency, and a part that follows frequency
 * and voltage squared, where voltage follows frequency down to a floor. */
struct board {
    char name[64];
    uint32_t architecture, compute_major, compute_minor;
    uint32_t default_mw, min_mw, max_mw;
    uint32_t idle_mw, active_mw, linear_mw, switching_mw, voltage_floor_permille;
    uint32_t clock_max_mhz, clock_min_mhz, clock_step_mhz, clock_idle_mhz, memory_clock_mhz;
    uint32_t averages;       /* 1: GetPowerUsage is a 1 s average and field 185 exists (not GA100) */
    uint32_t power_profiles; /* 1: the board knows workload power profiles (Blackwell) */
    uint64_t memory_bytes;
};

/* A compute process on a GPU. start_ticks 0: listed whatever becomes of the process. */
struct process {
    uint32_t pid, utilization; /* percent of the SMs */
    uint64_t start_ticks, memory_bytes;
};

/* From since_ns on the GPU drew power_mw. */
struct change {
    uint64_t since_ns;
    uint64_t power_mw;
};

/* An amount of energy: millijoules, and a carry in picojoules times `scale` below 1 mJ. */
struct energy {
    uint64_t mj, carry;
};

struct record {
    uint64_t check; /* FNV-1a of all that follows */
    uint64_t boot;  /* FNV-1a of the boot id: CLOCK_MONOTONIC means nothing beyond it */
    char uuid[48];
    char mig_uuid[MIG_INSTANCES][48];
    uint32_t index, flags;
    struct board board;

    /* How its sensor looks: power and counter change every update_ms (0: always up to date), and
     * see only the first window_ms of each period_ms (both 1: they see everything). */
    uint32_t update_ms, period_ms, window_ms;

    /* What was asked of it. */
    uint32_t requested_mw, out_of_band_mw; /* out_of_band_mw 0: no such cap */
    uint32_t lock_min_mhz, lock_max_mhz;   /* 0: not locked */
    uint32_t memory_lock_mhz;
    uint32_t load_permille;
    int64_t draw_mw; /* -1: power follows the model */
    uint64_t forced_reasons, hang_ns;

    /* The process that keeps it busy (pid 0: nobody), and when that was last seen alive. */
    uint32_t owner_pid, owner_load_permille;
    uint64_t owner_start_ticks, owner_seen_ns;

    /* What follows from all that, since updated_ns. */
    uint32_t clock_mhz, power_mw, capped, reserved;
    uint64_t updated_ns;
    struct energy drawn;   /* since creation: the truth */
    struct energy sensed;  /* since creation, as the sensor saw it; its carry has scale window_ms */
    struct energy base;    /* what `sensed` was when the counter was last set to zero */
    uint64_t capped_ns;    /* time for which the power limit held the clock down */

    /* The readings that a frozen sensor repeats. */
    uint64_t frozen_counter_mj, frozen_wall_us;
    uint32_t frozen_power_mw, frozen_average_mw;

    uint32_t processes, changes;
    struct process process[PROCESSES_MAX];
    struct change change[CHANGES_MAX];
};

struct header {
    uint64_t check;
    char magic[8];
    uint32_t version, record_bytes, gpus, permitted;
    uint64_t boot;
    char driver[64];
};

/* One opened state file. */
struct state {
    char path[1024];
    int descriptor; /* for reading */
    struct header header;
};

/* What the sensor of a GPU says at one moment. */
struct sensed {
    uint64_t counter_mj, wall_us;
    uint32_t power_mw, average_mw;
};

/* physics.c: pure, but for its arguments. */
void solve(struct record *gpu);
void advance(struct record *gpu, uint64_t now_ns);
struct sensed sense(const struct record *gpu, uint64_t now_ns, uint64_t wall_us);
uint32_t enforced_mw(const struct record *gpu);
uint32_t effective_load_permille(const struct record *gpu);
uint64_t event_reasons(const struct record *gpu);
void zero_counter(struct record *gpu);
void reload(struct record *gpu);
void set_window(struct record *gpu, uint32_t period_ms, uint32_t window_ms);
void set_update(struct record *gpu, uint32_t update_ms);

/* state.c: the file, the lock, the clock and the processes. */
typedef int (*change_fn)(struct record *gpu, void *argument);
uint64_t monotonic_ns(void);
uint64_t wall_us(void);
uint64_t started_ticks(uint32_t pid);
uint64_t fnv(const void *bytes, size_t count);
uint64_t boot_number(void);
void seal(struct record *gpu);
void seal_header(struct header *header);
int state_open(struct state *state, const char *path);
void state_close(struct state *state);
int state_header(struct state *state);
int state_permit(struct state *state, bool permitted);
int peek(struct state *state, uint32_t index, struct record *gpu);
int look(struct state *state, uint32_t index, struct record *gpu);
int alter(struct state *state, uint32_t index, change_fn change, void *argument);

#endif
