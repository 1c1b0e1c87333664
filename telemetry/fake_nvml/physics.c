/* What a fake GPU draws and what its sensor tells: functions of the record and of the time. */
#include "device.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide;

#define PJ_PER_MJ 1000000000u
#define NS_PER_MS 1000000u
#define AVERAGE_NS 1000000000u /* field 185 and GetPowerUsage average over one second */

uint32_t enforced_mw(const struct record *gpu) {
    uint32_t outside = gpu->out_of_band_mw;
    return outside && outside < gpu->requested_mw ? outside : gpu->requested_mw;
}

uint32_t effective_load_permille(const struct record *gpu) {
    return gpu->owner_pid ? gpu->owner_load_permille : gpu->load_permille;
}

/* Give what the board would draw at this clock, in milliwatts. */
static uint32_t modelled_mw(const struct board *board, uint32_t clock_mhz, uint32_t load_permille) {
    double share = (double)clock_mhz / board->clock_max_mhz;
    double floor = board->voltage_floor_permille / 1000.0;
    double voltage = share > floor ? share : floor;
    double active = board->active_mw + board->linear_mw * share +
                    board->switching_mw * share * voltage * voltage;
    double power = board->idle_mw + active * load_permille / 1000.0 + 0.5;
    return power < POWER_MAX_MW ? (uint32_t)power : POWER_MAX_MW;
}

/* Bring a clock to one that the board has: the highest that is not above it. */
static uint32_t on_grid(const struct board *board, uint32_t clock_mhz) {
    if (clock_mhz >= board->clock_max_mhz) return board->clock_max_mhz;
    if (clock_mhz <= board->clock_min_mhz) return board->clock_min_mhz;
    uint32_t below_max = board->clock_max_mhz - clock_mhz;
    uint32_t steps = (below_max + board->clock_step_mhz - 1) / board->clock_step_mhz;
    uint32_t down = steps * board->clock_step_mhz;
    return down < board->clock_max_mhz - board->clock_min_mhz ? board->clock_max_mhz - down
                                                              : board->clock_min_mhz;
}

/* Find clock and power under load, lock and limit, and note a change of power. A power that was
 * set outright is cut at the limit too, and the clock then says so as on a board. */
void solve(struct record *gpu) {
    const struct board *board = &gpu->board;
    uint32_t limit = enforced_mw(gpu), load = effective_load_permille(gpu);
    uint32_t clock = on_grid(board, gpu->lock_max_mhz ? gpu->lock_max_mhz : board->clock_max_mhz);
    uint32_t power;
    gpu->capped = 0;
    if (gpu->draw_mw >= 0) {
        power = gpu->draw_mw < POWER_MAX_MW ? (uint32_t)gpu->draw_mw : POWER_MAX_MW;
        if (power <= board->idle_mw && !load && clock > board->clock_idle_mhz)
            clock = board->clock_idle_mhz;
    } else if (!load) {
        power = board->idle_mw;
        if (clock > board->clock_idle_mhz) clock = board->clock_idle_mhz;
    } else {
        power = modelled_mw(board, clock, load);
        while (power > limit && clock > board->clock_min_mhz) {
            clock = on_grid(board, clock - 1);
            power = modelled_mw(board, clock, load);
            gpu->capped = 1;
        }
    }
    if (power > limit) {
        power = limit;
        gpu->capped = 1;
    }
    gpu->clock_mhz = clock;
    gpu->power_mw = power;
    struct change *last = gpu->changes ? &gpu->change[gpu->changes - 1] : NULL;
    if (last && last->power_mw == power) return;
    if (last && last->since_ns == gpu->updated_ns) {
        last->power_mw = power;
        return;
    }
    if (gpu->changes == CHANGES_MAX) {
        memmove(&gpu->change[0], &gpu->change[1], (CHANGES_MAX - 1) * sizeof gpu->change[0]);
        gpu->changes--;
    }
    gpu->change[gpu->changes++] = (struct change){gpu->updated_ns, power};
}

/* Give for how much of [0, t) the sensor looks. */
static uint64_t looked_ns(const struct record *gpu, uint64_t t_ns) {
    uint64_t period = (uint64_t)gpu->period_ms * NS_PER_MS;
    uint64_t window = (uint64_t)gpu->window_ms * NS_PER_MS, rest = t_ns % period;
    return t_ns / period * window + (rest < window ? rest : window);
}

static void add(struct energy *sum, wide amount, uint64_t unit) {
    amount += sum->carry;
    sum->mj += (uint64_t)(amount / unit);
    sum->carry = (uint64_t)(amount % unit);
}

static uint64_t sensed_unit(const struct record *gpu) {
    return (uint64_t)PJ_PER_MJ * gpu->window_ms;
}

void advance(struct record *gpu, uint64_t now_ns) {
    if (now_ns <= gpu->updated_ns) return; /* two writers may come out of order */
    uint64_t from = gpu->updated_ns, looked = looked_ns(gpu, now_ns) - looked_ns(gpu, from);
    add(&gpu->drawn, (wide)gpu->power_mw * (now_ns - from), PJ_PER_MJ);
    add(&gpu->sensed, (wide)gpu->power_mw * looked * gpu->period_ms, sensed_unit(gpu));
    if (gpu->capped) gpu->capped_ns += now_ns - from;
    gpu->updated_ns = now_ns;
}

/* Sum power over [from, to): what the sensor saw of it, or all of it; mW x ns. */
static wide summed(const struct record *gpu, uint64_t from_ns, uint64_t to_ns, bool all) {
    wide sum = 0;
    for (uint32_t i = 0; i < gpu->changes; i++) {
        uint64_t start = gpu->change[i].since_ns;
        uint64_t end = i + 1 < gpu->changes ? gpu->change[i + 1].since_ns : UINT64_MAX;
        if (start < from_ns) start = from_ns;
        if (end > to_ns) end = to_ns;
        if (start >= end) continue;
        uint64_t span = all ? end - start : looked_ns(gpu, end) - looked_ns(gpu, start);
        sum += (wide)gpu->change[i].power_mw * span;
    }
    return sum;
}

/* Give the mean power of [from, to) as far as it is remembered. */
static uint32_t mean_mw(const struct record *gpu, uint64_t from_ns, uint64_t to_ns, bool all) {
    if (gpu->changes && gpu->change[0].since_ns > from_ns) from_ns = gpu->change[0].since_ns;
    uint64_t span = 0;
    if (to_ns > from_ns)
        span = all ? to_ns - from_ns : looked_ns(gpu, to_ns) - looked_ns(gpu, from_ns);
    if (!span) return gpu->changes ? (uint32_t)gpu->change[0].power_mw : gpu->power_mw;
    return (uint32_t)((summed(gpu, from_ns, to_ns, all) + span / 2) / span);
}

/* Give what the sensor says at now_ns; `gpu` is advanced to it. Readings change at the end of each
 * window and hold until the next; they are the mean of that window. */
struct sensed sense(const struct record *gpu, uint64_t now_ns, uint64_t wall) {
    if (gpu->flags & FLAG_FROZEN)
        return (struct sensed){gpu->frozen_counter_mj, gpu->frozen_wall_us, gpu->frozen_power_mw,
                               gpu->frozen_average_mw};
    bool partial = gpu->period_ms > 1;
    uint64_t period = (uint64_t)(partial ? gpu->period_ms : gpu->update_ms) * NS_PER_MS;
    uint64_t window = partial ? (uint64_t)gpu->window_ms * NS_PER_MS : period;
    uint64_t end = now_ns;
    struct sensed out = {.power_mw = gpu->power_mw};
    if (period) {
        uint64_t start = now_ns >= window ? (now_ns - window) / period * period : 0;
        end = now_ns >= window ? start + window : 0; /* nothing yet in the first window since boot */
        out.power_mw = mean_mw(gpu, start, end, true);
    }
    out.wall_us = wall - (now_ns - end) / 1000;
    out.average_mw = mean_mw(gpu, end > AVERAGE_NS ? end - AVERAGE_NS : 0, end, false);
    uint64_t unit = sensed_unit(gpu);
    wide since_base = (wide)(gpu->sensed.mj - gpu->base.mj) * unit + gpu->sensed.carry;
    wide later = summed(gpu, end, now_ns, false) * gpu->period_ms + gpu->base.carry;
    out.counter_mj = since_base > later ? (uint64_t)((since_base - later) / unit) : 0;
    return out;
}

uint64_t event_reasons(const struct record *gpu) {
    uint64_t reasons = gpu->forced_reasons;
    bool idle = gpu->draw_mw >= 0 ? gpu->draw_mw <= (int64_t)gpu->board.idle_mw : true;
    if (idle && !effective_load_permille(gpu)) reasons |= REASON_IDLE;
    if (gpu->capped) reasons |= REASON_SW_POWER_CAP;
    return reasons;
}

void zero_counter(struct record *gpu) { gpu->base = gpu->sensed; }

/* Do what loading the driver anew does; a cap set out of band is not the driver's and stays. */
void reload(struct record *gpu) {
    zero_counter(gpu);
    gpu->requested_mw = gpu->board.default_mw;
    gpu->lock_min_mhz = gpu->lock_max_mhz = gpu->memory_lock_mhz = 0;
    gpu->capped_ns = 0;
    gpu->flags &= ~(uint32_t)FLAG_POWER_PROFILE;
}

/* Let a sensor that was changed look from now on: what it saw before, it saw as it was then. */
static void forget(struct record *gpu) {
    gpu->changes = 1;
    gpu->change[0] = (struct change){gpu->updated_ns, gpu->power_mw};
}

void set_window(struct record *gpu, uint32_t period_ms, uint32_t window_ms) {
    /* Carries have the scale of the window; what is lost is below a picojoule. */
    gpu->sensed.carry = (uint64_t)((wide)gpu->sensed.carry * window_ms / gpu->window_ms);
    gpu->base.carry = (uint64_t)((wide)gpu->base.carry * window_ms / gpu->window_ms);
    gpu->period_ms = period_ms;
    gpu->window_ms = window_ms;
    forget(gpu);
}

void set_update(struct record *gpu, uint32_t update_ms) {
    gpu->update_ms = update_ms;
    forget(gpu);
}
