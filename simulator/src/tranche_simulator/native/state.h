/* The machine's state: one file, mapped by every process that loads the library.
 *
 * Kill safety. What a driver call changes about one GPU lives in two copies. A writer prepares the copy that readers
 * do not use and makes it current by one atomic store of `generation` (its lowest bit selects the copy), so a process
 * killed at any instant leaves the state before or after its call. Writers of one GPU are serialised by a record lock
 * on an open file description, which the kernel drops with the process.
 */
#ifndef TRANCHE_STATE_H
#define TRANCHE_STATE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "boards.h"
#include "memory_groups.h"
#include "tranche_sim.h"

#define STATE_MAGIC "TRNCHSIM"
#define STATE_LAYOUT 6u
#define STATE_MAX_CIS 8u
#define STATE_MAX_CLIENTS 1024u
#define STATE_MAX_FAULTS 64u
#define STATE_EVENT_RING 64u
#define STATE_MAX_COUNTERS 31u
#define STATE_MAX_LANES 512u
#define STATE_LANE_DEPTH 32u
#define STATE_UNITS (BOARD_MAX_GI_IDS * STATE_MAX_CIS + 1u)
#define NO_LANE 0xFFFFFFFFu
#define STATE_MAX_LIMITS 512u
#define NO_INSTANCE TRANCHE_SIM_NO_INSTANCE

struct ci_state {
    uint8_t live;
    uint8_t profile; /* index in gi_profile.cis */
    uint8_t start;
    uint8_t size;
};

struct gi_state {
    uint8_t live;
    uint8_t profile; /* index in board.gis */
    uint8_t start;
    uint8_t size;
    struct ci_state cis[STATE_MAX_CIS];
};

struct gpu_state {
    uint64_t boot; /* other than the machine's: this GPU was rebooted since and shows that when read */
    uint8_t mig_current;
    uint8_t mig_pending;
    uint8_t persistence;
    uint8_t compute_mode;
    uint8_t timeslice; /* as nvidia-smi compute-policy numbers them: 0 default, 1 short, 2 medium, 3 long */
    struct gi_state gis[BOARD_MAX_GI_IDS];
};

struct event_record {
    uint64_t type;
    uint64_t data;
    uint32_t gpu_instance;
    uint32_t compute_instance;
};

struct gpu_record {
    /* Fixed at creation. */
    char board[48];
    char name[TRANCHE_SIM_NAME_SIZE];
    char uuid[64];
    char serial[32];
    uint32_t pci_device_id;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t swapped;
    uint32_t numa_node;
    /* Single-word switches of the outside world. */
    _Atomic uint32_t lost;
    _Atomic uint32_t stuck_mode;
    /* Driver state. */
    _Atomic uint64_t generation;
    struct gpu_state copies[2];
    _Atomic uint64_t event_count;
    struct event_record events[STATE_EVENT_RING];
};

enum client_kind { CLIENT_FREE = 0, CLIENT_LIVE = 1, CLIENT_PHANTOM = 2 };

struct client_record {
    _Atomic uint32_t kind;
    _Atomic uint32_t turn; /* changes whenever the slot gets another owner */
    uint64_t boot;
    uint32_t pid;
    uint32_t gpu;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    _Atomic uint64_t memory_bytes;
    uint32_t utilization;
    uint32_t mps_server; /* pid of the MPS server through which it reaches the GPU; 0: none */
    uint32_t mps_client; /* that server's number for it: pids of containers are not unique */
    _Atomic uint32_t evicted; /* the driver has taken its memory back for another client */
    _Atomic uint64_t computed; /* nanoseconds of a whole GPU that its work has had */
    char name[64];
};

/* A piece of work for a GPU: a kernel, or a mark without work of its own that others wait for. */
struct lane_item {
    uint64_t work;         /* nanoseconds that it takes on a whole GPU that does nothing else, before the time scale */
    uint32_t width;        /* multiprocessors that it can use */
    uint32_t after_lane;   /* it begins when that lane has done so much; NO_LANE: at once */
    uint32_t after_turn;
    uint64_t after_item;
    uint64_t finished_at;  /* nanoseconds of CLOCK_MONOTONIC */
};

/* Work that is done one piece after the other, as a stream's is. Owned by a client, and void when that is dead. */
struct lane {
    _Atomic uint32_t used;
    _Atomic uint32_t turn; /* changes whenever the lane gets another owner */
    uint32_t client;       /* slot */
    uint32_t client_turn;
    uint32_t gpu;
    uint32_t unit;
    uint32_t ceiling;      /* multiprocessors that it may use at a time; 0: all */
    uint64_t group;        /* lanes of one group run at the same time, groups take turns */
    _Atomic uint64_t issued;
    _Atomic uint64_t done;
    _Atomic uint64_t left; /* of the first item that is not done, as its work */
    struct lane_item items[STATE_LANE_DEPTH];
};

/* What a control group may have of a GPU's memory, in bytes. */
struct memory_limit {
    _Atomic uint32_t used;
    uint32_t gpu;
    struct group_chain chain;
    _Atomic uint32_t current; /* its lowest bit selects the pair that counts */
    struct {
        uint64_t soft;
        uint64_t hard;
    } values[2];
};

enum limits_backend { LIMITS_MISC = 0, LIMITS_DMEM = 1, LIMITS_OFF = 2, LIMITS_LAX = 3 };

/* A GPU or a compute instance, which divides its time among its clients. */
struct compute_unit {
    _Atomic uint64_t settled_at; /* nanoseconds of CLOCK_MONOTONIC up to which the lanes are right */
    _Atomic uint64_t holder;     /* the group whose turn it is */
    _Atomic uint64_t slice_left; /* nanoseconds of its turn, before the time scale */
};

enum fault_kind { FAULT_NONE = 0, FAULT_ERROR = 1, FAULT_LATENCY = 2 };

struct fault_record {
    _Atomic uint32_t kind;
    _Atomic uint32_t calls_left;
    uint32_t gpu;
    uint32_t code;
    double seconds;
    char function[96];
};

struct machine_state {
    char magic[8];
    uint32_t layout;
    uint32_t size;
    char name[TRANCHE_SIM_NAME_SIZE];
    uint32_t gpu_count;
    uint32_t owner_uid;
    uint64_t seed;
    _Atomic uint64_t time_scale; /* the bits of a double */
    _Atomic uint64_t driver; /* its version, as driver_release.c numbers it; 0: the usual one */
    _Atomic uint32_t limits_backend; /* enum limits_backend */
    _Atomic uint32_t limits_in_use;  /* slots from here on were never used */
    _Atomic uint64_t context_bytes; /* what every CUDA context takes; 0: by the number of its multiprocessors */
    _Atomic uint64_t boots;
    _Atomic uint64_t changes[STATE_MAX_COUNTERS];
    _Atomic uint64_t changed_at; /* nanoseconds of CLOCK_MONOTONIC at the last commit; 0: none yet */
    _Atomic uint32_t faults_in_use;  /* slots from here on were never used */
    _Atomic uint32_t clients_in_use; /* likewise */
    struct gpu_record gpus[TRANCHE_SIM_MAX_GPUS];
    struct fault_record faults[STATE_MAX_FAULTS];
    struct client_record clients[STATE_MAX_CLIENTS];
    _Atomic uint32_t lanes_in_use; /* slots from here on were never used */
    /* From here on a new machine's file is a hole: pages appear as they are written. */
    struct lane lanes[STATE_MAX_LANES];
    struct compute_unit units[TRANCHE_SIM_MAX_GPUS][STATE_UNITS];
    struct group_chain client_groups[STATE_MAX_CLIENTS];
    struct memory_limit limits[STATE_MAX_LIMITS];
};

/* An opened machine. Stays mapped until closed; safe to use from several threads. */
struct trancheSimMachine_st {
    char path[4096];
    dev_t device;
    ino_t inode;
    bool writable;
    struct machine_state *state;
    const struct board *boards[TRANCHE_SIM_MAX_GPUS];
};

typedef struct trancheSimMachine_st machine;

/* state_file.c */
nvmlReturn_t machine_open(const char *path, machine **opened);
void machine_close(machine *m);

/* state_lock.c: a lock held by this call alone; released by state_unlock or by the death of the process. */
enum lock_place {
    LOCK_GPU = 0,     /* what a call changes about a GPU; held for as long as the change takes */
    LOCK_MEMORY = 32, /* the holders of a GPU's memory; taken after LOCK_GPU if both are */
    LOCK_TABLES = 64,
    LOCK_CLIENT = 128,
    LOCK_COMPUTE = 2048 /* the lanes of a GPU; LOCK_TABLES is taken before it if both are */
};
nvmlReturn_t state_lock(const machine *m, unsigned int place, int *lock);
void state_unlock(int lock);
/* Opens the state and locks `place`, or fails at once (IN_USE) when another call holds it. */
nvmlReturn_t state_try_lock(const machine *m, unsigned int place, int *lock);
/* A descriptor to ask about locks with. */
nvmlReturn_t state_lock_reader(const machine *m, int *reader);
bool state_is_locked(int reader, unsigned int place);

/* The time on CLOCK_MONOTONIC. */
uint64_t monotonic_nanoseconds(void);

/* state_gpu.c */
void gpu_read(const machine *m, unsigned int gpu, struct gpu_state *copy);
/* The caller holds the GPU's lock and read `next` from gpu_read before changing it. */
void gpu_commit(machine *m, unsigned int gpu, const struct gpu_state *next);
void gpu_apply_pending_mode(const machine *m, unsigned int gpu, struct gpu_state *state);

/* permission.c */
bool caller_may_change(const machine *m);

/* counters.c */
enum change_call {
    CHANGE_SET_MIG_MODE,
    CHANGE_CREATE_GPU_INSTANCE,
    CHANGE_CREATE_GPU_INSTANCE_WITH_PLACEMENT,
    CHANGE_DESTROY_GPU_INSTANCE,
    CHANGE_CREATE_COMPUTE_INSTANCE,
    CHANGE_CREATE_COMPUTE_INSTANCE_WITH_PLACEMENT,
    CHANGE_DESTROY_COMPUTE_INSTANCE,
    CHANGE_RESET_GPU,
    CHANGE_SET_PERSISTENCE_MODE,
    CHANGE_SET_COMPUTE_MODE,
    CHANGE_SET_TIMESLICE,
    CHANGE_SET_MEMORY_LIMITS,
    CHANGE_COUNT
};
void count_change(machine *m, enum change_call call);

/* timing.c: sleeps the simulated duration, scaled. */
void simulate_mode_change(const machine *m);
void simulate_reset(const machine *m);
void simulate_mps_start(const machine *m, unsigned int devices);
void simulate_gi_create(const machine *m, const struct board *board, unsigned int slices);
void simulate_gi_destroy(const machine *m, const struct board *board, unsigned int slices);
void simulate_ci_create(const machine *m, const struct board *board, unsigned int slices);
void simulate_ci_destroy(const machine *m, const struct board *board, unsigned int slices);
void sleep_seconds(double seconds);
/* The machine's own, regardless of this process's environment: what several processes share runs by it. */
double machine_time_scale(const machine *m);

#endif
