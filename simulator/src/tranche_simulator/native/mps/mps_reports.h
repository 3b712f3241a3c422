/* The first lines of the tables that a server prints, or the daemon while there is no server. */
#ifndef TRANCHE_MPS_REPORTS_H
#define TRANCHE_MPS_REPORTS_H

#define MPS_PS_HEADER "PID       ID    SERVER    DEVICE                   NAMESPACE   COMMAND\n"
#define MPS_PS_ROW "%-9d %-5u %-9d %-24s %-11llu %s\n"
#define MPS_DEVICES_HEADER "Device Ordinal  PCI IDs           UUID                                      Name\n"
#define MPS_DEVICES_ROW "%-15u %-17s %-41s %s\n"
#define MPS_DEVICES_CSV_HEADER "Device Ordinal,PCI IDs,UUID,Name\n"
#define MPS_DEVICES_CSV_ROW "%u,%s,%s,%s\n"

#endif
