/*
 * Every setting of the library: one table (settings.c) with name, type,
 * range, default and text. The environment variable of setting `name` is
 * POLYPATH_NAME. Values are read once, at first use.
 */
#ifndef SYSTEM_SETTINGS_H
#define SYSTEM_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct settings {
    /* waiting */
    uint64_t timeout_ms;
    uint64_t spin;            /* polls before yielding the core */
    uint64_t progress_thread; /* 0 never, 1 always, 2 auto */
    /* paths */
    const char *paths;          /* comma list of path names to use; "" = all */
    const char *interfaces;     /* comma list of interfaces; "^a,b" leaves out */
    const char *host_id;        /* "" = derived from the kernel and network namespace */
    uint64_t ip_family;         /* 0 any, 4, 6 */
    uint64_t tcp_streams;       /* connections per peer and interface */
    uint64_t tcp_notsent_bytes; /* TCP_NOTSENT_LOWAT */
    const char *tcp_congestion; /* "" = the system's */
    uint64_t shm;               /* bool: use shared memory inside a host */
    uint64_t cma;               /* bool: use process_vm_readv inside a host */
    const char *bootstrap_interface;
    const char *secret; /* of the job, for launchers without a private channel; "" = none */
    /* GPUs */
    uint64_t cuda_streams;   /* bool: operations on streams, which have a known fault (docs/nccl.md) */
    const char *cuda_driver; /* library; "" = no GPUs */
    /* schedules and memory */
    const char *algorithm;  /* "" = by the model */
    uint64_t chunk_bytes;   /* 0 = by the model */
    uint64_t scratch_bytes; /* cap on scratch memory per communicator and rank */
    uint64_t shm_bytes;     /* cap on shared memory per communicator and rank */
    uint64_t stage_bytes;   /* of a slot of the stage */
    uint64_t mapped;        /* bool: registered memory is worked on in place */
    uint64_t reproducible;  /* bool */
    uint64_t numa;          /* 0 off, 1 auto, 2 on */
    const char *numa_node;  /* of this rank; "" = by the cores that it may use */
    uint64_t hand_over;     /* bool: paths take queued chunks of others when free */
    /* balancer */
    const char *shares;      /* fixed shares "0.8,0.2"; "" = balanced */
    uint64_t tune;           /* bool: measure at creation */
    const char *cache;       /* file; "" = in the user's cache folder; "none" = no cache */
    uint64_t balance_window; /* calls between two agreed adjustments */
    /* log */
    uint64_t log;
    const char *log_file;
};

/* SETTING_SECRET: a string that is never printed. */
enum setting_type { SETTING_BOOL, SETTING_NUMBER, SETTING_BYTES, SETTING_STRING, SETTING_CHOICE, SETTING_SECRET };

struct setting {
    const char *name;
    enum setting_type type;
    size_t offset; /* in struct settings */
    uint64_t minimum, maximum;
    const char *fallback; /* the default, as text */
    const char
        *choices; /* SETTING_CHOICE: "none error warn", value = position (or the number itself, see settings.c) */
    const char *text;
    bool agreed; /* all ranks use rank 0's value */
};

/*
 * Another default for entry `name`, for front ends whose programs say what they
 * want in another way. Only before the first use of the settings, by one thread.
 * `value` must live on.
 */
void settings_prefer(const char *name, const char *value);

/* All values. Parsed at first use; valid for the life of the process. */
const struct settings *settings_get(void);

/* The table, for `polypath config` and the manual. */
const struct setting *settings_table(size_t *count);

/* "environment" or "default" for entry i of the table. */
const char *settings_origin(size_t index);

/* Writes the current value of entry i as text; of a secret only whether it is set. */
void settings_format(size_t index, char *text, size_t bytes);

/*
 * Parses `text` for one entry into *values. Returns false (with the error text
 * set, naming the range) if it does not fit. For tests and for the table itself.
 */
bool settings_parse(const struct setting *setting, const char *text, struct settings *values);

/*
 * The warnings that reading the environment gave (unknown POLYPATH_* names
 * with the nearest right one, values out of range). They are also logged.
 */
const char *const *settings_warnings(size_t *count);

/* The name in the table nearest to `name` by edit distance. */
const char *settings_nearest(const char *name);

#endif
