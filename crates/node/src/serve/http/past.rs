//! The history, as pages and the API read it: on threads of their own, few at a time, so that neither the daemon's loop
//! nor its writer waits.

use std::path::PathBuf;

use drainprof_report::values;
use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::{
    Refusal,
    history::Course,
    store::{History, StoreError, Who},
};

/// Readings at once.
const MAX_READERS: usize = 2;
/// The range of a page that names none, and the longest, in milliseconds.
const DEFAULT_RANGE_MS: u64 = 3_600_000;
const MAX_RANGE_MS: u64 = 400 * 24 * 3_600_000;

/// Reads the history.
#[derive(Debug)]
pub(crate) struct Past {
    path: Option<PathBuf>,
    readers: Semaphore,
}

impl Default for Past {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Past {
    /// Of this file; `None`: there is none.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, readers: Semaphore::new(MAX_READERS) }
    }

    /// Reads something of it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&History) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let none = || Refusal::NotFound {
            message: "no history is kept: [store] enabled is false".to_owned(),
        };
        let path = self.path.clone().ok_or_else(none)?;
        let _turn = self.readers.acquire().await.map_err(|_| none())?;
        let done = tokio::task::spawn_blocking(move || work(&History::open(&path)?)).await;
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error @ StoreError::None { .. })) => {
                Err(Refusal::NotFound { message: error.to_string() })
            }
            Ok(Err(error)) => Err(Refusal::Failed { message: error.to_string() }),
            Err(error) => Err(Refusal::Failed { message: error.to_string() }),
        }
    }

    /// The series of the processes that had a process id, in a range.
    pub(super) async fn course(&self, pid: u32, range: Range) -> Result<Course, Refusal> {
        self.read(move |history| {
            let series = history.series_between(Who::Pid(pid), range.from, range.to)?;
            let mut events = history.events(Some(pid), range.from)?;
            events.retain(|event| event.unix_ms <= range.to);
            Ok(Course { since_unix_ms: range.from, series, events })
        })
        .await
    }
}

/// What a request says of its range: two times, or how far back. Times are milliseconds since 1970, or as a browser's
/// field has them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RangeQuery {
    from: Option<String>,
    to: Option<String>,
    /// Seconds.
    last: Option<u64>,
}

/// A time range in milliseconds since 1970, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Whether it ends now, whenever that is.
    pub(super) live: bool,
}

impl RangeQuery {
    /// Whether nothing is asked for.
    pub(super) const fn is_default(&self) -> bool {
        self.from.is_none() && self.to.is_none() && self.last.is_none()
    }

    /// So many seconds up to now.
    pub(super) fn of_last(last: Option<u64>) -> Self {
        Self { last, ..Self::default() }
    }
}

impl Range {
    /// The range that a request asks for; an hour up to now where it names none.
    pub(super) fn of(query: &RangeQuery, now: u64) -> Result<Self, String> {
        let here = zoned(now).ok_or("the clock of this machine is wrong")?;
        let time = |text: &Option<String>| match text.as_deref().filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => values::unix_ms(text, &here).map(Some),
        };
        let (from, to) = (time(&query.from)?, time(&query.to)?);
        let length = query
            .last
            .map_or(DEFAULT_RANGE_MS, |last| last.saturating_mul(1000))
            .clamp(1, MAX_RANGE_MS);
        let end = to.unwrap_or(now);
        let from = from.unwrap_or_else(|| end.saturating_sub(length));
        if from >= end || end - from > MAX_RANGE_MS {
            return Err("from must be before to, by 400 days at most".to_owned());
        }
        Ok(Self { from, to: end, live: to.is_none() })
    }

    /// Seconds.
    pub(super) fn seconds(self) -> f64 {
        (self.to - self.from) as f64 / 1000.0
    }
}

fn zoned(unix_ms: u64) -> Option<Zoned> {
    let time = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    Some(time.to_zoned(TimeZone::UTC))
}

/// A time for people: `2026-01-31 12:00:05 UTC`.
pub(super) fn clock(unix_ms: u64) -> String {
    zoned(unix_ms)
        .map_or_else(|| "?".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// A time as a browser's field has it.
pub(super) fn field(unix_ms: u64) -> String {
    zoned(unix_ms).map(|time| time.strftime("%Y-%m-%dT%H:%M:%S").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in both forms, a length up to now, and nonsense.
    #[test]
    fn ranges() {
        let now = 1_700_000_000_000;
        let of = |from: &str, to: &str, last| {
            let query = RangeQuery { from: Some(from.to_owned()), to: Some(to.to_owned()), last };
            Range::of(&query, now).map(|range| (range.from, range.to, range.live))
        };
        assert_eq!(of("", "", None), Ok((now - DEFAULT_RANGE_MS, now, true)));
        assert_eq!(of("", "", Some(60)), Ok((now - 60_000, now, true)));
        assert_eq!(of("1000", "2000", None), Ok((1000, 2000, false)));
        assert_eq!(
            of("2023-11-14T22:13:20", "", None).unwrap_err(),
            of("9999999999999", "", None).unwrap_err()
        );
        assert_eq!(
            of("2023-11-14T22:00", "2023-11-14T22:13:20", None),
            Ok((now - 800_000, now, false))
        );
        for (from, to) in
            [("x", ""), ("2000", "1000"), ("0", ""), ("-1", ""), ("2023-13-01T00:00", "")]
        {
            assert!(of(from, to, None).is_err(), "{from} {to}");
        }
        assert_eq!(
            (clock(now), field(now)),
            ("2023-11-14 22:13:20 UTC".to_owned(), "2023-11-14T22:13:20".to_owned())
        );
        assert_eq!(clock(u64::MAX), "?");
    }
}
