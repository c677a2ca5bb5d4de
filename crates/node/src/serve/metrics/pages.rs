//! The page of metrics, from their table.

use std::fmt::Write as _;

use super::{ALLOCATOR, METRICS, WHERE};

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
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {labels} | {} |",
            of.sample(),
            of.kind.name(),
            of.unit.unwrap_or(""),
            of.help
        );
    }
    page
}

const HEAD: &str = "# Metrics

<!-- Generated from the table in crates/node/src/serve/metrics/table.rs. To renew it:
UPDATE_DOCS=1 cargo test -p drainprof-node --lib serve::metrics -->

The daemon shows them at `/metrics`: as OpenMetrics 1.0 to who asks for `application/openmetrics-text`, in the older text format of
Prometheus to everybody else. With an endpoint configured, the same metrics go to an OpenTelemetry collector (OTLP over HTTP), under the
same names without `_total` and `_info`; a histogram goes there as the counters that it consists of.

- **Labels**: `place` stands for `exe`, `cgroup`, `container`, `unit` (of systemd), `pod` and `namespace` (of Kubernetes); `allocator` for
  those and `profile` and `kind`. What a process is not in has no label. No series has a pid, a command line or a stack.
- **Bounds**: at most `metrics.max_label_sets` label sets have series of their own. A new set that finds no room evicts the set that
  was active least recently, of those in which nothing runs. The counts of an evicted set move to the set whose `exe` is `other`, so
  neither `other` nor the sum over all series falls. Where every set runs, a new one shows as `other`.
- **Counters** start at zero with the daemon. An evicted label set that returns starts at zero again: a counter reset, which `rate()` and
  `increase()` handle. `drainprof_label_set_created_seconds` shows when the counters of each set started.
- **Histograms** have buckets at powers of four, from 1.024 microseconds (2^10 ns) to 73 minutes (2^42 ns): 18 series. Each `le` is exact but for
  a delay of that very nanosecond, which counts above it. They go on where a process ends, as counters do.
- **No data is no series**: what is not known at a level, or not told by the kernel, is absent, never 0. The DSR is not a metric:
  `drainable / (drainable + pinned)` of `drainprof_granule_closes_total`, over any time and any labels.
- **Exemplars**, in OpenMetrics: pinned closes carry the `site` that pinned most in the last diagnostic window on one of these processes, the number
  of that `window`, and how many closes it pinned there. The call path stands in the window's report ([api.md](api.md)) under that `id`.

| name | type | unit | labels | meaning |
|---|---|---|---|---|
";
