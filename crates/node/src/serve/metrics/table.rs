//! The table of metrics: `docs/metrics.md` is generated from it, and each metric has a row here.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Never falls while it is shown.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size; each of them never falls while it is shown.
    Histogram,
    /// Always 1; the labels hold the information.
    Info,
}

impl Type {
    /// Its name in OpenMetrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// Whether its values count from a beginning.
    pub(crate) const fn is_cumulative(self) -> bool {
        matches!(self, Self::Counter | Self::Histogram)
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name without unit and suffix.
    pub stem: &'static str,
    /// Its base unit, which is a part of the name.
    pub unit: Option<&'static str>,
    /// What it is.
    pub kind: Type,
    /// Its labels; those of [`WHERE`] and [`ALLOCATOR`] stand for several, of which the empty ones are left out.
    pub labels: &'static [&'static str],
    /// What it means, in one line.
    pub help: &'static str,
}

impl Definition {
    /// The family's name: with the unit, without `_total` or `_info`.
    #[must_use]
    pub fn family(&self) -> String {
        match self.unit {
            Some(unit) => format!("{}_{unit}", self.stem),
            None => self.stem.to_owned(),
        }
    }

    /// The name of its samples; those of a histogram add `_bucket`, `_sum` and `_count`.
    #[must_use]
    pub fn sample(&self) -> String {
        let suffix = match self.kind {
            Type::Counter => "_total",
            Type::Gauge | Type::Histogram => "",
            Type::Info => "_info",
        };
        format!("{}{suffix}", self.family())
    }
}

/// The labels that say where a process belongs.
pub const WHERE: &[&str] = &["exe", "cgroup", "container", "unit", "pod", "namespace"];
/// Those, and the allocator's profile and kind.
pub const ALLOCATOR: &[&str] =
    &["exe", "cgroup", "container", "unit", "pod", "namespace", "profile", "kind"];
/// Those, and how a close came out.
const CLOSES: &[&str] =
    &["exe", "cgroup", "container", "unit", "pod", "namespace", "profile", "kind", "outcome"];
/// Those of [`WHERE`], and the kind of page fault.
const FAULTS: &[&str] = &["exe", "cgroup", "container", "unit", "pod", "namespace", "type"];

/// Those of [`WHERE`], and whether some or all tasks waited.
const SCOPES: &[&str] = &["exe", "cgroup", "container", "unit", "pod", "namespace", "scope"];

/// Those of [`WHERE`], and whose heap it is.
const HEAPS: &[&str] = &["exe", "cgroup", "container", "unit", "pod", "namespace", "allocator"];

macro_rules! metrics {
    ($($name:ident = $stem:literal, $unit:expr, $kind:ident, $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(super) const $name: Definition = Definition {
                stem: concat!("drainprof_", $stem), unit: $unit, kind: Type::$kind, labels: $labels, help: $help,
            };
        )*
        /// All metrics, in the order in which they are shown.
        pub const METRICS: &[Definition] = &[$($name),*];
    };
}

metrics! {
    BUILD = "build", None, Info, &["version"],
        "The version of drainprof.";
    OPENS = "granule_opens", None, Counter, ALLOCATOR,
        "Granules opened.";
    CLOSED = "granule_closes", None, Counter, CLOSES,
        "Closes of granules by outcome: drainable (no object was live), pinned, unknown. The DSR is drainable / (drainable + pinned).";
    OBJECTS_ALLOCATED = "objects_allocated", None, Counter, ALLOCATOR,
        "Objects allocated (levels objects and stacks).";
    OBJECTS_FREED = "objects_freed", None, Counter, ALLOCATOR,
        "Objects freed (levels objects and stacks).";
    OPEN = "granules_open", None, Gauge, ALLOCATOR,
        "Granules open now, in processes that run.";
    RETAINED_GRANULES = "retained_granules", None, Gauge, ALLOCATOR,
        "Granules that are closed, pinned and not yet drained; absent where the level does not measure them.";
    RETAINED_BYTES = "retained", Some("bytes"), Gauge, ALLOCATOR,
        "Bytes of these granules; absent also where the profile does not know them.";
    PIN_DELAY = "pin_delay", Some("seconds"), Histogram, ALLOCATOR,
        "From a pinned close to its late drain (levels objects and stacks); absent until there was one.";
    PROCESSES = "processes", None, Gauge, ALLOCATOR,
        "Processes that run now and have this allocator.";
    HITS = "probe_hits", None, Counter, ALLOCATOR,
        "Hits of probes.";
    COST = "probe_cost", Some("seconds"), Counter, ALLOCATOR,
        "CPU time that the probes cost the processes: hits times the cost of a hit.";
    OVERHEAD = "overhead", Some("ratio"), Gauge, WHERE,
        "The current cost of the probes as a share of one CPU, in the process with the highest cost.";
    LEVEL = "governor_level", None, Gauge, WHERE,
        "The lowest level among the processes: 0 no probe, 0.5 close, 1 boundary, 2 objects, 3 stacks.";
    RESIDENT = "process_resident", Some("bytes"), Gauge, WHERE,
        "Resident memory of the processes, added up: shared pages count in each.";
    ANONYMOUS = "process_anonymous", Some("bytes"), Gauge, WHERE,
        "Resident anonymous memory of the processes, added up.";
    VIRTUAL = "process_virtual", Some("bytes"), Gauge, WHERE,
        "Address space of the processes, added up.";
    SWAP = "process_swap", Some("bytes"), Gauge, WHERE,
        "Swapped-out anonymous memory of the processes, added up.";
    PROPORTIONAL = "process_proportional", Some("bytes"), Gauge, WHERE,
        "Resident memory of the processes, shared pages divided by their users (PSS), added up. Read in turns, minutes apart; absent until all of them had one.";
    UNIQUE = "process_unique", Some("bytes"), Gauge, WHERE,
        "Resident memory that is each process's alone (USS), added up; read and absent like PSS.";
    GROWTH = "process_growth", Some("bytes_per_second"), Gauge, WHERE,
        "Growth of resident memory over the last half hour, of the process that grows fastest. Absent until enough was seen.";
    GROUP_PRESSURE = "cgroup_memory_pressure", Some("ratio"), Gauge, SCOPES,
        "Share of the last 10 seconds in which some or all (full) tasks of the control group waited for memory; of the worst group.";
    FAULTS_SEEN = "process_page_faults", None, Counter, FAULTS,
        "Page faults of the processes since each is watched: minor (without I/O) and major.";
    TO_LIMIT = "cgroup_limit_reached", Some("seconds"), Gauge, WHERE,
        "Shortest time until a control group is full at the current growth. Absent without growth or limit.";
    HEAP_MAPPED = "heap_mapped", Some("bytes"), Gauge, HEAPS,
        "Bytes that the allocators (glibc, cpython, jemalloc) have from the system, in all processes together, as of each one's last census. Absent until all of them had one.";
    HEAP_RESIDENT = "heap_resident", Some("bytes"), Gauge, HEAPS,
        "Of these, resident.";
    HEAP_HELD = "heap_held", Some("bytes"), Gauge, HEAPS,
        "Resident bytes of pages, pools or slabs with a live object, whole.";
    HEAP_LIVE = "heap_live", Some("bytes"), Gauge, HEAPS,
        "Bytes of live objects.";
    HEAP_CACHED = "heap_cached", Some("bytes"), Gauge, HEAPS,
        "Bytes that the program has freed and caches of threads keep (glibc).";
    HEAP_FREE = "heap_free", Some("bytes"), Gauge, HEAPS,
        "Free bytes, whether resident or not.";
    HEAP_TRIMMABLE = "heap_trimmable", Some("bytes"), Gauge, HEAPS,
        "Resident bytes that a trim would give back now (glibc).";
    HEAP_UNKNOWN = "heap_unknown", Some("bytes"), Gauge, HEAPS,
        "Bytes that could not be read, or made no sense.";
    HEAP_SECONDS = "heap_census", Some("seconds"), Gauge, WHERE,
        "How long the last census took, the longest of all processes.";
    HEAP_TIME = "heap_census_timestamp", Some("seconds"), Gauge, WHERE,
        "When the last census was, the oldest of all processes, since 1970.";
    ALERTS = "alerts", None, Gauge, &["rule", "state"],
        "Processes for which a rule is about to fire (pending) or has fired (firing).";
    WINDOWS = "windows", None, Counter, &["outcome"],
        "Diagnostic windows that have ended since the daemon started, by outcome.";
    WINDOWS_RUNNING = "windows_running", None, Gauge, &[],
        "Diagnostic windows that run.";
    PUSHED = "profiles_pushed", None, Counter, &["outcome"],
        "Profiles of diagnostic windows for the store of profiles: sent, refused, unreachable (given up), dropped (no room). Absent without one.";
    PRESSURE = "memory_pressure", Some("ratio"), Gauge, &["scope", "over"],
        "Share of time in which some or all (full) tasks of the machine waited for memory, over 10, 60 or 300 seconds.";
    PRESSURE_WAITED = "memory_pressure_waited", Some("seconds"), Counter, &["scope"],
        "Time since boot in which some or all (full) tasks of the machine waited for memory.";
    LOST = "events_lost", None, Counter, &["stage"],
        "Losses by name; docs/losses.md explains each, and which of them make counts incomplete.";
    COMPLETE = "complete", None, Gauge, &[],
        "1 if nothing that the counts need was lost, else 0.";
    LATE = "processes_late", None, Counter, &[],
        "Processes that began after the daemon and before their probes were in place: what they did before is not counted.";
    GIVEN_UP = "processes_given_up", None, Counter, &[],
        "How often a process was given up because the kernel did not answer for it; /status names those of now.";
    PUT_OFF = "probes_put_off", None, Counter, &[],
        "How often a probe was put off because a process was in the way; /status names those of the last minute.";
    TARGETS = "targets", None, Gauge, &["level"],
        "Watched processes by level (none: no probe; memory: only that is watched).";
    READY = "ready", None, Gauge, &[],
        "1 once the daemon has checked all processes, else 0.";
    KILLED = "killed", None, Gauge, &[],
        "1 while the kill switch is on, else 0.";
    DEGRADED = "degraded", None, Gauge, &[],
        "How many configured things do not work now; /status lists them.";
    UPTIME = "uptime", Some("seconds"), Gauge, &[],
        "How long the daemon has run.";
    STATE_TIME = "state_timestamp", Some("seconds"), Gauge, &[],
        "When the shown state was made, since 1970.";
    STATE_AGE = "state_age", Some("seconds"), Gauge, &[],
        "How old the shown state is: more than daemon.interval if the daemon hangs.";
    SELF_CPU = "self_cpu", Some("seconds"), Counter, &[],
        "User and system time of drainprof itself.";
    SELF_RESIDENT = "self_resident", Some("bytes"), Gauge, &[],
        "Resident memory of drainprof itself.";
    SELF_MAPS = "self_maps", Some("bytes"), Gauge, &[],
        "Memory of its maps in the kernel.";
    LABEL_SETS = "label_sets", None, Gauge, &["shown"],
        "Label sets that have series of their own (own), and those of running processes that show as other (other).";
    SET_CREATED = "label_set_created", Some("seconds"), Gauge, WHERE,
        "When the counters of a label set started at zero, since 1970. A set that was evicted and returns starts again.";
}
