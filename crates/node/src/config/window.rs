//! The section `[window]` of the configuration.

use drainprof_profile::Level;
use drainprof_report::values::{Share, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::section::section;

section! {
    /// Diagnostic windows.
    Window {
        /// How long a window lasts by default.
        #[schemars(extend("x-range" = ["1s", "1h"]))]
        length: Time = Time::minutes(1),
        /// The longest window that a user can request.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        longest: Time = Time::minutes(10),
        /// How deep a window traces.
        level: Level = Level::Stacks,
        /// Which windows also trace page faults, heap and mappings, and name the call stacks through which memory grows.
        /// `memory`: those that open while a rule about memory fires; `always`; `never`. A request for a window can override
        /// this.
        growth: WindowGrowth = WindowGrowth::Memory,
        /// After a window, rules leave the process alone for this long. User requests do not wait.
        #[schemars(extend("x-range" = ["0s", "7d"]))]
        cooldown: Time = Time::minutes(30),
        /// Time in windows that rules open, in all processes together, per hour. `0s`: rules open none.
        #[schemars(extend("x-range" = ["0s", "1h"]))]
        budget_per_hour: Time = Time::minutes(10),
        /// Windows that are open at once, on the whole machine.
        #[schemars(extend("x-range" = [1, 16]))]
        at_once: u32 = 2,
        /// What the probes of a window may cost the process, as a share of one CPU; a window that costs more ends.
        #[schemars(extend("x-range" = ["0.01%", "1600%"]))]
        cost: Share = Share(0.2),
    }
}

/// Which windows also trace page faults, heap and mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowGrowth {
    /// Those that serve a rule about memory.
    Memory,
    /// All.
    Always,
    /// None but those for which it is asked.
    Never,
}

impl WindowGrowth {
    /// Whether a window does. `asked`: what the request for the window says of it; `memory_fires`: whether a rule
    /// about memory fires, whatever requests the window.
    #[must_use]
    pub fn watches(self, asked: Option<bool>, memory_fires: bool) -> bool {
        asked.unwrap_or(match self {
            Self::Memory => memory_fires,
            Self::Always => true,
            Self::Never => false,
        })
    }
}
