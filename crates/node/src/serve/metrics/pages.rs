//! The page of metrics, from their table.

use super::{ALLOCATOR, METRICS, WHERE};
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
        let unit = of.unit.map(|unit| format!(", {unit}")).unwrap_or_default();
        let labels = if labels.is_empty() { String::new() } else { format!("; by {labels}") };
        let kind = of.kind.name();
        page.push_str(&item(&format!("`{}` ({kind}{unit}{labels}): {}", of.sample(), of.help)));
    }
    page
}

const HEAD: &str = "# Metrics

<!-- Generated from the table in crates/node/src/serve/metrics/table.rs. To renew it:
UPDATE_DOCS=1 cargo test -p drainprof-node --lib serve::metrics -->

The daemon serves them at `/metrics`: as OpenMetrics 1.0 to clients that accept `application/openmetrics-text`, in the
older text format of Prometheus to others. With an endpoint configured, the same metrics go to an OpenTelemetry
collector (OTLP over HTTP), under the same names without `_total` and `_info`; a histogram goes as counters.

- **Labels**: `place` stands for `exe`, `cgroup`, `container`, `unit` (of systemd), `pod` and `namespace` (of
  Kubernetes); `allocator` for those and `profile` and `kind`. A label without a value is absent. No series has a pid,
  a command line or a stack.
- **Bounds**: at most `metrics.max_label_sets` label sets have series of their own. A new set that finds no room evicts
  the set that was active least recently, of those in which nothing runs. The counts of an evicted set move to the set
  whose `exe` is `other`, so neither `other` nor the sum over all series falls. Where every set runs, a new one shows as
  `other`.
- **Counters** start at zero with the daemon. An evicted label set that returns starts at zero again: a counter reset,
  which `rate()` and `increase()` handle. `drainprof_label_set_created_seconds` shows when each set started.
- **Histograms** have buckets at powers of four, from 1.024 microseconds (2^10 ns) to 73 minutes (2^42 ns): 18 series.
  A delay of exactly a bound counts above it. They keep their counts when a process ends, like counters.
- **No data is no series**: what a level does not measure, or the kernel does not report, is absent, never 0. The DSR is
  not a metric: `drainable / (drainable + pinned)` of `drainprof_granule_closes_total`, over any time and any labels.
- **Exemplars**, in OpenMetrics: pinned closes carry the `site` that pinned most in the last diagnostic window on one of
  these processes, the number of that `window`, and the closes that it pinned there. The call stack is in the window's
  report ([api.md](api.md)) under that `id`.

";
