-- A ledger of format 1, as version 0.1.0 wrote it: a slice of a living command, a whole GPU, a waiter, an event.
PRAGMA journal_mode = WAL;
CREATE TABLE allocations (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, phase TEXT NOT NULL, created REAL NOT NULL,
    command TEXT NOT NULL, holder_pid INTEGER NOT NULL, holder_started INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL, profile TEXT, start INTEGER, size INTEGER, PRIMARY KEY (allocation_id, ordinal)
) STRICT;
CREATE TABLE granted_units (
    gpu_uuid TEXT NOT NULL, unit INTEGER NOT NULL,
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, PRIMARY KEY (gpu_uuid, unit)
) STRICT, WITHOUT ROWID;
CREATE INDEX granted_units_by_allocation ON granted_units (allocation_id);
CREATE TABLE owned_instances (
    gpu_uuid TEXT NOT NULL, profile TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, profile, start, size)
) STRICT, WITHOUT ROWID;
CREATE TABLE plans (
    id TEXT PRIMARY KEY, purpose TEXT NOT NULL, created REAL NOT NULL, session TEXT NOT NULL,
    allocation_id TEXT, status TEXT NOT NULL
) STRICT;
CREATE INDEX plans_by_status ON plans (status);
CREATE TABLE steps (
    plan_id TEXT NOT NULL REFERENCES plans(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL, step TEXT NOT NULL,
    status TEXT NOT NULL, before TEXT, PRIMARY KEY (plan_id, ordinal)
) STRICT, WITHOUT ROWID;
CREATE TABLE changing_gpus (
    gpu_uuid TEXT PRIMARY KEY, plan_id TEXT NOT NULL REFERENCES plans(id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TABLE waiters (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request TEXT NOT NULL,
    created REAL NOT NULL, command TEXT NOT NULL, pid INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    gpu_uuid TEXT NOT NULL, allocation_id TEXT NOT NULL, message TEXT NOT NULL
) STRICT;
PRAGMA user_version = 1;
INSERT INTO allocations VALUES ('aaaa0001', '{"gpuMemoryBytes": 4294967296, "isolation": "hard", "gpuModel": ""}', 'active', 1700000000.0, 'python train.py', 4242, 777);
INSERT INTO allocations VALUES ('aaaa0002', '{"gpus": 1, "isolation": "any", "gpuModel": ""}', 'preparing', 1700000001.0, 'nvidia-smi', 0, 0);
INSERT INTO grants VALUES ('aaaa0001', 0, 'GPU-0', '2g.10gb', 4, 2);
INSERT INTO grants VALUES ('aaaa0002', 0, 'GPU-1', NULL, NULL, NULL);
INSERT INTO granted_units VALUES ('GPU-0', 4, 'aaaa0001'), ('GPU-0', 5, 'aaaa0001');
INSERT INTO granted_units VALUES ('GPU-1', 0, 'aaaa0002'), ('GPU-1', 1, 'aaaa0002'), ('GPU-1', 2, 'aaaa0002'), ('GPU-1', 3, 'aaaa0002');
INSERT INTO granted_units VALUES ('GPU-1', 4, 'aaaa0002'), ('GPU-1', 5, 'aaaa0002'), ('GPU-1', 6, 'aaaa0002'), ('GPU-1', 7, 'aaaa0002');
INSERT INTO owned_instances VALUES ('GPU-0', '2g.10gb', 4, 2);
INSERT INTO waiters (id, request, created, command, pid) VALUES ('bbbb0001', '{"gpu": "1/2", "isolation": "any", "gpuModel": ""}', 1700000002.0, 'sleep 1', 4243);
INSERT INTO events (time, kind, gpu_uuid, allocation_id, message) VALUES (1700000000.0, 'Granted', '', 'aaaa0001', 'it was granted');
