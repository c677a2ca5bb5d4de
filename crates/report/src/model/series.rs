//! Values over time, and distributions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Live objects over time, and what that looks like. Only of kind `slab` it is judged: elsewhere granules are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOverTime {
    /// Seconds on the scale of `window.seconds`, live objects, their bytes (null where the profile knows no sizes),
    /// objects allocated so far. Of a sample of pages live objects and bytes are estimates for all.
    pub series: Vec<(f64, u64, Option<u64>, u64)>,
    /// Growth per second of what stays, objects; null where too little was observed.
    pub objects_per_second: Option<f64>,
    /// Its 95 % confidence interval.
    pub objects_per_second_interval: Option<[f64; 2]>,
    /// Growth per second, bytes; null also where sizes are not known.
    pub bytes_per_second: Option<f64>,
    /// The share of the variance that the slope explains.
    pub r_squared: Option<f64>,
    /// What it looks like; null where it is not known, or something was lost.
    pub verdict: Option<Growth>,
    /// Why, in a sentence with numbers.
    pub verdict_reason: Option<String>,
    /// Growth in a day at the present rate; null where none is foreseen, or bytes are not known.
    pub forecast_bytes_per_day: Option<f64>,
}

/// What the time series of retention over time looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// It does not grow, or has come to an end of it.
    Bounded,
    /// It grows steadily; hardly anything goes again.
    LinearLeak,
    /// It grows steadily, and a part comes and goes.
    Mixed,
    /// It was held until the end of the run and freed there.
    FreedAtShutdown,
    /// Too little was observed.
    TooEarly,
    /// Nothing was retained.
    None,
}

impl Growth {
    /// Its name for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Bounded => "bounded",
            Self::LinearLeak => "linear leak",
            Self::Mixed => "mixed: bounded and linear",
            Self::FreedAtShutdown => "freed at shutdown",
            Self::TooEarly => "too early to say",
            Self::None => "none",
        }
    }
}

/// Three points of a distribution; null where it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Half of the values are below.
    pub p50: Option<f64>,
    /// 99 % of the values are below.
    pub p99: Option<f64>,
    /// The largest value, exact.
    pub max: Option<f64>,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// The bucket's largest value.
    pub le_seconds: f64,
    /// Values in this bucket alone.
    pub count: u64,
}
