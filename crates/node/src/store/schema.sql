-- The history of a node. Times are milliseconds since 1970, sizes are bytes, counters never fall within a run.

CREATE TABLE fact (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One daemon from its start to its end: counters begin at 0 with it.
CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  boot TEXT NOT NULL
) STRICT;

CREATE TABLE process (
  id INTEGER PRIMARY KEY,
  boot TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start_time INTEGER NOT NULL,
  exe TEXT NOT NULL,
  comm TEXT NOT NULL,
  labels TEXT NOT NULL,
  -- The moment that it was last seen in; null while it is watched.
  last INTEGER,
  UNIQUE (boot, pid, start_time, exe)
) STRICT;

CREATE TABLE profile (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  UNIQUE (name, kind)
) STRICT;

CREATE TABLE moment (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  unix_ms INTEGER NOT NULL,
  complete INTEGER NOT NULL,
  killed INTEGER NOT NULL,
  some_avg10 REAL,
  full_avg10 REAL,
  self_cpu_seconds REAL NOT NULL,
  self_rss_bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX moment_time ON moment (unix_ms);

-- In the order in which they are written: what a tick adds lies together, and the oldest go as one piece.
CREATE TABLE sample (
  moment INTEGER NOT NULL,
  process INTEGER NOT NULL,
  level INTEGER NOT NULL,
  hits INTEGER NOT NULL,
  cost_seconds REAL NOT NULL,
  rss INTEGER,
  anon INTEGER,
  file INTEGER,
  shmem INTEGER,
  swap INTEGER,
  vsz INTEGER,
  pss INTEGER,
  minor_faults INTEGER,
  major_faults INTEGER,
  cgroup INTEGER,
  cgroup_limit INTEGER,
  PRIMARY KEY (moment, process)
) STRICT, WITHOUT ROWID;

CREATE TABLE count (
  moment INTEGER NOT NULL,
  process INTEGER NOT NULL,
  profile INTEGER NOT NULL,
  opened INTEGER NOT NULL,
  drainable INTEGER NOT NULL,
  pinned INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  open_now INTEGER NOT NULL,
  retained_granules INTEGER,
  retained_bytes INTEGER,
  PRIMARY KEY (moment, process, profile)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  unix_ms INTEGER NOT NULL,
  pid INTEGER,
  kind TEXT NOT NULL,
  text TEXT NOT NULL
) STRICT;

CREATE INDEX event_time ON event (unix_ms);

CREATE TABLE window (
  id INTEGER PRIMARY KEY,
  began_ms INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  record TEXT NOT NULL,
  -- A drainprof.report/1 as JSON, compressed as gzip does.
  report BLOB
) STRICT;
