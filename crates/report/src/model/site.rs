//! Sites: call paths that allocate, and what of theirs pins.

use drainprof_process::{Frame, PathEnd};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::{Bucket, Growth, LiveOverTime, Spread};

/// One site: what one call path allocates in granules of one class, that is, opened at one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Site {
    /// The same for this call path and place of opening in every process of the same build; null where a frame is not
    /// known.
    #[serde(default)]
    #[schemars(regex(pattern = "^[0-9a-f]{16}$"))]
    pub id: Option<String>,
    /// Pinned closes at which at least one of its objects was live; each counts once. 0 for other kinds than
    /// `drain`.
    pub granules_pinned: u64,
    /// Its share of all pinned closes of the allocator; null where there are none. Shares add up to more
    /// than 1 where several sites pin the same granules.
    pub share: Option<f64>,
    /// Objects of it that were live at pinned closes: its pins.
    #[serde(rename = "objects")]
    pub pins: u64,
    /// Their bytes; null where the profile knows no sizes.
    #[serde(rename = "bytes")]
    pub pin_bytes: Option<u64>,
    /// Pins that are live still.
    #[serde(rename = "objects_live")]
    pub pins_live: u64,
    /// Their bytes; null where the profile knows no sizes.
    #[serde(rename = "bytes_live")]
    pub pin_bytes_live: Option<u64>,
    /// Granules that are retained now with at least one of its objects, those of ended windows of a duty cycle left out.
    pub granules_retained: u64,
    /// Bytes of these granules; null where the profile knows none, and where windows ended with pinned granules, of which
    /// nothing more was seen.
    pub retained_bytes: Option<u64>,
    /// Close to free of its pins that were freed.
    pub pin_delay_seconds: Spread,
    /// The sum of these; 0 where none was freed.
    #[serde(default)]
    pub pin_delay_total_seconds: f64,
    /// What most of its pins are; null without pins, and while it cannot be reported.
    pub class: Option<PinClass>,
    /// Its pins by class.
    pub classes: PinClasses,
    /// What its time series of retention looks like; null where that is not known.
    pub verdict: Option<Growth>,
    /// Why, in a sentence with numbers.
    pub verdict_reason: Option<String>,
    /// Objects that it has allocated, pins or not.
    pub allocated: u64,
    /// Their bytes; null where the profile knows no sizes.
    pub allocated_bytes: Option<u64>,
    /// Its objects that are live now, in open and in closed granules; null where objects have no ids.
    pub live: Option<u64>,
    /// Their bytes; null also where the profile knows no sizes.
    pub live_bytes: Option<u64>,
    /// Open granules with at least one of its objects: those that it holds; null for other kinds than `slab`, and
    /// where objects have no ids.
    #[serde(default)]
    pub granules_held: Option<u64>,
    /// How many of these hold nothing else: they would come free if it freed its objects.
    #[serde(default)]
    pub granules_held_alone: Option<u64>,
    /// What that says of all pages, where pages are sampled; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated: Option<SiteEstimates>,
    /// Its live objects over time; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_over_time: Option<LiveOverTime>,
    /// What is live of it now, by the time of allocation; absent where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<Cohort>,
    /// How long its objects lived that were freed; absent where frees are late drains, or none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<Spread>,
    /// Their distribution, empty buckets left out; counts are per bucket. Absent where `life_seconds` is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub life_histogram: Vec<Bucket>,
    /// Some of its live objects, the oldest first; absent where none is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oldest: Vec<LiveAllocation>,
    /// Its objects that a filter by time asks for; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
    /// Its first allocation, on the scale of `window.seconds`.
    pub first_seen_seconds: f64,
    /// Its last allocation.
    pub last_seen_seconds: f64,
    /// Names of threads that allocate there, a few of them.
    pub threads: Vec<String>,
    /// Whether there are more threads than are named.
    pub more_threads: bool,
    /// Where the granules were opened: the class of granule. Counts of granules' lifetimes are not repeated
    /// here.
    pub opened_at: OpenedAt,
    /// Why the path ends where it does: `start` means that it is whole.
    pub path_end: PathEnd,
    /// The call path, the allocating function first.
    pub frames: Vec<SiteFrame>,
}

/// What is live of the objects that were allocated in one part of the time. Of a sample of pages an estimate for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cohort {
    /// Where the part begins, on the scale of `window.seconds`.
    pub from_seconds: f64,
    /// Where it ends.
    pub to_seconds: f64,
    /// Live objects.
    pub objects: u64,
    /// Their bytes; null where the profile knows no sizes.
    pub bytes: Option<u64>,
}

/// Objects of a site that a filter by time asks for. The borders are those at which the report could be read: readings
/// over time, parts of the time, or (of filters by how long objects lived) buckets of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Selected {
    /// How many.
    pub objects: u64,
    /// Their bytes; null where they are not known.
    pub bytes: Option<u64>,
    /// Where what was read begins: a time on the scale of `window.seconds`, or a length of life.
    pub from_seconds: f64,
    /// Where it ends; null where it has no end.
    pub to_seconds: Option<f64>,
}

/// One object that is live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveAllocation {
    /// Its id as the target has it.
    #[schemars(regex(pattern = "^0x[0-9a-f]+$"))]
    pub id: String,
    /// Its size; null where the profile knows none.
    pub bytes: Option<u64>,
    /// When it was allocated, on the scale of `window.seconds`; a chain of reallocs begins with its first call.
    pub allocated_seconds: f64,
}

/// Estimates of what is live of a site, from a sample of the pages. Objects larger than a page are all counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SiteEstimates {
    /// Its live objects.
    pub live: u64,
    /// Their bytes; null where the profile knows no sizes.
    pub live_bytes: Option<u64>,
    /// The 95 % confidence interval of these, low and high end; null with them, and where none of them is in a page of
    /// the sample.
    pub live_bytes_interval: Option<[u64; 2]>,
}

/// Where granules were opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenedAt {
    /// Return address of the open call; null where unknown.
    pub place: Option<String>,
    /// What it is called.
    #[serde(flatten)]
    pub frame: Frame,
}

/// One frame of a call path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SiteFrame {
    /// The return address; null in reports without paths.
    pub address: Option<String>,
    /// What it is called.
    #[serde(flatten)]
    pub frame: Frame,
}

/// How late a pin is freed, measured by its granule's lifetime.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PinClass {
    /// Less than a tenth of the lifetime after the close.
    NearMiss,
    /// Up to ten times the lifetime.
    Moderate,
    /// Later, or never.
    Fundamental,
}

impl PinClass {
    /// Its name for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NearMiss => "near miss",
            Self::Moderate => "moderate",
            Self::Fundamental => "fundamental",
        }
    }
}

/// Pins by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinClasses {
    /// See [`PinClass::NearMiss`].
    pub near_miss: u64,
    /// See [`PinClass::Moderate`].
    pub moderate: u64,
    /// See [`PinClass::Fundamental`].
    pub fundamental: u64,
    /// Still live and not yet old enough to tell, or in a granule whose lifetime is not known.
    pub undecided: u64,
}

impl PinClasses {
    /// What most of the decided pins are; of classes with equally many, the later one. `None` without a
    /// decided pin.
    #[must_use]
    pub fn class(&self) -> Option<PinClass> {
        let classes = [
            (self.fundamental, PinClass::Fundamental),
            (self.moderate, PinClass::Moderate),
            (self.near_miss, PinClass::NearMiss),
        ];
        let most = classes.iter().map(|&(count, _)| count).max().filter(|&most| most > 0)?;
        classes.into_iter().find(|&(count, _)| count == most).map(|(_, class)| class)
    }
}
