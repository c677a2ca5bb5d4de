//! The page of metrics, from their table.

use super::table::{ALLOCATOR, METRICS, WHERE};
use crate::config::item;

/// The text of `docs/metrics.md`.
pub(super) fn page() -> String {
    let mut page = String::from(HEAD);
    for of in METRICS {
        let labels = if of.labels == ALLOCATOR {
            "allocator".to_owned()
        } else if let Some(more) = of.labels.strip_prefix(ALLOCATOR) {
            format!("allocator, {}", more.join(", "))
        } else if of.labels == WHERE {
            "place".to_owned()
        } else if let Some(more) = of.labels.strip_prefix(WHERE) {
            format!("place, {}", more.join(", "))
        } else {
            of.labels.join(", ")
        };
        let labels = if labels.is_empty() { String::new() } else { format!(" (by {labels})") };
        page.push_str(&item(&format!("`{}`{labels}: {}", of.sample(), of.help)));
    }
    page
}

const HEAD: &str = "# Metrics

<!-- Generated from the table in crates/node/src/serve/metrics/table.rs. To renew it:
UPDATE_DOCS=1 cargo test -p drainprof-node --lib serve::metrics -->

The daemon serves them at `/metrics`: as OpenMetrics 1.0 to clients that accept `application/openmetrics-text`, else as
Prometheus text. An [OpenTelemetry collector](configuration.md#otlp) gets the same without `_total` and `_info`; a
histogram goes as counters.

- **Types**: `_total` is a counter, `_info` an info, `drainprof_pin_delay_seconds` a histogram, all else a gauge.
- **Labels**: `place` stands for `exe`, `cgroup`, `container`, `unit` (systemd), `pod` and `namespace` (Kubernetes);
  `allocator` for those, `profile` and `kind`. Empty labels are absent. No series has a pid, a command line or a stack.
- **Bounds**: at most `metrics.max_label_sets` label sets have series of their own. A new set evicts the one that was
  active least recently, of those in which nothing runs; its counts move to the set whose `exe` is `other`, so no sum
  falls. If every set runs, the new one shows as `other`.
- **Counters** start at zero with the daemon. An evicted label set that returns starts at zero again, which `rate()`
  and `increase()` handle; `drainprof_label_set_created_seconds` shows when.
- **Histograms** have buckets at powers of four, from 1.024 microseconds (2^10 ns) to 73 minutes (2^42 ns): 18 series.
  A delay of exactly a bound counts above it. They survive a process's end, like counters.
- **No data is no series**: what is not measured is absent, never 0. The DSR is `drainable / (drainable + pinned)` of
  `drainprof_granule_closes_total`, over any time and labels.
- **Exemplars**, in OpenMetrics: pinned closes carry the `site` that pinned most in the last diagnostic window on one of
  these processes, that `window`, and the closes pinned there. The [window's report](api.md) has the call stack under
  that `id`.

";
