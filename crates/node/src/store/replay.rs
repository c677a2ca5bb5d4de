//! A recording of a node, `drainprof.node/1` documents one a line, on the road that live data takes.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read},
};

use super::{error::StoreError, moment::Moment, writer::Writer};
use crate::{NodeState, SCHEMA, WindowRecord};

/// Bytes of one line: a state of some ten thousand processes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Appends every state of a recording, and says how many there were. Blank lines are skipped; a line that is no state
/// ends it with its number, and what came before it is kept.
pub fn replay(recording: &mut dyn BufRead, writer: &mut Writer) -> Result<u64, StoreError> {
    let mut buffer = Vec::new();
    let mut states = 0;
    let mut windows: BTreeMap<u64, WindowRecord> = BTreeMap::new();
    for line in 1u64.. {
        let wrong = |what: String| StoreError::Line { line, what };
        buffer.clear();
        let read = Read::take(&mut *recording, MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut buffer)
            .map_err(|error| wrong(format!("cannot read it: {error}")))?;
        if read == 0 {
            break;
        }
        if buffer.len() as u64 > MAX_LINE_BYTES {
            return Err(wrong(format!("it has more than {} MiB", MAX_LINE_BYTES >> 20)));
        }
        if buffer.trim_ascii().is_empty() {
            continue;
        }
        let state: NodeState = serde_json::from_slice(&buffer)
            .map_err(|error| wrong(format!("it is no {SCHEMA}: {error}")))?;
        if state.schema != SCHEMA {
            let found: String = state.schema.chars().take(60).collect();
            return Err(wrong(format!("its schema is `{}`, not {SCHEMA}", found.escape_debug())));
        }
        writer.append(&Moment::of(&state))?;
        for record in state.windows {
            // Each is in many states, and written when something became of it.
            if windows.get(&record.id) != Some(&record) {
                writer.window(&record, None)?;
                windows.insert(record.id, record);
            }
        }
        states += 1;
    }
    Ok(states)
}
