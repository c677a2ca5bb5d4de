-- What version 2 added.

-- What censuses have found, each once.
CREATE TABLE heap (
  process INTEGER NOT NULL,
  unix_ms INTEGER NOT NULL,
  allocator TEXT NOT NULL,
  mapped INTEGER NOT NULL,
  resident INTEGER NOT NULL,
  held INTEGER NOT NULL,
  objects INTEGER NOT NULL,
  live INTEGER NOT NULL,
  cached INTEGER NOT NULL,
  free INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  trimmable INTEGER,
  PRIMARY KEY (process, unix_ms, allocator)
) STRICT, WITHOUT ROWID;

CREATE INDEX heap_time ON heap (unix_ms);
