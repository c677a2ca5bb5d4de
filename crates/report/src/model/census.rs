//! The census of a `slab` allocator: how full its open granules are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How full the open granules of a `slab` allocator are. Another quantity than DSR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Census {
    /// Open granules that were examined.
    pub granules_open: u64,
    /// How many of them hold no object.
    pub drainable_now: u64,
    /// How many may hold objects from before the attach, so that how full they are is not known.
    pub unknown: u64,
    /// Objects in the others.
    pub live_objects: u64,
    /// Bytes of all of them; null where unknown.
    pub bytes_open: Option<u64>,
    /// Granules by how many objects hold them, empty classes left out.
    pub occupancy: Vec<Occupancy>,
    /// Bytes of [`Census::live_objects`]; null where the profile knows no sizes.
    #[serde(default)]
    pub live_bytes: Option<u64>,
    /// Granules by how full they are, empty classes left out; null where bytes or sizes are not known.
    #[serde(default)]
    pub fill: Option<Vec<Fill>>,
    /// Granules that would come free if the objects in them lay side by side; null where granules have no
    /// common size, or sizes are not known.
    #[serde(default)]
    pub compactable_granules: Option<u64>,
    /// Their bytes.
    #[serde(default)]
    pub compactable_bytes: Option<u64>,
    /// Objects that were seen in [`Census::unknown`] granules: at least so many hold them.
    #[serde(default)]
    pub unknown_live_objects: u64,
    /// Their bytes; null where the profile knows no sizes.
    #[serde(default)]
    pub unknown_live_bytes: Option<u64>,
    /// Objects larger than a granule, which belong to none; null where the granules are opened and closed.
    #[serde(default)]
    pub apart: Option<Apart>,
    /// Frees of objects whose allocation was not seen; null where the granules are opened and closed, and in a sample.
    #[serde(default)]
    pub unknown_frees: Option<u64>,
}

/// One class of occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Occupancy {
    /// Fewest objects of the class.
    pub live_from: u64,
    /// Most objects of the class.
    pub live_to: u64,
    /// Granules in it.
    pub granules: u64,
}

/// One class of granules that are about equally full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fill {
    /// More of a granule's bytes are live than this, in percent (or none, in the first class).
    pub percent_from: u64,
    /// At most so many are.
    pub percent_to: u64,
    /// Granules in it.
    pub granules: u64,
    /// Bytes of the objects in them.
    pub live_bytes: u64,
}

/// Objects that belong to no granule, because they are larger than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Apart {
    /// Objects that are live.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}
