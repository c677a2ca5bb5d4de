//! Time series in bounded memory: containers only. `trend` and `memory` judge them.

mod added;
mod held;
mod live;
mod memory;
mod points;
mod sites;

pub use added::{AddedPoint, AddedSeries, AddedSet};
pub use held::{HeldBytes, HeldPoint, HeldSeries, held_bytes};
pub use live::{LivePoint, LiveSeries};
pub use memory::MemorySeries;
pub(crate) use memory::Values;
pub(crate) use points::Thinned;
pub use points::{FIRST_INTERVAL, MOST_POINTS, Point, TimeSeries};
pub use sites::{SiteNow, SiteSeries, SiteSeriesSet};
