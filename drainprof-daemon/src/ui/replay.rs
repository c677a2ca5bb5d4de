//! A file of recorded states, one JSON document a line: for demonstrations and tests.

use std::{
    io::{BufRead, BufReader, Read as _},
    time::{Duration, Instant},
};

use drainprof_node::{Answer, NodeState, Refusal, Request, SCHEMA};

use super::source::{Source, SourceError};

/// Longest line that is read.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Shows recorded states one after the other, and stays at the last.
pub struct Replay {
    lines: Box<dyn BufRead>,
    /// How long each state is shown.
    period: Duration,
    due: Option<Instant>,
    number: u64,
    over: bool,
}

impl Replay {
    /// Reads states from `file`; each is shown for `period`.
    pub fn new(file: impl std::io::Read + 'static, period: Duration) -> Self {
        let lines = Box::new(BufReader::new(file));
        Self { lines, period, due: None, number: 0, over: false }
    }

    /// The next state; `None` after the last.
    fn next(&mut self) -> Result<Option<NodeState>, SourceError> {
        self.number += 1;
        let number = self.number;
        let mut line = Vec::new();
        (&mut self.lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(|error| {
            SourceError::because(format!("cannot read line {number} of the recording"), error)
        })?;
        if line.is_empty() {
            return Ok(None);
        }
        let state: NodeState = serde_json::from_slice(&line).map_err(|error| {
            SourceError::new(format!(
                "line {number} of the recording is no state ({SCHEMA}): {error}"
            ))
        })?;
        if state.schema == SCHEMA {
            Ok(Some(state))
        } else {
            Err(SourceError::new(format!(
                "line {number} of the recording has the schema {}, not {SCHEMA}",
                state.schema
            )))
        }
    }
}

impl Source for Replay {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        let now = Instant::now();
        if self.over || self.due.is_some_and(|due| now < due) {
            return Ok(None);
        }
        self.due = Some(now + self.period);
        let next = self.next();
        self.over = !matches!(next, Ok(Some(_)));
        next
    }

    fn ask(&mut self, _: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        let message = "a recording cannot be asked for anything".to_owned();
        Ok(Err(Refusal::Failed { message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::samples::{later, state};

    /// States come in their order, the last stays, and what is no state is said with its line.
    #[test]
    fn lines() {
        let text = |state: &NodeState| serde_json::to_string(state).unwrap();
        let good = format!("{}\n{}\n", text(&state()), text(&later()));
        let mut replay = Replay::new(std::io::Cursor::new(good), Duration::ZERO);
        assert_eq!(replay.poll().unwrap(), Some(state()));
        assert_eq!(replay.poll().unwrap(), Some(later()));
        assert!(replay.poll().unwrap().is_none() && replay.poll().unwrap().is_none());
        assert!(replay.ask(&Request::State).unwrap().is_err());
        let newer = NodeState { schema: "drainprof.node/9".to_owned(), ..state() };
        for (bad, says) in [("nonsense\n".to_owned(), "line 1"), (text(&newer), "drainprof.node/9")]
        {
            let mut replay = Replay::new(std::io::Cursor::new(bad), Duration::ZERO);
            let error = replay.poll().unwrap_err().in_full();
            assert!(error.contains(says), "{error}");
        }
    }
}
