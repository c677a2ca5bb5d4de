//! `heap_idle`: memory that the program has freed stays resident, and becomes more.
//!
//! It judges censuses, which are minutes apart: between two of them it sees the last one again.

use std::collections::VecDeque;

use drainprof_census::HeapSummary;
use drainprof_report::{
    units,
    values::{Bytes, Share, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `heap_idle`.
    HeapIdle { window: false, hold: Time::seconds(0),
        /// It holds above this share of resident memory.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        above: Share = Share(0.30),
        /// It ends below this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.20),
        /// Over so many censuses in a row it must not fall.
        #[schemars(extend("x-range" = [2, 64]))]
        censuses: u32 = 4,
        /// And must rise by this share of what it was in the first of them.
        #[schemars(extend("x-range" = ["0%", "10000%"]))]
        rise: Share = Share(0.10),
        /// Less is ignored.
        min_bytes: Bytes = Bytes(64 << 20),
    }
    order: back <= above
}

/// Allocators of a process that are checked.
const MAX_HEAPS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// When the last census was, in milliseconds since 1970.
    last: Option<u64>,
    /// Idle bytes of each allocator, the oldest first.
    known: Vec<(String, VecDeque<u64>)>,
}

impl Rule for HeapIdle {
    type Past = Idle;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let Some(heaps) = signals.heaps.as_ref().filter(|heaps| heaps.failure.is_none()) else {
            *past = Idle::default();
            return Condition::Unknown;
        };
        let all = &heaps.summary.heaps[..heaps.summary.heaps.len().min(MAX_HEAPS)];
        if past.last != Some(heaps.unix_ms) {
            past.last = Some(heaps.unix_ms);
            past.remember(all, self.censuses as usize);
        }
        let rss = heaps.summary.rss_bytes;
        Condition::worst(all.iter().map(|heap| past.judge(self, heap, rss)))
    }
}

impl Idle {
    fn remember(&mut self, heaps: &[HeapSummary], most: usize) {
        self.known.retain(|(name, _)| heaps.iter().any(|heap| heap.allocator == *name));
        for heap in heaps {
            let place = self.known.iter().position(|(name, _)| *name == heap.allocator);
            let place = place.unwrap_or_else(|| {
                self.known.push((heap.allocator.clone(), VecDeque::new()));
                self.known.len() - 1
            });
            let recent = &mut self.known[place].1;
            recent.push_back(heap.idle_bytes());
            while recent.len() > most {
                recent.pop_front();
            }
        }
    }

    fn judge(&self, config: &HeapIdle, heap: &HeapSummary, rss: u64) -> Condition {
        let recent = self.known.iter().find(|(name, _)| *name == heap.allocator);
        let Some((_, recent)) = recent else { return Condition::Unknown };
        let (idle, share) = (heap.idle_bytes(), heap.idle_bytes() as f64 / rss.max(1) as f64);
        if idle < config.min_bytes.0 || share <= config.back.0 {
            return Condition::Clear;
        }
        let Some(first) = recent.front().filter(|_| recent.len() >= config.censuses as usize)
        else {
            return Condition::Unknown;
        };
        let steps = || recent.iter().zip(recent.iter().skip(1));
        let never_falls = steps().all(|(one, next)| one <= next);
        // One step is no rise.
        let rises_often = 2 * steps().filter(|(one, next)| one < next).count() >= recent.len() - 1;
        let rises = rises_often && idle as f64 >= *first as f64 * (1.0 + config.rise.0);
        let message = format!(
            "{}: {} of {} resident memory holds no live object, {}; {} censuses ago it was {}; the threshold is {}; {}",
            heap.allocator,
            units::bytes(idle),
            units::bytes(rss),
            units::percent(share),
            recent.len() - 1,
            units::bytes(*first),
            config.above,
            advice(heap, idle)
        );
        if share > config.above.0 && never_falls && rises {
            Condition::Beyond(message)
        } else {
            Condition::Between(message)
        }
    }
}

/// What to do.
fn advice(heap: &HeapSummary, idle: u64) -> String {
    match heap.trimmable_bytes {
        Some(bytes) if bytes >= idle / 2 => format!(
            "malloc_trim(0) would give back {}, a lower M_TRIM_THRESHOLD or MALLOC_ARENA_MAX keeps it low",
            units::bytes(bytes)
        ),
        _ => "few objects hold it: `drainprof census` names their sizes and types".to_owned(),
    }
}
