/* What each board can be cut into. The tables are generated at build time from the product's board catalogue. */
#ifndef TRANCHE_BOARDS_H
#define TRANCHE_BOARDS_H

#include <stdbool.h>
#include <stdint.h>

#define BOARD_MAX_STARTS 8u
#define BOARD_MAX_CI_PROFILES 8u
#define BOARD_MAX_GI_IDS 15u
#define BOARD_MAX_PCI_IDS 8u

struct ci_profile {
    const char *name;
    uint16_t id; /* equals the NVML enum value */
    uint16_t slices;
    uint16_t max_instances;
    uint16_t multiprocessors;
};

struct gi_profile {
    const char *name;
    uint16_t enum_value;
    uint16_t id;
    uint16_t slices;
    uint32_t memory_mib;
    uint16_t multiprocessors;
    uint16_t copy_engines;
    uint16_t decoders;
    uint16_t encoders;
    uint16_t jpegs;
    uint16_t ofas;
    uint16_t max_instances;
    uint16_t size; /* in placement units */
    uint16_t start_count;
    uint8_t starts[BOARD_MAX_STARTS];
    bool media;     /* +me */
    bool all_media; /* +me.all */
    bool no_media;  /* -me */
    bool graphics;  /* +gfx */
    bool unverified;
    uint16_t ci_count;
    struct ci_profile cis[BOARD_MAX_CI_PROFILES];
};

/* Placement that a GPU-instance id stands for; size 0: the id does not exist on this die. */
struct gi_slot {
    uint8_t start;
    uint8_t size;
};

struct pci_ids {
    uint32_t device; /* 0xDDDDVVVV, as in NVML */
    uint32_t subsystem;
    uint32_t class_code;
};

/* Rules that hold for every board of a family. */
struct family {
    const char *name;
    uint32_t architecture; /* as NVML numbers them */
    bool row_remapping;    /* spare rows stand in for broken ones; older families retire pages */
    bool mode_change_needs_reset;
    bool mode_survives_boot;
    bool queries_need_mode; /* profile queries fail while MIG is off */
    /* What a tool measures for a GPU instance with its compute instance, by number of slices. */
    double create_seconds[9];
    double destroy_seconds[9];
};

struct board {
    const char *key;
    const char *name; /* product name as the driver gives it, of the first product */
    uint16_t pci_count;
    struct pci_ids pci[BOARD_MAX_PCI_IDS]; /* of its products; the first is the usual one */
    const struct family *family;
    uint16_t cc_major;
    uint16_t cc_minor;
    uint32_t brand;
    uint32_t memory_mib;
    uint32_t reserved_mib;
    uint16_t multiprocessors;
    uint16_t cores_per_multiprocessor;
    uint32_t power_limit_mw;
    uint32_t sm_clock_mhz;
    uint32_t memory_clock_mhz;
    uint32_t memory_bus_bits;
    uint16_t nvlinks;
    uint16_t pcie_generation;
    uint16_t compute_slices;
    uint16_t placement_units; /* 0: not MIG-capable */
    uint16_t max_mig_devices;
    bool ecc;
    bool coherent;      /* one chip with its processor, with shared page tables */
    bool unverified;
    uint16_t gi_count;
    const struct gi_profile *gis;
    struct gi_slot slots[2][BOARD_MAX_GI_IDS]; /* by orientation: [0] normal, [1] swapped */
};

extern const struct family family_table[];
extern const unsigned int family_table_size;
extern const struct board board_table[];
extern const unsigned int board_table_size;

const struct board *board_find(const char *key);
/* The ids of the product with that device id; for a device id missing from the catalogue, only NVIDIA's vendor. */
struct pci_ids board_pci_ids(const struct board *board, uint32_t device);
const struct gi_profile *board_profile_by_id(const struct board *board, unsigned int id);
const struct gi_profile *board_profile_by_enum(const struct board *board, unsigned int value);
const struct ci_profile *gi_profile_ci(const struct gi_profile *profile, unsigned int id);

#endif
